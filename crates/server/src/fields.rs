//! The fields of sampling that every generating path takes, and what they mean.

use std::collections::BTreeMap;

use firth::Params;
use firth::text::{Encode, Vocab};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::body::OneOrMany;
use crate::error::ApiError;

/// Fields of sampling, as llama-server and OpenAI name them. `null` is as good as absent.
#[derive(Clone, Debug, Default, Deserialize, Serialize, utoipa::ToSchema)]
#[serde(default)]
pub struct Fields {
    /// Tokens at most; -1 for as many as fit. Wins over the other two.
    pub n_predict: Option<i64>,
    /// Tokens at most.
    pub max_completion_tokens: Option<i64>,
    /// Tokens at most.
    pub max_tokens: Option<i64>,
    /// 0 for the likeliest token.
    pub temperature: Option<f64>,
    /// Candidates kept; 0 for all.
    pub top_k: Option<i64>,
    /// Probability mass kept.
    pub top_p: Option<f64>,
    /// Least probability kept, as a share of the best.
    pub min_p: Option<f64>,
    /// Not available but for its off value, below 0.
    pub top_n_sigma: Option<f64>,
    /// Not available but for its off value, 1.
    pub typical_p: Option<f64>,
    /// Not available but for its off value, 0.
    pub xtc_probability: Option<f64>,
    /// Without meaning while `xtc_probability` is 0.
    pub xtc_threshold: Option<f64>,
    /// Not available but for its off value, 0.
    pub dynatemp_range: Option<f64>,
    /// Without meaning while `dynatemp_range` is 0.
    pub dynatemp_exponent: Option<f64>,
    /// Tokens that penalties look back at.
    pub repeat_last_n: Option<i64>,
    /// Factor against repetition; 1 for none.
    pub repeat_penalty: Option<f64>,
    /// Penalty for each occurrence.
    pub frequency_penalty: Option<f64>,
    /// Penalty for any occurrence.
    pub presence_penalty: Option<f64>,
    /// Not available but for its off value, 0.
    pub dry_multiplier: Option<f64>,
    /// Not available but for its off value, 0.
    pub mirostat: Option<i64>,
    /// Not available but for its off value, below 0.
    pub adaptive_target: Option<f64>,
    /// Candidates that every sampler leaves: 0 and 1 mean the same.
    pub min_keep: Option<i64>,
    /// Seed of all random numbers; -1 or absent for a new one each time.
    pub seed: Option<i64>,
    /// Samplers by name or letters; those that are left out are off.
    #[schema(value_type = Option<Object>)]
    pub samplers: Option<Value>,
    /// `[[id or text, bias or false], …]` or `{"id or text": bias}`.
    #[schema(value_type = Option<Object>)]
    pub logit_bias: Option<Value>,
    /// Go on past end tokens.
    pub ignore_eos: Option<bool>,
    /// Texts that end the answer.
    pub stop: Option<OneOrMany>,
    /// Answers to one prompt.
    pub n: Option<i64>,
    /// The same as `n`.
    pub n_cmpl: Option<i64>,
    /// Whether a cached prefix may be used, and this one be cached; true by default.
    pub cache_prompt: Option<bool>,
    /// Divides the cache: requests with another salt share nothing.
    pub cache_salt: Option<String>,
    /// Not available: probabilities behind the samplers.
    pub post_sampling_probs: Option<bool>,
    /// Stream the answer.
    pub stream: Option<bool>,
    /// What a stream tells besides.
    pub stream_options: Option<StreamOptions>,
    /// `timings` on every chunk.
    pub timings_per_token: Option<bool>,
    /// Chunks that tell how far the prompt is.
    pub return_progress: Option<bool>,
    /// A grammar in GBNF.
    pub grammar: Option<String>,
    /// A JSON schema; `{}` for any object.
    #[schema(value_type = Option<Object>)]
    pub json_schema: Option<Value>,
}

/// `stream_options`.
#[derive(Clone, Debug, Default, Deserialize, Serialize, utoipa::ToSchema)]
#[serde(default)]
pub struct StreamOptions {
    /// One more chunk at the end with `usage`.
    pub include_usage: Option<bool>,
}

