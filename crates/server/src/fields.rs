//! The fields of sampling that every generating path takes, and what they mean.

use std::collections::BTreeMap;
use std::time::Duration;

use firth::text::{Encode, Vocab};
use firth::{DRY_BREAKERS, Mirostat, MirostatVersion, Params, Stage, dry_breakers};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::body::OneOrMany;
use crate::error::ApiError;
use crate::limits::LineLimits;

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
    /// Keeps what lies so many deviations below the best; below 0 for off.
    pub top_n_sigma: Option<f64>,
    /// Keeps what is about as surprising as the average; 1 for off.
    pub typical_p: Option<f64>,
    /// How often likely tokens are dropped; 0 for never.
    pub xtc_probability: Option<f64>,
    /// From which probability on.
    pub xtc_threshold: Option<f64>,
    /// How far the temperature follows the entropy; 0 for off.
    pub dynatemp_range: Option<f64>,
    /// How it follows.
    pub dynatemp_exponent: Option<f64>,
    /// Tokens that penalties look back at.
    pub repeat_last_n: Option<i64>,
    /// Factor against repetition; 1 for none.
    pub repeat_penalty: Option<f64>,
    /// Penalty for each occurrence.
    pub frequency_penalty: Option<f64>,
    /// Penalty for any occurrence.
    pub presence_penalty: Option<f64>,
    /// Strength of the penalty on repetitions; 0 for off.
    pub dry_multiplier: Option<f64>,
    /// How it grows with their length.
    pub dry_base: Option<f64>,
    /// Repetitions below this length are free.
    pub dry_allowed_length: Option<i64>,
    /// Tokens that it looks back at; -1 for all.
    pub dry_penalty_last_n: Option<i64>,
    /// Texts that repetitions do not reach over.
    pub dry_sequence_breakers: Option<Vec<String>>,
    /// 1 or 2; 0 for off.
    pub mirostat: Option<i64>,
    /// Surprise that mirostat aims at, in bits.
    pub mirostat_tau: Option<f64>,
    /// How fast it follows.
    pub mirostat_eta: Option<f64>,
    /// Probability that draws are near to; below 0 for off.
    pub adaptive_target: Option<f64>,
    /// How long it remembers.
    pub adaptive_decay: Option<f64>,
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
    /// `timings` on every chunk of a chat or of text that goes on.
    pub timings_per_token: Option<bool>,
    /// Chunks that tell how far the prompt of a chat or of text that goes on is.
    pub return_progress: Option<bool>,
    /// Milliseconds from the first token on, after which the answer ends with its line; 0 or below for no limit.
    pub t_max_predict_ms: Option<i64>,
    /// White space that each line but the first begins with, at least; the answer ends before a line with less.
    pub n_indent: Option<i64>,
    /// Tokens of thoughts at most, then they are ended; -1 for no limit.
    #[serde(alias = "thinking_budget_tokens", alias = "reasoning_budget")]
    pub reasoning_budget_tokens: Option<i64>,
    /// What ends thoughts that have reached their limit, before the model's own mark.
    pub reasoning_budget_message: Option<String>,
    /// The slot to work in, where it is free; -1 for any.
    pub id_slot: Option<i64>,
    /// Ignored: nothing of a prompt is dropped, so nothing is to be kept.
    pub n_keep: Option<i64>,
    /// Ignored, as `n_keep`.
    pub n_discard: Option<i64>,
    /// Ignored: what stands behind a change is computed anew, and all before it is reused anyway.
    pub n_cache_reuse: Option<i64>,
    /// Ignored: thoughts end at their limit, at their mark, or with the request.
    pub reasoning_control: Option<bool>,
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
    /// What lines are held to.
    pub lines: LineLimits,
    /// Thoughts of a limited length.
    pub budget: Option<ThoughtLimit>,
    /// The slot that is preferred.
    pub slot: Option<usize>,
    /// Texts that repetitions do not reach over, where they are not the usual ones.
    pub dry_breakers: Option<Vec<String>>,
}

/// Thoughts of so many tokens at most, and what ends them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct ThoughtLimit {
    /// Tokens at most.
    pub tokens: usize,
    /// Text before the mark that ends them.
    pub message: String,
}

