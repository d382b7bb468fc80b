//! Sampling defaults: the file's, else firth's.

use firth_gguf::Metadata;
use firth_sampling::{Mirostat, MirostatVersion, Params, Stage};

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
    p.xtc_probability = float("xtc_probability", p.xtc_probability)?;
    p.xtc_threshold = float("xtc_threshold", p.xtc_threshold)?;
    let mirostat = Mirostat::default();
    let version = match m.i32("general.sampling.mirostat")? {
        Some(1) => Some(MirostatVersion::V1),
        Some(2) => Some(MirostatVersion::V2),
        _ => None,
    };
    let tau = float("mirostat_tau", mirostat.tau)?;
    let eta = float("mirostat_eta", mirostat.eta)?;
    p.mirostat = version.map(|version| Mirostat { version, tau, eta });
    // A file's list may name stages of programs yet to come: then firth's own order stands.
    if let Some(order) = m.str("general.sampling.sequence")?
        && let Ok(order) = Stage::from_names(order)
    {
        p.order = order;
    }
    if let Some(k) = m.i32("general.sampling.top_k")? {
        p.top_k = k.max(0) as u32;
    }
    if let Some(n) = m.i32("general.sampling.penalty_last_n")? {
        p.penalty_last_n = n.max(0) as u32;
    }
    Ok(p)
}
