//! llama-server's own shapes: `/completion` and its relatives.

use firth::Params;
use serde_json::{Value, json};

/// `generation_settings`, as far as they are of the sampler.
pub fn settings(p: &Params) -> Value {
    let f = |v: f32| f64::from(v);
    json!({
        "seed": p.seed,
        "temperature": f(p.temperature),
        "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0,
        "top_k": p.top_k,
        "top_p": f(p.top_p),
        "min_p": f(p.min_p),
        "top_n_sigma": -1.0,
        "xtc_probability": 0.0,
        "xtc_threshold": f(0.1),
        "typical_p": 1.0,
        "repeat_last_n": p.penalty_last_n,
        "repeat_penalty": f(p.repeat_penalty),
        "presence_penalty": f(p.presence_penalty),
        "frequency_penalty": f(p.frequency_penalty),
        "dry_multiplier": 0.0,
        "mirostat": 0,
        "adaptive_target": -1.0,
        "samplers": ["penalties", "top_k", "top_p", "min_p", "temperature"],
        "backend_sampling": true,
    })
}
