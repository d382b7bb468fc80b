//! Nemotron-H, dense and with experts: each layer is one thing, Mamba-2, attention without positions, or a
//! feed-forward.
//!
//! Layer:  x += one(norm(x))
//! Ffn:    `down(relu(up(x))^2)`; or experts of that kind, in a latent space where the file has one, by sigmoid.
//! Source: transformers `modeling_nemotron_h.py`; GGUF keys `nemotron_h.*`, `nemotron_h_moe.*`. A layer is
//! Mamba-2 without key heads and feed-forward, attention without feed-forward.

use firth_graph::{ActKind, Gating, op};

use crate::blocks::{
    Block, Chain, Decoder, LatentMoe, Mamba2, MambaShape, Mlp, NormKind, Residual, Sum, by_keys,
};
use crate::config::{self, Config};
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entries.
pub const DENSE: Arch = Arch { name: "nemotron_h", load };
/// With experts.
pub const EXPERTS: Arch = Arch { name: "nemotron_h_moe", load };

fn load(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let shape = MambaShape::of_heads(w)?;
    let sizes = Sizes {
        experts: config::expert_width(w, &c)?,
        shared: config::optional(w, "expert_shared_feed_forward_length", 0, 1 << 24)?,
        latent: config::width_or(w, "moe_latent_size", c.width)?,
        choice: by_keys(w, &c, Gating::Sigmoid)?,
    };
    Decoder::new(w, &c, |l| {
        let block: Box<dyn Block> = match (c.hidden[l.i], c.kv_heads[l.i]) {
            (0, 0) => Box::new(Mamba2::new(l, shape)),
            (0, _) => Box::new(l.attention()),
            (hidden, _) if c.n_experts == 0 => {
                Box::new(Mlp::plain(&l.ffn, "", c.width, hidden, ActKind::ReluSquared))
            }
            _ => {
                let shared = Mlp::plain(&l.ffn, "_shexp", c.width, sizes.shared, ActKind::ReluSquared);
                let experts =
                    LatentMoe::new(l, "ffn_latent", sizes.latent, sizes.experts, ActKind::ReluSquared);
                Box::new(Sum(experts.by(l, sizes.choice), shared))
            }
        };
        Chain(vec![Box::new(Residual::pre(l.mixer.norm("attn_norm", c.width), block))])
    })
    .boxed()
}

struct Sizes {
    experts: usize,
    shared: usize,
    latent: usize,
    choice: op::Router,
}
