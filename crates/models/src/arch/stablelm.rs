//! StableLM: layer norm with SwiGLU, rope over part of the head; StableLM 2 12B with norms per head and both halves
//! over one norm.
//!
//! Layer:  x += attention(norm(x));  x += mlp(norm(x));  12B: n = norm(x);  x += attention(n) + mlp(n)
//! Rope:   half-split pairs.
//! Source: transformers `modeling_stablelm.py`; GGUF keys `stablelm.*`.

use firth_graph::{ActKind, RopePairs};

use crate::blocks::{Chain, Decoder, NormKind, QkNorm, Residual, Rope, Sum};
use crate::config::Config;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "stablelm", load };

fn load(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Layer)?;
    let rope = Rope::new(&c, RopePairs::Half);
    Decoder::new(w, &c, |l| {
        let mut attention = l.attention().rope(&rope);
        if l.mixer.has("attn_q_norm.weight") {
            attention = attention.qk_norm(QkNorm::Head(QkNorm::own_heads(l)));
        }
        let mlp = l.gated_mlp(ActKind::Silu);
        match l.ffn.has("ffn_norm.weight") {
            true => l.pre_norm(attention, mlp),
            false => {
                let norm = l.mixer.norm("attn_norm", c.width);
                Chain(vec![Box::new(Residual::pre(norm, Sum(attention, mlp)))])
            }
        }
    })
    .boxed()
}
