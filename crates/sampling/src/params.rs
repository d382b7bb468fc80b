//! The sampling parameters of a request.

use crate::dry::Dry;
use crate::stage::{DEFAULT_ORDER, Stage};

/// What a request asks of the sampler. The defaults are those of the command line.
#[derive(Debug, Clone, PartialEq)]
pub struct Params {
    /// Seed of all random numbers of the request.
    pub seed: u64,
    /// 0 or below takes the highest logit.
    pub temperature: f32,
    /// Candidates kept by order; 0 = all.
    pub top_k: u32,
    /// Share of the weight kept; 1 or above = all, 0 or below = one candidate.
    pub top_p: f32,
    /// Share of the highest weight a candidate must reach; 0 or below = none.
    pub min_p: f32,
    /// Factor on repeated tokens; 1 = off.
    pub repeat_penalty: f32,
    /// Taken from the logit once for each time the token occurred; 0 = off.
    pub frequency_penalty: f32,
    /// Taken from the logit of every token that occurred; 0 = off.
    pub presence_penalty: f32,
    /// How many of the last tokens, prompt included, the penalties look at.
    pub penalty_last_n: u32,
    /// Added to logits; -inf forbids an id. Values for the same id add up in their order. Ids beyond the
    /// vocabulary have no effect.
    pub bias: Vec<(u32, f32)>,
    /// Penalty on going on with a repetition.
    pub dry: Dry,
    /// Share of the weight kept, by how near to the average surprise; 1 or above = off.
    pub typical_p: f32,
    /// Standard deviations below the best that are kept; 0 or below = off.
    pub top_n_sigma: f32,
    /// How often the likely ones but the last of them are dropped; 0 or below = off.
    pub xtc_probability: f32,
    /// From which probability on a token is likely; above 0.5 = off.
    pub xtc_threshold: f32,
    /// How far the temperature goes up and down with the entropy; 0 or below = off.
    pub dynatemp_range: f32,
    /// Power of the normalised entropy.
    pub dynatemp_exponent: f32,
    /// Keeps the surprise near a target, in place of all stages but bias and temperature.
    pub mirostat: Option<Mirostat>,
    /// Probability near which tokens are drawn, where the order has [`Stage::AdaptiveP`]; below 0 = off.
    pub adaptive_target: f32,
    /// How long past draws are remembered for that, 0 to 0.99.
    pub adaptive_decay: f32,
    /// The stages that take part, in their order.
    pub order: Vec<Stage>,
}

/// Which mirostat, and what it aims at.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mirostat {
    /// Version 2, which cuts by surprise, or version 1, which estimates a number of candidates.
    pub version: MirostatVersion,
    /// Surprise that is aimed at, in bits.
    pub tau: f32,
    /// How fast the cut follows.
    pub eta: f32,
}

/// The two forms of mirostat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum MirostatVersion {
    V1,
    V2,
}

impl Default for Mirostat {
    fn default() -> Self {
        Mirostat { version: MirostatVersion::V2, tau: 5.0, eta: 0.1 }
    }
}

impl Default for Params {
    fn default() -> Self {
        Self {
            seed: 0,
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_last_n: 64,
            bias: Vec::new(),
            dry: Dry::default(),
            typical_p: 1.0,
            top_n_sigma: -1.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            mirostat: None,
            adaptive_target: -1.0,
            adaptive_decay: 0.9,
            order: DEFAULT_ORDER.into(),
        }
    }
}

/// A parameter outside its range.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum ParamError {
    /// A number that must be finite.
    #[error("{name} is {value}, expected a finite number")]
    NotFinite {
        /// Field of [`Params`].
        name: &'static str,
        /// What was found.
        value: f32,
    },
    /// A temperature so small that its reciprocal overflows.
    #[error("temperature is {0:e}, expected 0 or a number whose reciprocal is finite")]
    Temperature(f32),
    /// A repetition penalty that is not positive or whose reciprocal overflows.
    #[error("repeat_penalty is {0:e}, expected a positive number whose reciprocal is finite")]
    Repeat(f32),
    /// A bias that is NaN or +inf.
    #[error("bias of token {id} is {value}, expected a finite number or -inf")]
    Bias {
        /// The token.
        id: u32,
        /// What was found.
        value: f32,
    },
}

