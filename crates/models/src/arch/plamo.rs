//! PLaMo 1: both halves side by side over one norm; PLaMo 3: norms before and after each half, and windows.
//!
//! Layer:  PLaMo 1: n = norm(x);  x += attention(n) + mlp(n).  PLaMo 3: x += norm(attention(norm(x)));  x += norm(mlp(norm(x)))
//! Rope:   half-split pairs; windowed layers of PLaMo 3 have a base of their own and no scaling.
//! Source: pfnet `modeling_plamo.py`, `modeling_plamo3.py`; GGUF keys `plamo.*`, `plamo3.*`. The norms behind PLaMo 3's
//! halves have no suffix.

use firth_graph::{ActKind, RopePairs};

use crate::blocks::{Chain, Decoder, Mlp, Norm, NormKind, QkNorm, Residual, Rope, Sum};
use crate::config::{self, Config};
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// PLaMo 1.
pub const FIRST: Arch = Arch { name: "plamo", load: first };
/// PLaMo 3.
pub const THIRD: Arch = Arch { name: "plamo3", load: third };

fn first(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let rope = Rope::new(&c, RopePairs::Half);
    Decoder::new(w, &c, |l| {
        let both = Sum(l.attention().rope(&rope), l.gated_mlp(ActKind::Silu));
        Chain(vec![Box::new(Residual::pre(l.mixer.norm("attn_norm", c.width), both))])
    })
    .boxed()
}

fn third(w: &Weights) -> Loaded {
    let mut c = Config::read(w, NormKind::Rms)?;
    c.windows = config::windows(w, c.n_layers, None, 8)?;
    let full = Rope::new(&c, RopePairs::Half);
    let windowed = full.unscaled(config::positive(w, "rope.freq_base_swa", 10000.0)?);
    Decoder::new(w, &c, |l| {
        let rope = if c.windows[l.i].is_some() { &windowed } else { &full };
        let attention = l.attention().qk_norm(QkNorm::Head(QkNorm::heads(l))).rope(rope);
        let mlp = Mlp::merged(&l.ffn, "", c.width, c.hidden[l.i], ActKind::Silu);
        let behind = |name: &str| Norm::of(l.mixer.table(name, &[c.width]), c.norm);
        Chain::of(
            Residual::pre(l.mixer.norm("attn_norm", c.width), attention).post(behind("post_attention_norm")),
            Residual::pre(l.ffn.norm("ffn_norm", c.width), mlp).post(behind("post_ffw_norm")),
        )
    })
    .boxed()
}
