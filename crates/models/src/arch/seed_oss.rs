//! Seed-OSS: a llama with half-split rope whose second norm is called `post_attention_norm`.
//!
//! Layer:  x += attention(norm(x));  x += mlp(norm(x))
//! Source: transformers `modeling_seed_oss.py`; GGUF keys `seed_oss.*`.

use firth_graph::{ActKind, RopePairs};

use crate::blocks::{Decoder, NormKind, Rope};
use crate::config::Config;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "seed_oss", load };

fn load(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let rope = Rope::new(&c, RopePairs::Half);
    Decoder::new(w, &c, |l| {
        let attention = l.attention().rope(&rope);
        l.pre_norm_named("post_attention_norm", attention, l.gated_mlp(ActKind::Silu))
    })
    .boxed()
}