/// How to sample, all defaults filled in.
#[derive(Clone, Debug)]
pub struct Sampling {
    /// For the engine.
    pub params: Params,
    /// Tokens at most; as many as fit when `None`.
    pub max_tokens: Option<usize>,
    /// Texts that end an answer.
    pub stop: Vec<String>,
    /// Go on past end tokens.
    pub ignore_eos: bool,
    /// Answers to one prompt.
    pub n: usize,
    /// Whether the cache is used.
    pub cache: bool,
}

impl Fields {
    /// What they mean over the server's `defaults`; `most` is the largest `n`.
    ///
    /// # Errors
    /// 400 for what has no meaning, 501 for samplers that firth lacks.
    pub fn sampling(&self, vocab: &Vocab, defaults: &Params, most: usize) -> Result<Sampling, ApiError> {
        self.check_lacking()?;
        let mut p = defaults.clone();
        let f = |name: &str, v: Option<f64>, default: f32, low: f64, high: f64| match v {
            None => Ok(default),
            Some(v) if v.is_finite() => Ok(v.clamp(low, high) as f32),
            Some(v) => Err(ApiError::field(name, format!("{name} is {v}, expected a finite number"))),
        };
        let max = f64::from(f32::MAX);
        p.temperature = f("temperature", self.temperature, p.temperature, 0.0, max)?;
        p.top_p = f("top_p", self.top_p, p.top_p, 0.0, 1.0)?;
        p.min_p = f("min_p", self.min_p, p.min_p, 0.0, 1.0)?;
        p.repeat_penalty = f("repeat_penalty", self.repeat_penalty, p.repeat_penalty, -max, max)?;
        p.frequency_penalty = f("frequency_penalty", self.frequency_penalty, p.frequency_penalty, -max, max)?;
        p.presence_penalty = f("presence_penalty", self.presence_penalty, p.presence_penalty, -max, max)?;
        let limit = |v: i64| v.clamp(0, i64::from(u32::MAX)) as u32;
        p.top_k = self.top_k.map_or(p.top_k, limit);
        let window = range("repeat_last_n", self.repeat_last_n, -1, i64::from(u32::MAX))?;
        p.penalty_last_n = window.map_or(p.penalty_last_n, |n| if n < 0 { u32::MAX } else { limit(n) });
        p.seed = match self.seed {
            None | Some(-1) => random(),
            Some(seed) => seed as u64,
        };
        if let Some(samplers) = &self.samplers {
            keep_samplers(samplers, &mut p)?;
        }
        if let Some(bias) = &self.logit_bias {
            p.bias.extend(biases(bias, vocab)?);
        }
        p.validate().map_err(|e| ApiError::invalid(e.to_string()))?;
        let predict = range("n_predict", self.n_predict, -1, i64::MAX)?;
        let completion = range("max_completion_tokens", self.max_completion_tokens, -1, i64::MAX)?;
        let tokens = range("max_tokens", self.max_tokens, -1, i64::MAX)?;
        let max_tokens = predict.or(completion).or(tokens).and_then(|n| usize::try_from(n).ok());
        range("min_keep", self.min_keep, 0, i64::MAX)?;
        let n = range("n", self.n.or(self.n_cmpl), 1, most as i64)?.unwrap_or(1) as usize;
        Ok(Sampling {
            params: p,
            max_tokens,
            stop: self.stop.clone().map_or_else(Vec::new, OneOrMany::list),
            ignore_eos: self.ignore_eos.unwrap_or(false),
            n,
            cache: self.cache_prompt.unwrap_or(true),
        })
    }

    /// Whether a stream was asked for.
    pub fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// Whether a stream ends with `usage`.
    pub fn includes_usage(&self) -> bool {
        self.stream_options.as_ref().and_then(|o| o.include_usage).unwrap_or(false)
    }

