//! Rope: base, rotated part and scaling, in the two forms that configurations have had.

use firth_gguf::Value;

use crate::error::ConvertError;
use crate::json::Fields;
use crate::keys::Keys;

/// Reads `rope_parameters`, or `rope_theta` and `rope_scaling` as older configurations have them.
pub(crate) fn read(k: &mut Keys, c: Fields) -> Result<(), ConvertError> {
    let parameters = c.object("rope_parameters")?;
    // One set for each kind of layer: the families that have them read the windowed one.
    let full = match parameters {
        Some(p) => Some(p.object("full_attention")?.unwrap_or(p)),
        None => c.object("rope_scaling")?,
    };
    let of = |name: &str| match full.map(|p| p.f32(name)).transpose()?.flatten() {
        Some(v) => Ok::<_, ConvertError>(Some(v)),
        None => c.f32(name),
    };
    if let Some(base) = of("rope_theta")? {
        if base <= 0.0 {
            return Err(c.wrong("rope_theta", "above 0"));
        }
        k.set("rope.freq_base", base);
    }
    let part = of("partial_rotary_factor")?.unwrap_or(1.0);
    if let Some(p) = full.filter(|p| p.get("rope_type").is_some_and(|kind| kind == "proportional")) {
        return proportional(k, p, part);
    }
    let n_rot = (k.head_dim as f32 * part) as u32;
    if !(0.0..=1.0).contains(&part) || n_rot == 0 || !n_rot.is_multiple_of(2) {
        let expected = format!("a part of head_dim {} that is even", k.head_dim);
        return Err(full.unwrap_or(c).wrong("partial_rotary_factor", expected));
    }
    k.set("rope.dimension_count", n_rot);
    match full {
        Some(p) => scaling(k, c, p, n_rot as usize),
        None => Ok(()),
    }
}

/// Frequencies of the whole head, of which the first part turns and the rest stands still.
fn proportional(k: &mut Keys, p: Fields, part: f32) -> Result<(), ConvertError> {
    /// So slow that no context sees it move.
    const STILL: f32 = 1e30;
    let pairs = k.head_dim / 2;
    let turning = (part * k.head_dim as f32) as usize / 2;
    if !(0.0..=1.0).contains(&part) {
        return Err(p.wrong("partial_rotary_factor", "0 to 1"));
    }
    k.set("rope.dimension_count", k.head_dim as u32);
    let factor = p.f32("factor")?.unwrap_or(1.0);
    let table = (0..pairs).map(|i| if i < turning { factor } else { STILL }).collect();
    k.rope_tables.push(("rope_freqs", table));
    Ok(())
}

fn scaling(k: &mut Keys, c: Fields, p: Fields, n_rot: usize) -> Result<(), ConvertError> {
    let kind = p.str("rope_type")?.or(p.str("type")?).unwrap_or("default");
    let original = p.u32("original_max_position_embeddings")?.or(c.u32("original_max_position_embeddings")?);
    match kind {
        "default" | "mrope" | "none" => Ok(()),
        "linear" => {
            k.set("rope.scaling.type", Value::Str("linear".into()));
            k.set("rope.scaling.factor", p.require_f32("factor")?);
            Ok(())
        }
        "yarn" => {
            k.set("rope.scaling.type", Value::Str("yarn".into()));
            k.set("rope.scaling.factor", p.require_f32("factor")?);
            let original = original.or(c.u32("max_position_embeddings")?);
            k.set("rope.scaling.original_context_length", original.unwrap_or(2048));
            // What the tables are made with: other values mean another model.
            for (name, expected) in [("beta_fast", 32.0), ("beta_slow", 1.0)] {
                if p.f32(name)?.is_some_and(|v| v != expected) {
                    return Err(p.wrong(name, format!("{expected}")));
                }
            }
            match p.f32("attention_factor")? {
                // The usual one, which is what yarn has without a key.
                None => Ok(()),
                Some(found) => {
                    let factor = p.require_f32("factor")?;
                    let usual = if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 };
                    k.set("rope.scaling.attn_factor", found / usual);
                    Ok(())
                }
            }
        }
        "llama3" => {
            k.rope_tables.push(("rope_freqs", llama3(p, c, n_rot)?));
            Ok(())
        }
        "longrope" | "su" => longrope(k, c, p, n_rot, original),
        _ => Err(p.wrong("rope_type", "default, linear, yarn, llama3 or longrope")),
    }
}

/// Divisors of the frequencies: long waves are slowed by a factor, short ones are not, between them a blend.
fn llama3(p: Fields, c: Fields, n_rot: usize) -> Result<Vec<f32>, ConvertError> {
    let base = f64::from(p.f32("rope_theta")?.or(c.f32("rope_theta")?).unwrap_or(10000.0));
    let factor = f64::from(p.f32("factor")?.unwrap_or(8.0));
    let low = f64::from(p.f32("low_freq_factor")?.unwrap_or(1.0));
    let high = f64::from(p.f32("high_freq_factor")?.unwrap_or(4.0));
    let original = f64::from(p.u32("original_max_position_embeddings")?.unwrap_or(8192));
    if !(factor > 0.0 && low > 0.0 && high > low) {
        return Err(p.wrong("high_freq_factor", format!("above low_freq_factor, which is {low}")));
    }
    let divisor = |i: usize| {
        let wave = 2.0 * std::f64::consts::PI * base.powf((2 * i) as f64 / n_rot as f64);
        if wave < original / high {
            return 1.0;
        }
        if wave > original / low {
            return factor as f32;
        }
        let smooth = (original / wave - low) / (high - low);
        (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
    };
    Ok((0..n_rot / 2).map(divisor).collect())
}

fn longrope(
    k: &mut Keys,
    c: Fields,
    p: Fields,
    n_rot: usize,
    original: Option<u32>,
) -> Result<(), ConvertError> {
    let original = original.ok_or_else(|| p.wrong("original_max_position_embeddings", "a whole number"))?;
    for (field, name) in [("long_factor", "rope_factors_long"), ("short_factor", "rope_factors_short")] {
        let table = p.f32s(field)?.filter(|t| t.len() == n_rot / 2 && t.iter().all(|f| *f > 0.0));
        let table =
            table.ok_or_else(|| p.wrong(field, format!("a list of {} numbers above 0", n_rot / 2)))?;
        k.rope_tables.push((name, table));
    }
    let context = c.require_u32("max_position_embeddings")?;
    let scale = p.f32("factor")?.unwrap_or(context as f32 / original.max(1) as f32);
    let usual = if scale <= 1.0 { 1.0 } else { (1.0 + scale.ln() / (original as f32).ln()).sqrt() };
    k.set("rope.scaling.original_context_length", original);
    k.set("rope.scaling.attn_factor", p.f32("attention_factor")?.unwrap_or(usual));
    Ok(())
}
