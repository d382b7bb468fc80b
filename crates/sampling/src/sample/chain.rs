//! The whole chain of stages, in any order, on the host.
//!
//! Probabilities are the integer weights of the device's sampler, so where a request asks for nothing else both give
//! the same token. What takes logarithms does so in f64 by [`crate::math`] and adds up in fixed point, in whose sums the
//! order of candidates does not matter.

use super::list::List;
use super::{SampleError, Scratch, penalised};
use crate::dry::DryScratch;
use crate::params::{Mirostat, MirostatVersion};
use crate::{Params, Stage, purpose, random_u64};

/// What a token is drawn after.
#[derive(Clone, Copy, Debug, Default)]
pub struct Before<'a> {
    /// Prompt and text so far; the token to be drawn has the index `tokens.len()`.
    pub tokens: &'a [u32],
    /// Pairs (id, count) of the tokens that penalties look at, each id once, in any order.
    pub counts: &'a [[u32; 2]],
    /// Bits of allowed ids, where something constrains them.
    pub mask: Option<&'a [u32]>,
}

/// A request's sampling on the host, with all that it remembers from token to token.
///
/// Its memory is taken when it is made. Draws are to be asked for in order, each once: mirostat and adaptive-p learn
/// from them.
#[derive(Clone, Debug)]
pub struct Chain {
    params: Params,
    choice: u32,
    biases: Vec<[u32; 2]>,
    scratch: Scratch,
    list: List,
    dry: DryScratch,
    /// (id, what an edit in the middle of the chain needs to know).
    edits: Vec<[u32; 2]>,
    /// Mirostat's bound on the surprise, in bits.
    mu: f64,
    /// Adaptive-p's weighted sums of past probabilities and of ones.
    past: (f64, f64),
}

impl Chain {
    /// For choice `choice` of a request on a vocabulary of `n_vocab` and sequences of up to `context` tokens.
    /// The parameters must be valid ([`Params::validate`]).
    pub fn new(params: Params, choice: u32, n_vocab: usize, context: usize) -> Self {
        let last_n = if params.dry.is_on() { (params.dry.last_n as usize).min(context) } else { 0 };
        let past = 1.0 / (1.0 - decay(&params));
        Chain {
            choice,
            biases: params.bias_list(),
            scratch: Scratch::new(n_vocab),
            list: List::new(n_vocab, params.is_on(Stage::Typical)),
            dry: DryScratch::new(last_n),
            edits: Vec::with_capacity(last_n.max(params.penalty_last_n as usize)),
            mu: 2.0 * f64::from(params.mirostat.map_or(0.0, |m| m.tau)),
            past: (f64::from(params.adaptive_target) * past, past),
            params,
        }
    }

    /// Draws the token after `before` from `logits: [n_vocab]`.
    ///
    /// # Errors
    /// A NaN logit, or none above minus infinity.
    pub fn sample(&mut self, before: &Before, logits: &[f32]) -> Result<u32, SampleError> {
        let order = std::mem::take(&mut self.params.order);
        let drawn = self.run(&order, before, logits);
        self.params.order = order;
        drawn
    }

    fn run(&mut self, order: &[Stage], before: &Before, logits: &[f32]) -> Result<u32, SampleError> {
        let mirostat = self.params.mirostat;
        let edits = |s: &&Stage| matches!(**s, Stage::Penalties | Stage::Dry) && mirostat.is_none();
        let leading = order.iter().take_while(edits).count();
        self.begin(&order[..leading], before, logits)?;
        if let Some(m) = mirostat {
            self.list.temper(&self.params);
            return Ok(self.mirostat(m, before));
        }
        for &stage in &order[leading..] {
            if self.params.is_on(stage) {
                self.apply(stage, before);
            }
        }
        if order.contains(&Stage::AdaptiveP) && self.params.is_on(Stage::AdaptiveP) {
            return Ok(self.adaptive(before));
        }
        Ok(self.list.draw(self.bits(before, purpose::DRAW)).0)
    }

