//! The keys that every architecture reads.

use firth_gguf::Value;
use firth_graph::{RopePairs, op};

use crate::blocks::{NormKind, NormSpec, RopeConfig};
use crate::error::ModelError;
use crate::weights::Weights;

/// Common hyper-parameters, checked against absurd values.
#[derive(Clone, Debug)]
pub struct Config {
    /// Layers that are run.
    pub n_layers: usize,
    /// Layers in the file: those of drafting heads follow.
    pub n_blocks: usize,
    /// Hidden width.
    pub width: usize,
    /// Vocabulary, by the embedding's shape.
    pub n_vocab: usize,
    /// Declared context.
    pub context: usize,
    /// Query heads per layer.
    pub heads: Vec<usize>,
    /// Key heads per layer.
    pub kv_heads: Vec<usize>,
    /// Elements of a key.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Feed-forward width per layer.
    pub hidden: Vec<usize>,
    /// Experts, 0 for none.
    pub n_experts: usize,
    /// Experts per token.
    pub n_experts_used: usize,
    /// Groups that experts are chosen by, and how many take part; 1 and 1 for none.
    pub expert_groups: (usize, usize),
    /// Keys of rope.
    pub rope: RopeConfig,
    /// The norm that the architecture uses, with the file's epsilon.
    pub norm: NormSpec,
    /// The window of each layer; none until the architecture says so.
    pub windows: Vec<Option<usize>>,
    /// Whether a token sees those before it alone; its whole sequence otherwise, and windows reach half their size to both sides.
    pub causal: bool,
}

/// Values above these are refused before anything is allocated for them.
pub(crate) const MAX_LAYERS: usize = 512;
pub(crate) const MAX_EXTENT: usize = 1 << 24;

impl Config {
    /// Reads and checks the common keys of an architecture that normalises with `norm`.
    pub fn read(w: &Weights, norm: NormKind) -> Result<Config, ModelError> {
        let blocks = extent(w, "block_count", 1, MAX_LAYERS)?;
        let nextn = optional(w, "nextn_predict_layers", 0, MAX_LAYERS)?;
        let n_layers = blocks.checked_sub(nextn).filter(|n| *n > 0).ok_or_else(|| {
            ModelError::value(
                w.key("nextn_predict_layers"),
                nextn,
                format!("below block_count, which is {blocks}"),
            )
        })?;
        let width = extent(w, "embedding_length", 1, MAX_EXTENT)?;
        let context = extent(w, "context_length", 1, u32::MAX as usize)?;
        let heads = per_layer(w, "attention.head_count", blocks)?.unwrap_or_else(|| vec![0; blocks]);
        let kv_heads = per_layer(w, "attention.head_count_kv", blocks)?.unwrap_or_else(|| heads.clone());
        for (h, kv) in heads.iter().zip(&kv_heads) {
            if *kv > 0 && h % kv != 0 {
                let expected = format!("a divisor of head_count, which is {h}");
                return Err(ModelError::value(w.key("attention.head_count_kv"), kv, expected));
            }
        }
        // Layers without attention count no heads.
        let first = heads.iter().copied().find(|h| *h > 0).unwrap_or(0);
        let default_dim = width.checked_div(first).unwrap_or(0);
        let key_dim = optional(w, "attention.key_length", default_dim, MAX_EXTENT)?;
        let value_dim = optional(w, "attention.value_length", default_dim, MAX_EXTENT)?;
        for (name, dim) in [("attention.key_length", key_dim), ("attention.value_length", value_dim)] {
            if first > 0 && dim == 0 && w.has_key(name) {
                return Err(ModelError::value(w.key(name), dim, "1 or more where a layer has heads"));
            }
        }
        if first > 0 && (key_dim == 0 || value_dim == 0) {
            let expected = format!("at most embedding_length, which is {width}");
            return Err(ModelError::value(w.key("attention.head_count"), first, expected));
        }
        if first > 0 && !w.has_key("attention.key_length") && width % first != 0 {
            let expected = format!("a multiple of head_count, which is {first}");
            return Err(ModelError::value(w.key("embedding_length"), width, expected));
        }
        let n_experts = optional(w, "expert_count", 0, 1024)?;
        let used = per_layer(w, "expert_used_count", blocks)?.map_or(0, |v| v.into_iter().max().unwrap_or(0));
        if (n_experts == 0) != (used == 0) || used > n_experts {
            let expected = format!("between 1 and expert_count, which is {n_experts}");
            return Err(ModelError::value(w.key("expert_used_count"), used, expected));
        }
        let expert_groups = match optional(w, "expert_group_count", 0, 1024)? {
            0 | 1 => (1, 1),
            n => (n, optional(w, "expert_group_used_count", 0, n)?),
        };
        Ok(Config {
            n_layers,
            n_blocks: blocks,
            width,
            n_vocab: w.axis("token_embd.weight", 1).unwrap_or(0),
            context,
            heads,
            kv_heads,
            key_dim,
            value_dim,
            hidden: per_layer(w, "feed_forward_length", blocks)?.unwrap_or_else(|| vec![0; blocks]),
            n_experts,
            n_experts_used: used,
            expert_groups,
            rope: RopeConfig::read(w, key_dim, context)?,
            norm: NormSpec::read(w, norm)?,
            windows: vec![None; n_layers],
            causal: w.metadata().bool(&w.key("attention.causal"))?.unwrap_or(true),
        })
    }
}