impl Params {
    /// Checks every number once, when the request arrives.
    ///
    /// # Errors
    /// The first parameter outside its range.
    pub fn validate(&self) -> Result<(), ParamError> {
        let finite = [
            ("temperature", self.temperature),
            ("top_p", self.top_p),
            ("min_p", self.min_p),
            ("repeat_penalty", self.repeat_penalty),
            ("frequency_penalty", self.frequency_penalty),
            ("presence_penalty", self.presence_penalty),
            ("dry_multiplier", self.dry.multiplier),
            ("dry_base", self.dry.base),
            ("typical_p", self.typical_p),
            ("top_n_sigma", self.top_n_sigma),
            ("xtc_probability", self.xtc_probability),
            ("xtc_threshold", self.xtc_threshold),
            ("dynatemp_range", self.dynatemp_range),
            ("dynatemp_exponent", self.dynatemp_exponent),
            ("mirostat_tau", self.mirostat.map_or(0.0, |m| m.tau)),
            ("mirostat_eta", self.mirostat.map_or(0.0, |m| m.eta)),
            ("adaptive_target", self.adaptive_target),
            ("adaptive_decay", self.adaptive_decay),
        ];
        if let Some(&(name, value)) = finite.iter().find(|(_, v)| !v.is_finite()) {
            return Err(ParamError::NotFinite { name, value });
        }
        if self.temperature > 0.0 && !self.temperature.recip().is_finite() {
            return Err(ParamError::Temperature(self.temperature));
        }
        if self.repeat_penalty <= 0.0 || !self.repeat_penalty.recip().is_finite() {
            return Err(ParamError::Repeat(self.repeat_penalty));
        }
        match self.bias.iter().find(|(_, v)| v.is_nan() || *v == f32::INFINITY) {
            Some(&(id, value)) => Err(ParamError::Bias { id, value }),
            None => Ok(()),
        }
    }

    /// Whether any penalty does something.
    pub fn has_penalties(&self) -> bool {
        let neutral =
            self.repeat_penalty == 1.0 && self.frequency_penalty == 0.0 && self.presence_penalty == 0.0;
        self.penalty_last_n > 0 && !neutral
    }

    /// Whether `stage` does something wherever it stands.
    pub fn is_on(&self, stage: Stage) -> bool {
        match stage {
            Stage::Penalties => self.has_penalties(),
            Stage::Dry => self.dry.is_on(),
            Stage::TopNSigma => self.top_n_sigma > 0.0,
            Stage::TopK => self.top_k > 0,
            Stage::Typical => self.typical_p < 1.0,
            Stage::TopP => self.top_p < 1.0,
            Stage::MinP => self.min_p > 0.0,
            Stage::Xtc => self.xtc_probability > 0.0 && self.xtc_threshold <= 0.5,
            Stage::Temperature => self.temperature != 1.0 || self.dynatemp_range > 0.0,
            Stage::AdaptiveP => self.adaptive_target >= 0.0,
        }
    }

    /// Whether a device's op cannot draw for this request and [`Chain`](crate::Chain) does, on the host: a stage
    /// that needs logarithms or remembers, or an order of its own.
    pub fn needs_host(&self) -> bool {
        const ON_DEVICES: [Stage; 5] =
            [Stage::Penalties, Stage::TopK, Stage::TopP, Stage::MinP, Stage::Temperature];
        let dynamic = self.dynatemp_range > 0.0 && self.order.contains(&Stage::Temperature);
        let asked = self.order.iter().filter(|s| self.is_on(**s));
        let plain = ON_DEVICES.iter().filter(|s| self.is_on(**s));
        self.mirostat.is_some() || dynamic || !asked.eq(plain)
    }

    /// The biases as a list for [`Lists`](crate::Lists): (id, f32 bits), ids ascending and unique, values of
    /// the same id added in their order. Made once per request; allocates.
    pub fn bias_list(&self) -> Vec<[u32; 2]> {
        let mut sorted = self.bias.clone();
        sorted.sort_by_key(|&(id, _)| id);
        let mut out: Vec<[u32; 2]> = Vec::with_capacity(sorted.len());
        for (id, value) in sorted {
            match out.last_mut().filter(|last| last[0] == id) {
                Some(last) => last[1] = (f32::from_bits(last[1]) + value).to_bits(),
                None => out.push([id, value.to_bits()]),
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(edit: impl Fn(&mut Params), expected: Result<(), &str>) {
        let mut params = Params::default();
        edit(&mut params);
        assert_eq!(params.validate().map_err(|e| e.to_string()), expected.map_err(str::to_owned));
    }

    #[test]
    fn refuses_what_has_no_meaning() {
        check(|_| (), Ok(()));
        check(|p| p.temperature = -1.0, Ok(()));
        check(|p| p.temperature = f32::NAN, Err("temperature is NaN, expected a finite number"));
        check(
            |p| p.temperature = 1e-40,
            Err("temperature is 1e-40, expected 0 or a number whose reciprocal is finite"),
        );
        check(|p| p.top_p = f32::INFINITY, Err("top_p is inf, expected a finite number"));
        check(
            |p| p.repeat_penalty = 0.0,
            Err("repeat_penalty is 0e0, expected a positive number whose reciprocal is finite"),
        );
        check(|p| p.bias = vec![(3, f32::NEG_INFINITY)], Ok(()));
        check(
            |p| p.bias = vec![(3, f32::NAN)],
            Err("bias of token 3 is NaN, expected a finite number or -inf"),
        );
    }

    #[test]
    fn biases_are_sorted_and_joined() {
        let params = Params { bias: vec![(7, 1.0), (2, -1.0), (7, 0.5)], ..Params::default() };
        assert_eq!(params.bias_list(), [[2, (-1.0_f32).to_bits()], [7, 1.5_f32.to_bits()]]);
    }
}