    /// Leading edits, biases and mask over the whole row.
    fn begin(&mut self, leading: &[Stage], before: &Before, logits: &[f32]) -> Result<(), SampleError> {
        let n = logits.len();
        assert!(
            n <= self.scratch.edits.len(),
            "a row of {n} logits, a chain for {}",
            self.scratch.edits.len()
        );
        self.scratch.forget_edits();
        for &stage in leading {
            if !self.params.is_on(stage) {
                continue;
            }
            self.find_edits(stage, before);
            for &[id, what] in &self.edits {
                if let Some(z) = self.scratch.edit(logits, id) {
                    *z = edited(&self.params, stage, *z, what);
                }
            }
        }
        self.scratch.add_biases(&self.biases, logits);
        self.scratch.keep_highest(logits, before.mask, n)?;
        self.list.begin(&self.scratch.candidates);
        Ok(())
    }

    /// Fills `edits` for penalties or DRY, ids ascending.
    fn find_edits(&mut self, stage: Stage, before: &Before) {
        self.edits.clear();
        match stage {
            Stage::Penalties => self.edits.extend_from_slice(before.counts),
            _ => {
                let found = self.dry.penalties(&self.params.dry, before.tokens);
                self.edits.extend(found.map(|(id, penalty)| [id, penalty.to_bits()]));
            }
        }
        self.edits.sort_unstable();
    }

    fn apply(&mut self, stage: Stage, before: &Before) {
        match stage {
            Stage::Penalties | Stage::Dry => {
                self.find_edits(stage, before);
                let (edits, params) = (&self.edits, &self.params);
                self.list.edit(|id, z| match edits.binary_search_by_key(&id, |e| e[0]) {
                    Ok(at) => edited(params, stage, z, edits[at][1]),
                    Err(_) => z,
                });
            }
            Stage::TopNSigma => self.list.top_n_sigma(self.params.top_n_sigma),
            Stage::TopK => self.list.top_k(self.params.top_k as usize),
            Stage::Typical => self.list.typical(self.params.typical_p),
            Stage::TopP => self.list.top_p(self.params.top_p),
            Stage::MinP => self.list.min_p(self.params.min_p),
            Stage::Xtc => {
                let coin = self.bits(before, purpose::XTC) >> 32;
                if coin < (f64::from(self.params.xtc_probability) * 4294967296.0 + 0.5) as u64 {
                    self.list.xtc(self.params.xtc_threshold);
                }
            }
            Stage::Temperature => self.list.temper(&self.params),
            Stage::AdaptiveP => {}
        }
    }

    /// The random bits of one purpose for the next token.
    fn bits(&self, before: &Before, purpose: u32) -> u64 {
        let seed = [self.params.seed as u32, (self.params.seed >> 32) as u32];
        random_u64(seed, before.tokens.len() as u32, self.choice, purpose)
    }

    /// Source: Basu et al. 2020, "Mirostat: a neural text decoding algorithm that directly controls perplexity".
    fn mirostat(&mut self, m: Mirostat, before: &Before) -> u32 {
        match m.version {
            MirostatVersion::V2 => self.list.least_surprising(self.mu),
            MirostatVersion::V1 => {
                let k = self.list.zipf_k(self.mu, self.scratch.edits.len());
                self.list.top_k(k);
            }
        }
        let (id, p) = self.list.draw(self.bits(before, purpose::MIROSTAT));
        let surprise = -crate::math::ln(p) / std::f64::consts::LN_2;
        self.mu -= f64::from(m.eta) * (surprise - f64::from(m.tau));
        id
    }

    /// Draws near the target, corrected by what was drawn before.
    fn adaptive(&mut self, before: &Before) -> u32 {
        let target = f64::from(self.params.adaptive_target).clamp(0.0, 1.0);
        let (sum, ones) = self.past;
        let aim = (2.0 * target - sum / ones).clamp(0.0, 1.0);
        let (id, p) = self.list.draw_near(aim, self.bits(before, purpose::DRAW));
        let decay = decay(&self.params);
        self.past = (p + decay * sum, 1.0 + decay * ones);
        id
    }
}

fn decay(p: &Params) -> f64 {
    f64::from(p.adaptive_decay).clamp(0.0, 0.99)
}

/// A logit after an edit: `what` is the count of a penalty, or the bits of a DRY penalty.
fn edited(p: &Params, stage: Stage, z: f32, what: u32) -> f32 {
    match stage {
        Stage::Penalties => {
            let repeat = p.repeat_penalty;
            penalised(z, what, [repeat, 1.0 / repeat, p.frequency_penalty, p.presence_penalty])
        }
        _ => z - f32::from_bits(what),
    }
}