impl Config {
    /// As [`Config::read`], of an architecture whose tokens always see their whole sequence.
    pub fn read_encoder(w: &Weights, norm: NormKind) -> Result<Config, ModelError> {
        Ok(Config { causal: false, ..Config::read(w, norm)? })
    }

    /// The window of layer `i`, beyond which keys are never read.
    pub fn window(&self, i: usize) -> Option<usize> {
        self.windows.get(i).copied().flatten().filter(|_| self.causal)
    }

    /// The keys that rows of layer `i` see.
    pub fn sight(&self, i: usize) -> op::Sight {
        match self.windows.get(i).copied().flatten() {
            window if self.causal => op::Sight::within(window),
            None => op::Sight::Whole,
            Some(window) => op::Sight::Near(window / 2),
        }
    }

    /// Query heads of the first layer that has any.
    pub fn first_heads(&self) -> usize {
        self.heads.iter().copied().find(|h| *h > 0).unwrap_or(0)
    }
}

/// A required count in `min..=max`.
pub fn extent(w: &Weights, name: &str, min: usize, max: usize) -> Result<usize, ModelError> {
    let key = w.key(name);
    let v = w.metadata().require_u32(&key)? as usize;
    if v < min || v > max {
        return Err(ModelError::value(key, v, format!("{min} to {max}")));
    }
    Ok(v)
}

/// A count of at most `max`, `default` when the key is absent.
pub fn optional(w: &Weights, name: &str, default: usize, max: usize) -> Result<usize, ModelError> {
    let key = w.key(name);
    let v = w.metadata().u32(&key)?.map_or(default, |v| v as usize);
    if v > max {
        return Err(ModelError::value(key, v, format!("at most {max}")));
    }
    Ok(v)
}

/// A finite number, `default` when the key is absent.
pub fn float(w: &Weights, name: &str, default: f32) -> Result<f64, ModelError> {
    let key = w.key(name);
    let v = w.metadata().f32(&key)?.unwrap_or(default);
    if !v.is_finite() {
        return Err(ModelError::value(key, v, "a finite number"));
    }
    Ok(f64::from(v))
}

/// A finite number above 0.
pub fn positive(w: &Weights, name: &str, default: f32) -> Result<f64, ModelError> {
    match float(w, name, default)? {
        v if v > 0.0 => Ok(v),
        v => Err(ModelError::value(w.key(name), v, "above 0")),
    }
}

/// The pairing of rope: `plain`, or half-split where the file lays heads out for the sections of images.
pub fn sections(w: &Weights, plain: RopePairs) -> Result<RopePairs, ModelError> {
    let sections = w.metadata().i32s(&w.key("rope.dimension_sections"))?.unwrap_or_default();
    let on = sections.len() >= 2 && sections[..2].iter().all(|n| *n > 0);
    Ok(if on { RopePairs::Half } else { plain })
}

/// A number for each of `n` layers, 0 where the key is absent.
pub fn per_layer_f32(w: &Weights, name: &str, n: usize) -> Result<Vec<f32>, ModelError> {
    Ok(w.metadata().f32_per_layer(&w.key(name), n)?.unwrap_or_else(|| vec![0.0; n]))
}

/// The limits of each layer's experts and of its shared expert, 0 for none: `swiglu_clamp_exp`, and `swiglu_clamp_shexp` or the
/// same again.
pub fn clamps(w: &Weights, c: &Config) -> Result<[Vec<f32>; 2], ModelError> {
    let experts = per_layer_f32(w, "swiglu_clamp_exp", c.n_blocks)?;
    let shared = match w.has_key("swiglu_clamp_shexp") {
        true => per_layer_f32(w, "swiglu_clamp_shexp", c.n_blocks)?,
        false => experts.clone(),
    };
    Ok([experts, shared])
}

