//! Sampling as the file and the command line say.

use anyhow::Result;
use firth::{DRY_BREAKERS, Mirostat, MirostatVersion, Model, Params, Stage, dry_breakers};

use crate::args::Sampling;

/// The file's parameters, changed by what was given.
pub fn params(model: &Model, s: &Sampling) -> Result<Params> {
    let mut p = model.default_params()?;
    p.temperature = s.temp.unwrap_or(p.temperature);
    p.top_k = s.top_k.unwrap_or(p.top_k);
    p.top_p = s.top_p.unwrap_or(p.top_p);
    p.min_p = s.min_p.unwrap_or(p.min_p);
    p.repeat_penalty = s.repeat_penalty.unwrap_or(p.repeat_penalty);
    p.frequency_penalty = s.frequency_penalty.unwrap_or(p.frequency_penalty);
    p.presence_penalty = s.presence_penalty.unwrap_or(p.presence_penalty);
    p.penalty_last_n = s.repeat_last_n.unwrap_or(p.penalty_last_n);
    p.typical_p = s.typical.unwrap_or(p.typical_p);
    p.top_n_sigma = s.top_nsigma.unwrap_or(p.top_n_sigma);
    p.xtc_probability = s.xtc_probability.unwrap_or(p.xtc_probability);
    p.xtc_threshold = s.xtc_threshold.unwrap_or(p.xtc_threshold);
    p.dynatemp_range = s.dynatemp_range.unwrap_or(p.dynatemp_range);
    p.dynatemp_exponent = s.dynatemp_exp.unwrap_or(p.dynatemp_exponent);
    p.adaptive_target = s.adaptive_target.unwrap_or(p.adaptive_target);
    p.adaptive_decay = s.adaptive_decay.unwrap_or(p.adaptive_decay);
    p.seed = s.seed.unwrap_or_else(random_seed);
    p.mirostat = mirostat(p.mirostat, s);
    if let Some(names) = &s.samplers {
        p.order = Stage::from_names(names)?;
    }
    if let Some(letters) = &s.sampler_seq {
        p.order = Stage::from_letters(letters)?;
    }
    dry(&mut p, model, s);
    if p.needs_host() {
        tracing::info!("the samplers that were asked for run on the host");
    }
    Ok(p)
}

fn mirostat(file: Option<Mirostat>, s: &Sampling) -> Option<Mirostat> {
    let version = match s.mirostat {
        Some(1) => Some(MirostatVersion::V1),
        Some(2) => Some(MirostatVersion::V2),
        Some(_) => None,
        None => file.map(|m| m.version),
    };
    let m = file.unwrap_or_default();
    let (tau, eta) = (s.mirostat_ent.unwrap_or(m.tau), s.mirostat_lr.unwrap_or(m.eta));
    version.map(|version| Mirostat { version, tau, eta })
}

fn dry(p: &mut Params, model: &Model, s: &Sampling) {
    let d = &mut p.dry;
    d.multiplier = s.dry_multiplier.unwrap_or(d.multiplier);
    d.base = s.dry_base.unwrap_or(d.base);
    d.allowed_length = s.dry_allowed_length.unwrap_or(d.allowed_length);
    d.last_n = s.dry_penalty_last_n.unwrap_or(d.last_n);
    if d.is_on() {
        let breakers = match &s.dry_sequence_breaker[..] {
            [] => dry_breakers(model.vocab(), &DRY_BREAKERS),
            [none] if none == "none" => Default::default(),
            given => dry_breakers(model.vocab(), given),
        };
        d.breakers = breakers.into();
    }
}

/// A seed from the system's own source of randomness for hash maps.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}
