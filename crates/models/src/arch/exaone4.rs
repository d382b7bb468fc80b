//! EXAONE 4: norms behind each half, norms of heads, and in the 32B windows with rope on windowed layers alone.
//!
//! Layer:  x += norm(attention(x));  x += norm(mlp(x))
//! Rope:   half-split pairs with `rope_freqs`.
//! Source: transformers `modeling_exaone4.py`; GGUF keys `exaone4.*`.

use firth_graph::{ActKind, RopePairs};

use crate::blocks::{Decoder, NormKind, QkNorm, Rope};
use crate::config::{self, Config};
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "exaone4", load };

fn load(w: &Weights) -> Loaded {
    let mut c = Config::read(w, NormKind::Rms)?;
    // The small model's files carry the window of the large one.
    let windowed = c.n_layers == 64;
    if windowed {
        c.windows = config::windows(w, c.n_layers, Some(4096), 4)?;
    }
    let rope = Rope::new(&c, RopePairs::Half).factors(w);
    Decoder::new(w, &c, |l| {
        let mut attention = l.attention().qk_norm(QkNorm::Head(QkNorm::heads(l)));
        attention.rope = (!windowed || c.windows[l.i].is_some()).then(|| rope.clone());
        l.post_norm(attention, l.gated_mlp(ActKind::Silu))
    })
    .boxed()
}