    /// Samplers that firth does not have are refused unless they are off.
    fn check_lacking(&self) -> Result<(), ApiError> {
        let on = [
            ("top_n_sigma", self.top_n_sigma.is_some_and(|v| v >= 0.0)),
            ("typical_p", self.typical_p.is_some_and(|v| v < 1.0)),
            ("xtc_probability", self.xtc_probability.is_some_and(|v| v > 0.0)),
            ("dynatemp_range", self.dynatemp_range.is_some_and(|v| v > 0.0)),
            ("dry_multiplier", self.dry_multiplier.is_some_and(|v| v > 0.0)),
            ("mirostat", self.mirostat.is_some_and(|v| v != 0)),
            ("adaptive_target", self.adaptive_target.is_some_and(|v| v >= 0.0)),
            ("min_keep", self.min_keep.is_some_and(|v| v > 1)),
            ("post_sampling_probs", self.post_sampling_probs.unwrap_or(false)),
        ];
        match on.iter().find(|(_, on)| *on) {
            Some((name, _)) => {
                Err(ApiError::unsupported_field(*name, format!("{name} is not available in this version")))
            }
            None => Ok(()),
        }
    }
}

/// A number within its hard limits.
///
/// # Errors
/// 400 with the limits.
pub fn range(name: &str, v: Option<i64>, low: i64, high: i64) -> Result<Option<i64>, ApiError> {
    match v {
        Some(v) if v < low || v > high => Err(ApiError::field(
            name,
            format!("Field '{name}': Value must be between {low} <= value <= {high}, but got {v}"),
        )),
        v => Ok(v),
    }
}

/// A number that nobody can foresee, from the system's source of randomness for hash maps.
pub fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// Samplers of the chain in firth's order, by name and letter, and what switches each off.
const CHAIN: [(&str, char, fn(&mut Params)); 5] = [
    ("penalties", 'e', |p| p.penalty_last_n = 0),
    ("top_k", 'k', |p| p.top_k = 0),
    ("top_p", 'p', |p| p.top_p = 1.0),
    ("min_p", 'm', |p| p.min_p = 0.0),
    ("temperature", 't', |p| p.temperature = 1.0),
];
/// Samplers that do nothing unless their own field says so, which is refused elsewhere; `infill` only prefers whole
/// words and is left out.
const IDLE: [(&str, char); 6] =
    [("dry", 'd'), ("top_n_sigma", 's'), ("typ_p", 'y'), ("typical_p", 'y'), ("xtc", 'x'), ("infill", 'i')];

/// Switches those off that a list leaves out. Their order is firth's.
fn keep_samplers(samplers: &Value, p: &mut Params) -> Result<(), ApiError> {
    let wrong = |what: &Value| {
        let known: Vec<&str> = CHAIN.iter().map(|c| c.0).chain(IDLE.iter().map(|c| c.0)).collect();
        let message = format!("samplers: {what} is unknown, expected {}", known.join(", "));
        Err(ApiError::field("samplers", message))
    };
    let mut kept = [false; CHAIN.len()];
    let mut keep = |is: &dyn Fn(&str, char) -> bool| {
        let at = CHAIN.iter().position(|c| is(c.0, c.1));
        if let Some(at) = at {
            kept[at] = true;
        }
        at.is_some() || IDLE.iter().any(|c| is(c.0, c.1))
    };
    match samplers {
        Value::String(letters) => {
            if let Some(c) = letters.chars().find(|c| !keep(&|_, letter| letter == *c)) {
                return wrong(&Value::String(c.into()));
            }
        }
        Value::Array(names) => {
            if let Some(n) = names.iter().find(|n| !keep(&|name, _| n.as_str() == Some(name))) {
                return wrong(n);
            }
        }
        other => return wrong(other),
    }
    for (kept, (_, _, off)) in kept.into_iter().zip(CHAIN) {
        if !kept {
            off(p);
        }
    }
    Ok(())
}

