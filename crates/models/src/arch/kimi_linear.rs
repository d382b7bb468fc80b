//! Kimi Linear: Kimi delta attention with latent attention without positions on some layers, experts.
//!
//! Layer:  x += mixer(norm(x));  x += ffn(norm(x))
//! Source: Kimi Team 2025, arXiv 2510.26692; GGUF keys `kimi-linear.*`. A layer without key heads is a delta net;
//! the query's latent that a file may carry plays no part.

use firth_graph::{ActKind, Gating, op};

use crate::blocks::{
    Block, Chain, Decay, Decoder, Kda, KdaShape, Layer, Mla, MlaShape, Moe, NormKind, by_keys,
};
use crate::config::{self, Config};
use crate::error::ModelError;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "kimi-linear", load };

fn load(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let heads = c.first_heads();
    let delta = KdaShape::read(w, heads)?;
    let latent = MlaShape { query_latent: 0, ..MlaShape::read(w, heads, c.rope.n_rot)? };
    let sizes = Sizes::read(w, &c)?;
    let choice = op::Router { normalise: true, ..by_keys(w, &c, Gating::Sigmoid)? };
    Decoder::new(w, &c, |l| {
        let mixer: Box<dyn Block> = match c.kv_heads[l.i] {
            0 => {
                let low_rank = |name: &str| {
                    let half = |half, n_in, n_out| l.mixer.linear(&format!("{name}_{half}"), n_in, n_out);
                    Chain::of(half("a", c.width, delta.dim), half("b", delta.dim, delta.inner()))
                };
                Box::new(Kda::new(l, delta, low_rank("ssm_f"), low_rank("ssm_g"), Decay::Softplus))
            }
            _ => Box::new(Mla::new(l, latent)),
        };
        let ffn: Box<dyn Block> = match l.i < sizes.dense {
            true => Box::new(l.gated_mlp(ActKind::Silu)),
            false => sizes.experts(l, choice),
        };
        l.pre_norm(mixer, ffn)
    })
    .boxed()
}

/// Sizes of the feed-forward.
pub(super) struct Sizes {
    /// Layers with one feed-forward, before those with experts.
    pub dense: usize,
    /// Width of an expert.
    pub expert: usize,
    /// Width of the shared expert.
    pub shared: usize,
}

impl Sizes {
    /// Of the keys, the shared expert as wide as `expert_shared_count` experts, at least one.
    pub(super) fn read(w: &Weights, c: &Config) -> Result<Self, ModelError> {
        let expert = config::expert_width(w, c)?;
        let shared = config::optional(w, "expert_shared_count", 0, 1024)?.max(1);
        let dense = config::optional(w, "leading_dense_block_count", 0, config::MAX_LAYERS)?;
        Ok(Sizes { dense, expert, shared: expert * shared })
    }

    /// Experts by `choice` with the file's bias, and the shared expert.
    fn experts(&self, l: &Layer, choice: op::Router) -> Box<dyn Block> {
        Moe::new(l, self.expert, ActKind::Silu, choice).biased(l).shared(l, self.shared, ActKind::Silu)
    }
}