/// A width that is `default` where the key is absent or 0.
pub fn width_or(w: &Weights, name: &str, default: usize) -> Result<usize, ModelError> {
    Ok(match optional(w, name, 0, MAX_EXTENT)? {
        0 => default,
        n => n,
    })
}

/// The width of an expert: `expert_feed_forward_length`, or the feed-forward's shared out over those used.
pub fn expert_width(w: &Weights, c: &Config) -> Result<usize, ModelError> {
    let found = per_layer(w, "expert_feed_forward_length", c.n_blocks)?.unwrap_or_default();
    let found = found.into_iter().find(|n| *n > 0);
    Ok(found.unwrap_or(c.hidden[0] / c.n_experts_used.max(1)))
}

/// A flag for each of `n` layers: a scalar counts for all, an array must have `n` entries.
pub fn flags(w: &Weights, name: &str, n: usize) -> Result<Option<Vec<bool>>, ModelError> {
    let key = w.key(name);
    if let Some(Value::Bool(all)) = w.metadata().get(&key) {
        return Ok(Some(vec![*all; n]));
    }
    Ok(w.metadata().u32_per_layer(&key, n)?.map(|v| v.into_iter().map(|f| f != 0).collect()))
}

/// Which layers are recurrent: `attention.recurrent_layers`, or all but every `full_attention_interval`-th.
pub fn recurrent_layers(w: &Weights, c: &Config, interval: usize) -> Result<Vec<bool>, ModelError> {
    if let Some(flags) = flags(w, "attention.recurrent_layers", c.n_blocks)? {
        return Ok(flags);
    }
    let interval = optional(w, "full_attention_interval", interval, MAX_LAYERS)?;
    Ok((0..c.n_blocks).map(|i| i < c.n_layers && (interval == 0 || (i + 1) % interval != 0)).collect())
}

/// `chooses`, which layers choose the keys that they read, if the first of those that read chosen keys (`sparse`) does.
pub fn first_chooses(
    w: &Weights,
    c: &Config,
    chooses: Vec<bool>,
    sparse: impl Fn(usize) -> bool,
) -> Result<Vec<bool>, ModelError> {
    match (0..c.n_layers).find(|i| sparse(*i)) {
        Some(i) if !chooses[i] => {
            let expected = format!("1 for layer {i}, the first that reads chosen keys");
            Err(ModelError::value(w.key("attention.indexer.types"), 0, expected))
        }
        _ => Ok(chooses),
    }
}

/// No windows.
pub fn windows_off(_: &Weights, n_layers: usize) -> Result<Vec<Option<usize>>, ModelError> {
    Ok(vec![None; n_layers])
}

/// The window of each layer: an array says which layers have one, a number (or `period`) that every n-th has
/// none. No window where the size is 0, or absent and without a default.
pub fn windows(
    w: &Weights,
    n_layers: usize,
    size: Option<usize>,
    period: usize,
) -> Result<Vec<Option<usize>>, ModelError> {
    windows_by(w, n_layers, size, period, |i, period| period == 0 || i % period < period - 1)
}

/// As [`windows`], where the first layer of a period has none.
pub fn windows_but_first(
    w: &Weights,
    n_layers: usize,
    size: Option<usize>,
    period: usize,
) -> Result<Vec<Option<usize>>, ModelError> {
    windows_by(w, n_layers, size, period, |i, period| period == 0 || i % period != 0)
}

fn windows_by(
    w: &Weights,
    n_layers: usize,
    size: Option<usize>,
    period: usize,
    on: impl Fn(usize, usize) -> bool,
) -> Result<Vec<Option<usize>>, ModelError> {
    let size = optional(w, "attention.sliding_window", size.unwrap_or(0), u32::MAX as usize)?;
    if size == 0 {
        return Ok(vec![None; n_layers]);
    }
    let name = "attention.sliding_window_pattern";
    let windowed: Vec<bool> = match flags_of_array(w, name, n_layers)? {
        Some(flags) => flags,
        None => {
            let period = optional(w, name, period, u32::MAX as usize)?;
            (0..n_layers).map(|i| on(i, period)).collect()
        }
    };
    Ok(windowed.into_iter().map(|on| on.then_some(size)).collect())
}

/// A flag for each of `n` layers, false beyond the array; `None` where the key is absent or no array.
pub fn flags_of_array(w: &Weights, name: &str, n: usize) -> Result<Option<Vec<bool>>, ModelError> {
    let key = w.key(name);
    let Some(Value::Array(_)) = w.metadata().get(&key) else { return Ok(None) };
    let flags = w.metadata().i32s(&key)?.unwrap_or_default();
    Ok(Some((0..n).map(|i| flags.get(i).is_some_and(|f| *f != 0)).collect()))
}