/// Biases as (id, bias); ids outside the vocabulary are left out.
fn biases(v: &Value, vocab: &Vocab) -> Result<Vec<(u32, f32)>, ApiError> {
    let wrong = |what: String| ApiError::field("logit_bias", format!("logit_bias: {what}"));
    let pairs: Vec<(Value, &Value)> = match v {
        Value::Object(o) => o.iter().map(|(k, v)| (Value::String(k.clone()), v)).collect(),
        Value::Array(a) => {
            let pair = |p: &'_ Value| p.as_array().filter(|p| p.len() == 2).is_some();
            if let Some(bad) = a.iter().find(|p| !pair(p)) {
                return Err(wrong(format!("{bad} is no pair of token and bias")));
            }
            a.iter().map(|p| (p[0].clone(), &p[1])).collect()
        }
        other => return Err(wrong(format!("{other} is neither an object nor a list of pairs"))),
    };
    let mut out: BTreeMap<u32, f32> = BTreeMap::new();
    for (token, bias) in pairs {
        let bias = match bias {
            Value::Bool(false) => f32::NEG_INFINITY,
            Value::Number(n) => n.as_f64().unwrap_or(0.0).clamp(-1e9, 1e9) as f32,
            other => return Err(wrong(format!("{other} is no bias, expected a number or false"))),
        };
        let ids = match &token {
            Value::Number(n) => n.as_u64().and_then(|n| u32::try_from(n).ok()).into_iter().collect(),
            Value::String(s) => match s.parse::<u32>() {
                Ok(id) => vec![id],
                Err(_) => {
                    let how = Encode { add_special: false, parse_special: true };
                    vocab.encode(s, how).map_err(|e| wrong(e.to_string()))?
                }
            },
            other => return Err(wrong(format!("{other} is no token, expected an id or text"))),
        };
        out.extend(ids.into_iter().filter(|id| (*id as usize) < vocab.len()).map(|id| (id, bias)));
    }
    Ok(out.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn vocab() -> Vocab {
        let file = firth::bundled().expect("the bundled model");
        Vocab::from_metadata(file.metadata()).expect("a vocabulary")
    }

    fn sampling(v: Value) -> Result<Sampling, ApiError> {
        let fields: Fields = serde_json::from_value(v).expect("right types");
        fields.sampling(&vocab(), &Params::default(), 4)
    }

    #[test]
    fn meanings() {
        let s =
            sampling(json!({"temperature": -2, "top_k": -1, "top_p": 7, "n_predict": -1, "max_tokens": 9}));
        let s = s.expect("soft limits are clamped");
        assert_eq!((s.params.temperature, s.params.top_k, s.params.top_p), (0.0, 0, 1.0));
        assert_eq!(s.max_tokens, None, "n_predict wins");
        let s = sampling(json!({"samplers": "kt", "seed": 3, "logit_bias": {"5": 1.5, "99999999": 1}}));
        let s = s.expect("a fair request");
        assert_eq!((s.params.top_p, s.params.min_p, s.params.top_k, s.params.seed), (1.0, 0.0, 40, 3));
        assert_eq!(s.params.bias, [(5, 1.5)]);
        let s = sampling(json!({"logit_bias": [[7, false], [8, -2]], "stop": "x", "n": 4})).expect("fair");
        assert_eq!(s.params.bias, [(7, f32::NEG_INFINITY), (8, -2.0)]);
        assert_eq!((s.stop, s.n), (vec!["x".to_owned()], 4));
        let seeds = [0; 2].map(|_| sampling(json!({"seed": -1})).expect("fair").params.seed);
        assert_ne!(seeds[0], seeds[1]);
    }

    #[test]
    fn what_has_no_meaning_is_refused() {
        for (v, status, param) in [
            (json!({"n": 5}), 400, Some("n")),
            (json!({"n_predict": -2}), 400, Some("n_predict")),
            (json!({"samplers": ["nonsense"]}), 400, Some("samplers")),
            (json!({"logit_bias": [[1]]}), 400, Some("logit_bias")),
            (json!({"repeat_penalty": 0}), 400, None),
            (json!({"mirostat": 2}), 501, Some("mirostat")),
            (json!({"dry_multiplier": 0.5}), 501, Some("dry_multiplier")),
        ] {
            let e = sampling(v.clone()).expect_err("refused");
            assert_eq!((e.status.as_u16(), e.param.as_deref()), (status, param), "{v}: {}", e.message);
        }
    }
}
