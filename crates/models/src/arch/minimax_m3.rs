//! MiniMax M3: norms of heads, SwiGLU of gpt-oss throughout, first layers dense, the others with experts.
//!
//! Layer:  x += attention(norm(x));  x += ffn(norm(x))
//! Rope:   half-split pairs over part of the head.
//! Source: GGUF keys `minimax-m3.*`. Its layers with experts read the best blocks of keys, as many as
//! `attention.indexer.top_k`, which within the context that those blocks cover is all keys. Attention is dense here, so the
//! model's context ends there.

use firth_graph::{Gating, RopePairs};

use crate::blocks::{Decoder, FfnPlan, Glu, NormKind, QkNorm, Rope, by_keys};
use crate::config::{self, Config};
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "minimax-m3", load };

fn load(w: &Weights) -> Loaded {
    let mut c = Config::read(w, NormKind::Rms)?;
    let size = |name: &str| config::extent(w, &format!("attention.indexer.{name}"), 1, 1 << 24);
    let covered = size("top_k")?.saturating_mul(size("block_size")?);
    c.context = c.context.min(covered);
    let rope = Rope::new(&c, RopePairs::Half);
    let glu = Glu::Oai(7.0);
    let plan = FfnPlan { glu, dense_glu: glu, ..FfnPlan::read(w, &c, by_keys(w, &c, Gating::Sigmoid)?)? };
    Decoder::new(w, &c, |l| {
        l.pre_norm(l.attention().qk_norm(QkNorm::Head(QkNorm::heads(l))).rope(&rope), plan.block(l))
    })
    .boxed()
}