impl Fields {
    /// What they mean over the server's `defaults`; `most` is the largest `n`.
    ///
    /// # Errors
    /// 400 for what has no meaning, 501 for samplers that firth lacks.
    pub fn sampling(&self, vocab: &Vocab, defaults: &Params, most: usize) -> Result<Sampling, ApiError> {
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
        self.host_samplers(&mut p, vocab)?;
        p.seed = match self.seed {
            None | Some(-1) => random(),
            Some(seed) => seed as u64,
        };
        if let Some(samplers) = &self.samplers {
            p.order = order(samplers)?;
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
            lines: self.line_limits()?,
            budget: self.thought_limit()?,
            slot: self.id_slot.and_then(|n| usize::try_from(n).ok()),
            dry_breakers: self.dry_sequence_breakers.clone(),
        })
    }

    fn line_limits(&self) -> Result<LineLimits, ApiError> {
        let indent = range("n_indent", self.n_indent, 0, i64::from(u32::MAX))?.unwrap_or(0) as usize;
        let ms = self.t_max_predict_ms.and_then(|ms| u64::try_from(ms).ok()).filter(|ms| *ms > 0);
        Ok(LineLimits { time: ms.map(Duration::from_millis), indent })
    }

    fn thought_limit(&self) -> Result<Option<ThoughtLimit>, ApiError> {
        let tokens = range("reasoning_budget_tokens", self.reasoning_budget_tokens, -1, i64::MAX)?;
        let message = self.reasoning_budget_message.clone().unwrap_or_default();
        Ok(tokens.and_then(|n| usize::try_from(n).ok()).map(|tokens| ThoughtLimit { tokens, message }))
    }

    /// Whether a stream was asked for.
    pub fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// Whether a stream ends with `usage`.
    pub fn includes_usage(&self) -> bool {
        self.stream_options.as_ref().and_then(|o| o.include_usage).unwrap_or(false)
    }

    /// Samplers that run on the host.
    fn host_samplers(&self, p: &mut Params, vocab: &Vocab) -> Result<(), ApiError> {
        let f = |v: Option<f64>, default: f32| v.map_or(default, |v| v as f32);
        p.top_n_sigma = f(self.top_n_sigma, p.top_n_sigma);
        p.typical_p = f(self.typical_p, p.typical_p);
        p.xtc_probability = f(self.xtc_probability, p.xtc_probability);
        p.xtc_threshold = f(self.xtc_threshold, p.xtc_threshold);
        p.dynatemp_range = f(self.dynatemp_range, p.dynatemp_range);
        p.dynatemp_exponent = f(self.dynatemp_exponent, p.dynatemp_exponent);
        p.adaptive_target = f(self.adaptive_target, p.adaptive_target);
        p.adaptive_decay = f(self.adaptive_decay, p.adaptive_decay);
        let m = p.mirostat.unwrap_or_default();
        let (tau, eta) = (f(self.mirostat_tau, m.tau), f(self.mirostat_eta, m.eta));
        let version = match range("mirostat", self.mirostat, 0, 2)? {
            Some(0) => None,
            Some(1) => Some(MirostatVersion::V1),
            Some(_) => Some(MirostatVersion::V2),
            None => p.mirostat.map(|m| m.version),
        };
        p.mirostat = version.map(|version| Mirostat { version, tau, eta });
        let most = i64::from(u32::MAX);
        let d = &mut p.dry;
        d.multiplier = f(self.dry_multiplier, d.multiplier);
        d.base = f(self.dry_base, d.base);
        let length = range("dry_allowed_length", self.dry_allowed_length, 0, most)?;
        d.allowed_length = length.map_or(d.allowed_length, |n| n as u32);
        let window = range("dry_penalty_last_n", self.dry_penalty_last_n, -1, most)?;
        d.last_n = window.map_or(d.last_n, |n| u32::try_from(n).unwrap_or(u32::MAX));
        if let Some(breakers) = &self.dry_sequence_breakers {
            d.breakers = dry_breakers(vocab, breakers).into();
        } else if d.is_on() {
            d.breakers = dry_breakers(vocab, &DRY_BREAKERS).into();
        }
        for (name, on) in [
            ("min_keep", self.min_keep.is_some_and(|v| v > 1)),
            ("post_sampling_probs", self.post_sampling_probs.unwrap_or(false)),
        ] {
            if on {
                return Err(ApiError::unsupported_field(
                    name,
                    format!("{name} is not available in this version"),
                ));
            }
        }
        Ok(())
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

impl Sampling {
    /// Fields that mean this, over any defaults. The seed stands beside them: not every one is a field's.
    pub fn fields(&self) -> Fields {
        let p = &self.params;
        let f = |v: f32| Some(f64::from(v));
        let n = |v: u32| Some(i64::from(v));
        let bias = |&[id, bits]: &[u32; 2]| match f32::from_bits(bits) {
            f32::NEG_INFINITY => json!([id, false]),
            bias => json!([id, bias]),
        };
        let m = p.mirostat.unwrap_or_default();
        let version = p.mirostat.map_or(0, |m| 1 + i64::from(m.version == MirostatVersion::V2));
        Fields {
            n_predict: Some(self.max_tokens.map_or(-1, |n| i64::try_from(n).unwrap_or(i64::MAX))),
            temperature: f(p.temperature),
            top_k: n(p.top_k),
            top_p: f(p.top_p),
            min_p: f(p.min_p),
            top_n_sigma: f(p.top_n_sigma),
            typical_p: f(p.typical_p),
            xtc_probability: f(p.xtc_probability),
            xtc_threshold: f(p.xtc_threshold),
            dynatemp_range: f(p.dynatemp_range),
            dynatemp_exponent: f(p.dynatemp_exponent),
            repeat_last_n: n(p.penalty_last_n),
            repeat_penalty: f(p.repeat_penalty),
            frequency_penalty: f(p.frequency_penalty),
            presence_penalty: f(p.presence_penalty),
            dry_multiplier: f(p.dry.multiplier),
            dry_base: f(p.dry.base),
            dry_allowed_length: n(p.dry.allowed_length),
            dry_penalty_last_n: n(p.dry.last_n),
            dry_sequence_breakers: self.dry_breakers.clone(),
            mirostat: Some(version),
            mirostat_tau: f(m.tau),
            mirostat_eta: f(m.eta),
            adaptive_target: f(p.adaptive_target),
            adaptive_decay: f(p.adaptive_decay),
            samplers: Some(p.order.iter().map(|s| s.name()).collect()),
            logit_bias: Some(p.bias_list().iter().map(bias).collect()),
            ignore_eos: Some(self.ignore_eos),
            stop: Some(OneOrMany::Many(self.stop.clone())),
            n_indent: Some(self.lines.indent as i64),
            reasoning_budget_tokens: self.budget.as_ref().map(|b| b.tokens as i64),
            reasoning_budget_message: self.budget.as_ref().map(|b| b.message.clone()),
            ..Fields::default()
        }
    }
}

/// A number that nobody can foresee, from the system's source of randomness for hash maps.
pub fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// The chain as a list of names, or as letters. `infill` only prefers whole words and is left out.
fn order(samplers: &Value) -> Result<Vec<Stage>, ApiError> {
    let wrong = |what: String| ApiError::field("samplers", format!("samplers: {what}"));
    match samplers {
        Value::String(letters) => {
            let letters: String = letters.chars().filter(|c| *c != 'i').collect();
            Stage::from_letters(&letters).map_err(|e| wrong(e.to_string()))
        }
        Value::Array(names) => {
            let names: Option<Vec<&str>> = names.iter().map(Value::as_str).collect();
            let names = names.ok_or_else(|| wrong("expected names".into()))?;
            let names: Vec<&str> = names.into_iter().filter(|n| *n != "infill").collect();
            Stage::from_names(&names.join(";")).map_err(|e| wrong(e.to_string()))
        }
        other => Err(wrong(format!("{other} is neither a list of names nor letters"))),
    }
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
        let s = sampling(json!({"samplers": "kt", "seed": 3}));
        let s = s.expect("a fair request");
        assert_eq!((&s.params.order[..], s.params.seed), (&[Stage::TopK, Stage::Temperature][..], 3));
        let s = sampling(json!({"mirostat": 2, "mirostat_tau": 3, "dry_multiplier": 0.5, "typical_p": 0.9}));
        let s = s.expect("a fair request");
        assert_eq!(s.params.mirostat.map(|m| (m.version, m.tau)), Some((MirostatVersion::V2, 3.0)));
        assert_eq!((s.params.dry.multiplier, s.params.typical_p), (0.5, 0.9));
        let s = sampling(json!({"logit_bias": {"5": 1.5, "99999999": 1}})).expect("a fair request");
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
            (json!({"mirostat": 3}), 400, Some("mirostat")),
            (json!({"min_keep": 2}), 501, Some("min_keep")),
        ] {
            let e = sampling(v.clone()).expect_err("refused");
            assert_eq!((e.status.as_u16(), e.param.as_deref()), (status, param), "{v}: {}", e.message);
        }
    }
}
