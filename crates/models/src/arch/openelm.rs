//! OpenELM: a llama with norms of heads whose layers differ in heads and width.
//!
//! Layer:  x += attention(norm(x));  x += mlp(norm(x))
//! Rope:   half-split pairs.
//! Source: apple `modeling_openelm.py`; GGUF keys `openelm.*`.

use firth_graph::{ActKind, RopePairs};

use crate::blocks::{Decoder, NormKind, QkNorm, Rope};
use crate::config::Config;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "openelm", load };

fn load(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let rope = Rope::new(&c, RopePairs::Half);
    Decoder::new(w, &c, |l| {
        let attention = l.attention().qk_norm(QkNorm::Head(QkNorm::heads(l))).rope(&rope);
        l.pre_norm(attention, l.gated_mlp(ActKind::Silu))
    })
    .boxed()
}
