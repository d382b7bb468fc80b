//! The keys that every architecture reads.

use firth_graph::{RopeSpec, Yarn};

use crate::error::ModelError;
use crate::weights::Weights;

/// Common hyper-parameters, checked against absurd values.
#[derive(Clone, Debug)]
pub struct Config {
    /// Layers that are run.
    pub n_layers: usize,
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
    /// Scaling of rope.
    pub rope: RopeConfig,
}

/// Keys of rope.
#[derive(Clone, Debug)]
pub struct RopeConfig {
    /// Rotated elements of a head.
    pub n_rot: usize,
    /// Base of the frequencies.
    pub base: f64,
    /// `none`, `linear`, `yarn` or `longrope`.
    pub scaling: String,
    /// Factor of the angles, 1 for none.
    pub freq_scale: f64,
    /// Magnitude multiplier.
    pub attn_factor: f64,
    /// Context before scaling.
    pub original_context: usize,
}

/// Values above these are refused before anything is allocated for them.
const MAX_LAYERS: usize = 512;
const MAX_EXTENT: usize = 1 << 24;

impl Config {
    /// Reads and checks the common keys.
    pub fn read(w: &Weights) -> Result<Config, ModelError> {
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
        if heads[0] == 0 {
            return Err(ModelError::value(w.key("attention.head_count"), 0, "at least 1"));
        }
        for (h, kv) in heads.iter().zip(&kv_heads) {
            if *h > 0 && (*kv == 0 || h % kv != 0) {
                let expected = format!("a divisor of head_count, which is {h}");
                return Err(ModelError::value(w.key("attention.head_count_kv"), kv, expected));
            }
        }
        let default_dim = width / heads[0];
        let key_dim = optional(w, "attention.key_length", default_dim, MAX_EXTENT)?;
        let value_dim = optional(w, "attention.value_length", default_dim, MAX_EXTENT)?;
        if key_dim == 0 || value_dim == 0 {
            let expected = format!("at most embedding_length, which is {width}");
            return Err(ModelError::value(w.key("attention.head_count"), heads[0], expected));
        }
        if w.metadata().get(&w.key("attention.key_length")).is_none() && width % heads[0] != 0 {
            let expected = format!("a multiple of head_count, which is {}", heads[0]);
            return Err(ModelError::value(w.key("embedding_length"), width, expected));
        }
        let n_experts = optional(w, "expert_count", 0, 1024)?;
        let used = per_layer(w, "expert_used_count", blocks)?.map_or(0, |v| v[0]);
        if (n_experts == 0) != (used == 0) || used > n_experts {
            let expected = format!("between 1 and expert_count, which is {n_experts}");
            return Err(ModelError::value(w.key("expert_used_count"), used, expected));
        }
        Ok(Config {
            n_layers,
            width,
            n_vocab: w.axis("token_embd.weight", 1).unwrap_or(0),
            context,
            heads: heads[..n_layers].to_vec(),
            kv_heads: kv_heads[..n_layers].to_vec(),
            key_dim,
            value_dim,
            hidden: per_layer(w, "feed_forward_length", blocks)?.unwrap_or_else(|| vec![0; blocks]),
            n_experts,
            n_experts_used: used,
            rope: RopeConfig::read(w, key_dim, context)?,
        })
    }

    /// The epsilon that RMS norms of the architecture use.
    pub fn rms_eps(w: &Weights) -> Result<f32, ModelError> {
        let key = w.key("attention.layer_norm_rms_epsilon");
        let eps = w.metadata().require_f32(&key)?;
        if eps.is_finite() && eps >= 0.0 {
            Ok(eps)
        } else {
            Err(ModelError::value(key, eps, "finite and not negative"))
        }
    }
}

impl RopeConfig {
    fn read(w: &Weights, key_dim: usize, context: usize) -> Result<RopeConfig, ModelError> {
        let n_rot = optional(w, "rope.dimension_count", key_dim, MAX_EXTENT)?;
        if n_rot > key_dim || n_rot % 2 != 0 {
            let expected = format!("even and at most key_length, which is {key_dim}");
            return Err(ModelError::value(w.key("rope.dimension_count"), n_rot, expected));
        }
        let base = positive(w, "rope.freq_base", 10000.0)?;
        let scaling = w.metadata().str(&w.key("rope.scaling.type"))?.unwrap_or("linear").to_string();
        if !["none", "linear", "yarn", "longrope"].contains(&scaling.as_str()) {
            return Err(ModelError::value(
                w.key("rope.scaling.type"),
                scaling,
                "none, linear, yarn or longrope",
            ));
        }
        let factor = match float(w, "rope.scaling.factor", 0.0)? {
            0.0 => float(w, "rope.scale_linear", 0.0)?,
            f => f,
        };
        let freq_scale = if factor == 0.0 || scaling == "none" { 1.0 } else { 1.0 / factor };
        if !(freq_scale.is_finite() && freq_scale > 0.0) {
            return Err(ModelError::value(w.key("rope.scaling.factor"), factor, "0 or above"));
        }
        Ok(RopeConfig {
            n_rot,
            base,
            scaling,
            freq_scale,
            attn_factor: positive(w, "rope.scaling.attn_factor", 1.0)?,
            original_context: optional(
                w,
                "rope.scaling.original_context_length",
                context,
                u32::MAX as usize,
            )?,
        })
    }

    /// The table's specification for `ctx` positions, with the file's scaling.
    pub fn spec(&self, ctx: usize, factors: &[f32]) -> RopeSpec {
        let mut spec = RopeSpec::new(self.n_rot, self.base, ctx);
        spec.freq_scale = self.freq_scale;
        spec.factors = factors.to_vec();
        spec.magnitude = self.attn_factor;
        if self.scaling == "yarn" {
            spec.yarn =
                Some(Yarn { original_context: self.original_context, beta_fast: 32.0, beta_slow: 1.0 });
            if self.freq_scale < 1.0 {
                // Logits grow with the square of 1 + 0.1 ln(factor), YaRN's temperature.
                let ln = firth_graph::math::log2(1.0 / self.freq_scale) * std::f64::consts::LN_2;
                spec.magnitude *= 1.0 + 0.1 * ln;
            }
        }
        spec
    }

    /// An unscaled table.
    pub fn plain(&self, base: f64, ctx: usize) -> RopeSpec {
        RopeSpec::new(self.n_rot, base, ctx)
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

fn per_layer(w: &Weights, name: &str, n: usize) -> Result<Option<Vec<usize>>, ModelError> {
    let key = w.key(name);
    let Some(v) = w.metadata().u32_per_layer(&key, n)? else { return Ok(None) };
    if let Some(v) = v.iter().find(|v| **v as usize > MAX_EXTENT) {
        return Err(ModelError::value(key, v, format!("at most {MAX_EXTENT}")));
    }
    Ok(Some(v.into_iter().map(|v| v as usize).collect()))
}
