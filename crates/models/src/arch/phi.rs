//! Phi 2, 3, 3.5 and 4, and Phi-3.5-MoE.
//!
//! Layer:  Phi 2: n = norm(x);  x += attention(n) + mlp(n).  Later: x += attention(norm(x));  x += ffn(norm(x))
//! Rope:   half-split pairs over part of the head (Phi 2), or with longrope's lists.
//! Source: transformers `modeling_phi.py`, `modeling_phi3.py`, `modeling_phimoe.py`; GGUF keys `phi2.*`, `phi3.*`,
//! `phimoe.*`. Phi 3's window is not used; Phi-3.5-MoE's own choice of experts (SparseMixer) is plain top-k here, as it
//! is in other engines.

use firth_graph::{ActKind, RopePairs};

use crate::blocks::{Chain, Decoder, Mlp, Moe, NormKind, Residual, Rope, Sum, softmax};
use crate::config::Config;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Phi 2.
pub const SECOND: Arch = Arch { name: "phi2", load: second };
/// Phi 3 and later.
pub const THIRD: Arch = Arch { name: "phi3", load: third };
/// With experts.
pub const EXPERTS: Arch = Arch { name: "phimoe", load: third };

fn second(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Layer)?;
    let rope = Rope::new(&c, RopePairs::Half);
    Decoder::new(w, &c, |l| {
        let mlp = Mlp::plain(&l.ffn, "", c.width, c.hidden[l.i], ActKind::GeluTanh);
        let both = Sum(l.attention().rope(&rope), mlp);
        Chain(vec![Box::new(Residual::pre(l.mixer.norm("attn_norm", c.width), both))])
    })
    .boxed()
}

fn third(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let rope = Rope::new(&c, RopePairs::Half).long_factors(w);
    Decoder::new(w, &c, |l| {
        let (attention, hidden) = (l.attention().rope(&rope), c.hidden[l.i]);
        match c.n_experts {
            0 => l.pre_norm(attention, Mlp::merged(&l.ffn, "", c.width, hidden, ActKind::Silu)),
            _ => l.pre_norm(attention, Moe::new(l, hidden, ActKind::Silu, softmax(&c, true))),
        }
    })
    .boxed()
}
