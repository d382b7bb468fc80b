//! OLMo 2 and 3: norms behind each half instead of before it, and of all queries and keys of a row together.
//!
//! Layer:  x += norm(attention(x));  x += norm(mlp(x))
//! Rope:   half-split pairs; windowed layers unscaled.
//! Source: transformers `modeling_olmo2.py`, `modeling_olmo3.py`; GGUF keys `olmo2.*`.

use firth_graph::{ActKind, RopePairs};

use crate::blocks::{Decoder, NormKind, QkNorm, Rope};
use crate::config::{self, Config};
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "olmo2", load };

fn load(w: &Weights) -> Loaded {
    let mut c = Config::read(w, NormKind::Rms)?;
    c.windows = config::windows(w, c.n_layers, None, 4)?;
    let full = Rope::new(&c, RopePairs::Half);
    let windowed = full.unscaled(c.rope.base);
    Decoder::new(w, &c, |l| {
        let rope = if c.windows[l.i].is_some() { &windowed } else { &full };
        let attention = l.attention().qk_norm(QkNorm::Row(QkNorm::rows(l))).rope(rope);
        l.post_norm(attention, l.gated_mlp(ActKind::Silu))
    })
    .boxed()
}
