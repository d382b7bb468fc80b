//! DBRX and OLMo 1: layer norm without bias (OLMo: without weight too), clamped queries, keys and values.
//!
//! Layer:  x += attention(norm(x));  x += ffn(norm(x))
//! Rope:   half-split pairs (DBRX), adjacent (OLMo).
//! Source: transformers `modeling_dbrx.py`, `modeling_olmo.py`; GGUF keys `dbrx.*`, `olmo.*`. DBRX's second norm is called
//! `attn_output_norm`.

use firth_graph::{ActKind, RopePairs};

use crate::blocks::{
    Attention, Chain, Decoder, Embedding, Head, Layer, Moe, Norm, NormKind, Residual, Rope, softmax,
};
use crate::config::{self, Config};
use crate::error::ModelError;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// DBRX.
pub const DBRX: Arch = Arch { name: "dbrx", load: dbrx };
/// OLMo.
pub const OLMO: Arch = Arch { name: "olmo", load: olmo };

fn dbrx(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Layer)?;
    let (rope, clamp) = (Rope::new(&c, RopePairs::Half), clamp(w)?);
    Decoder::new(w, &c, |l| {
        let moe = Moe::new(l, c.hidden[l.i], ActKind::Silu, softmax(&c, true));
        l.pre_norm_named("attn_output_norm", clamped(l, &rope, clamp), moe)
    })
    .boxed()
}

fn olmo(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Layer)?;
    let (rope, clamp) = (Rope::new(&c, RopePairs::Adjacent), clamp(w)?);
    let embed = Embedding::new(w, &c);
    let head = Head { norm: Some(Norm::bare(c.norm)), ..Head::bare(w, &c, &embed) };
    Decoder::with(w, &c, embed, head, |l| {
        let [first, second] = [0; 2].map(|_| Norm::bare(c.norm));
        Chain::of(
            Residual::pre(first, clamped(l, &rope, clamp)),
            Residual::pre(second, l.gated_mlp(ActKind::Silu)),
        )
    })
    .boxed()
}

/// `attention.clamp_kqv`, 0 for none.
pub(super) fn clamp(w: &Weights) -> Result<f32, ModelError> {
    Ok(config::float(w, "attention.clamp_kqv", 0.0)?.max(0.0) as f32)
}

fn clamped(l: &Layer, rope: &Rope, clamp: f32) -> Attention {
    Attention { clamp, ..l.attention().rope(rope) }
}
