//! DeepSeek 2, 3 and R1 (also Kimi K2, GLM-4.7-Flash and others), and Mistral Small 4: latent attention, first layers
//! dense, the others with experts and a shared one.
//!
//! Layer:  x += attention(norm(x));  x += ffn(norm(x))
//! Rope:   adjacent pairs of the part that has positions; with YaRN the scores are scaled too.
//! Source: DeepSeek-AI 2024, arXiv 2405.04434 and 2412.19437; transformers `modeling_deepseek_v3.py`; GGUF keys
//! `deepseek2.*`, `mistral4.*`. Files with `attn_kv_b` in place of `attn_k_b` and `attn_v_b` predate the split and are
//! refused by the tensors they lack.

use firth_graph::{Gating, RopePairs};

use crate::blocks::{Decoder, FfnPlan, Layer, Mla, MlaShape, NextN, NormKind, Rope, Temperature, by_keys};
use crate::config::{self, Config};
use crate::error::ModelError;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// DeepSeek.
pub const DEEPSEEK: Arch = Arch { name: "deepseek2", load: |w| load(w, |_| 1.0) };
/// Mistral: rope's magnitude keeps the quotient of both temperatures.
pub const MISTRAL: Arch = Arch { name: "mistral4", load: |w| load(w, |m| m) };

fn load(w: &Weights, magnitude: fn(f64) -> f64) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let shape = MlaShape::read(w, c.first_heads(), c.rope.n_rot)?;
    let (rope, scale) = scaled(w, &c, magnitude)?;
    let temperature = temperature(w)?;
    // Two models of these sizes do not say how they choose.
    let unsaid = matches!(c.n_layers, 47 | 48) && c.n_vocab == 154_880;
    let default = if unsaid { Gating::Sigmoid } else { Gating::Softmax };
    let ffn = FfnPlan::read(w, &c, by_keys(w, &c, default)?)?;
    let attention = |l: &Layer| {
        let mut mla = Mla::new(l, shape).rope(&rope);
        mla.scores.scale *= scale;
        mla.temperature = temperature;
        mla
    };
    let decoder = Decoder::new(w, &c, |l| l.pre_norm(attention(l), ffn.block(l)));
    if !NextN::present(w, &c) {
        return decoder.boxed();
    }
    let head = |l: &Layer, trunk: &Decoder| NextN::new(l, trunk, "ffn_norm", attention(l), ffn.block(l));
    decoder.draft(w, &c, c.width, head).boxed()
}

/// Rope, and the factor of the scores that belongs to YaRN: the square of what it lets queries and keys grow by.
pub(super) fn scaled(w: &Weights, c: &Config, magnitude: fn(f64) -> f64) -> Result<(Rope, f32), ModelError> {
    let mut rope = Rope::new(c, RopePairs::Adjacent);
    let multiplier = config::float(w, "rope.scaling.yarn_log_multiplier", 0.0)? / 0.1;
    if rope.config.scaling != "yarn" {
        return Ok((rope, 1.0));
    }
    if multiplier != 0.0 {
        rope.config.log_multiplier = magnitude(multiplier);
    }
    let grown = rope.config.magnitude() * rope.config.temperature(multiplier);
    Ok((rope, (grown * grown) as f32))
}

/// `attention.temperature_scale` and `attention.temperature_length`.
fn temperature(w: &Weights) -> Result<Option<Temperature>, ModelError> {
    let scale = config::float(w, "attention.temperature_scale", 0.0)? as f32;
    let length = config::optional(w, "attention.temperature_length", 0, u32::MAX as usize)?;
    Ok(Temperature::new(scale, length, 0))
}
