//! Kimi Linear: Kimi delta attention with latent attention without positions on some layers, experts.
//!
//! Layer:  x += mixer(norm(x));  x += ffn(norm(x))
//! Source: Kimi Team 2025, arXiv 2510.26692; GGUF keys `kimi-linear.*`. A layer without key heads is a delta net;
//! the query's latent that a file may carry plays no part.

use firth_graph::{Gating, op};

use crate::blocks::{
    Block, Decay, Decoder, FfnPlan, Kda, KdaShape, Mla, MlaShape, NormKind, by_keys, low_rank,
};
use crate::config::Config;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "kimi-linear", load };

fn load(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let heads = c.first_heads();
    let delta = KdaShape::read(w, heads)?;
    let latent = MlaShape { query_latent: 0, ..MlaShape::read(w, heads, c.rope.n_rot)? };
    let choice = op::Router { normalise: true, ..by_keys(w, &c, Gating::Sigmoid)? };
    let mut ffn = FfnPlan::read(w, &c, choice)?;
    ffn.shared = ffn.shared.max(ffn.expert);
    Decoder::new(w, &c, |l| {
        let mixer: Box<dyn Block> = match c.kv_heads[l.i] {
            0 => {
                let [forget, gate] = ["ssm_f", "ssm_g"].map(|n| low_rank(l, &delta, n));
                Box::new(Kda::new(l, delta, forget, gate, Decay::Softplus))
            }
            _ => Box::new(Mla::new(l, latent)),
        };
        l.pre_norm(mixer, ffn.block(l))
    })
    .boxed()
}