fn per_layer(w: &Weights, name: &str, n: usize) -> Result<Option<Vec<usize>>, ModelError> {
    let key = w.key(name);
    let Some(v) = w.metadata().u32_per_layer(&key, n)? else { return Ok(None) };
    if let Some(v) = v.iter().find(|v| **v as usize > MAX_EXTENT) {
        return Err(ModelError::value(key, v, format!("at most {MAX_EXTENT}")));
    }
    Ok(Some(v.into_iter().map(|v| v as usize).collect()))
}

#[cfg(test)]
mod tests {
    use firth_gguf::{Gguf, Writer};

    use super::*;

    /// What becomes of a sound set of keys when one of them is changed, or left out.
    fn read(key: &str, value: Option<Value>) -> Result<Config, ModelError> {
        let mut writer = Writer::new();
        let sound = [
            ("block_count", 2),
            ("context_length", 256),
            ("embedding_length", 64),
            ("feed_forward_length", 96),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 2),
        ];
        let m = writer.metadata_mut();
        m.insert("t.attention.layer_norm_rms_epsilon", Value::F32(1e-5));
        for (name, v) in sound {
            if name != key || value.is_some() {
                m.insert(format!("t.{name}").as_str(), Value::U32(v));
            }
        }
        if let Some(v) = value {
            m.insert(format!("t.{key}").as_str(), v);
        }
        let mut bytes = Vec::new();
        writer.write_to(&mut bytes).expect("memory takes bytes");
        let file = Gguf::from_bytes(bytes, "test").expect("what was written can be read");
        Config::read(&Weights::new(&file, "t"), NormKind::Rms)
    }

    #[test]
    fn the_first_layer_that_reads_chosen_keys_chooses() {
        let c = read("", Some(Value::U32(0))).expect("sound keys");
        let mut bytes = Vec::new();
        Writer::new().write_to(&mut bytes).expect("memory takes bytes");
        let file = Gguf::from_bytes(bytes, "test").expect("what was written can be read");
        let w = Weights::new(&file, "t");
        let taken = |chooses: &[bool], sparse: fn(usize) -> bool| {
            first_chooses(&w, &c, chooses.to_vec(), sparse).is_ok()
        };
        assert!(taken(&[true, false], |_| true) && taken(&[false, true], |i| i == 1));
        assert!(taken(&[false, false], |_| false));
        assert!(!taken(&[false, true], |_| true) && !taken(&[true, false], |i| i == 1));
    }

    #[track_caller]
    fn refused(key: &str, value: Value, expected: &str) {
        let shown = format!("{key} = {value:?}");
        let e = read(key, Some(value)).err().unwrap_or_else(|| panic!("{shown} is taken")).to_string();
        assert!(e.contains(&format!("`t.{key}`")) && e.contains(expected), "{shown}: {e}");
    }

    #[test]
    fn absurd_keys_are_refused_by_name() {
        let c = read("", Some(Value::U32(0))).expect("sound keys");
        assert_eq!((c.n_layers, c.width, c.key_dim, &c.kv_heads[..]), (2, 64, 16, &[2, 2][..]));
        for n in [0, 513, 1 << 31, u32::MAX] {
            refused("block_count", Value::U32(n), "expected 1 to 512");
        }
        refused("embedding_length", Value::U32(0), "expected 1 to");
        refused("embedding_length", Value::U32(66), "expected a multiple of head_count, which is 4");
        refused("context_length", Value::U32(0), "expected 1 to");
        refused("attention.head_count", Value::U32(u32::MAX), "expected at most");
        refused("attention.head_count_kv", Value::U32(3), "expected a divisor of head_count, which is 4");
        refused("attention.head_count", Value::U32(128), "expected at most embedding_length, which is 64");
        refused("attention.head_count", Value::Str("4".into()), "string");
        refused("attention.key_length", Value::U32(0), "expected 1 or more");
        refused("attention.value_length", Value::U32(0), "expected 1 or more");
        refused("nextn_predict_layers", Value::U32(2), "expected below block_count, which is 2");
        refused("expert_used_count", Value::U32(2), "expected between 1 and expert_count, which is 0");
        refused("attention.layer_norm_rms_epsilon", Value::F32(f32::NAN), "is NaN");
        for missing in ["block_count", "embedding_length", "context_length"] {
            let e =
                read(missing, None).err().unwrap_or_else(|| panic!("{missing} is not missed")).to_string();
            assert!(e.contains(&format!("`t.{missing}` is missing")), "{e}");
        }
    }
}
