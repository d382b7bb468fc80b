//! Sampling defaults: the file's, else firth's.

use firth_gguf::Metadata;
use firth_sampling::Params;

use crate::error::Error;

/// The file's `general.sampling.*`, else temperature 0.8, top-k 40, top-p 0.95, min-p 0.05.
pub fn sampling_defaults(m: &Metadata) -> Result<Params, Error> {
    let mut p = Params::default();
    let float = |name: &str, old: f32| -> Result<f32, Error> {
        Ok(m.f32(&format!("general.sampling.{name}"))?.filter(|v| v.is_finite()).unwrap_or(old))
    };
    p.temperature = float("temp", p.temperature)?.max(0.0);
    p.top_p = float("top_p", p.top_p)?;
    p.min_p = float("min_p", p.min_p)?;
    p.repeat_penalty = float("penalty_repeat", p.repeat_penalty)?;
    if let Some(k) = m.i32("general.sampling.top_k")? {
        p.top_k = k.max(0) as u32;
    }
    if let Some(n) = m.i32("general.sampling.penalty_last_n")? {
        p.penalty_last_n = n.max(0) as u32;
    }
    Ok(p)
}
