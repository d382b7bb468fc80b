//! Falcon-H1: attention and Mamba-2 side by side in every layer.
//!
//! Layer:  n = norm(x);  x += attention(n) + mamba2(n);  x += mlp(norm(x))
//! Rope:   half-split pairs.
//! Source: transformers `modeling_falcon_h1.py`; GGUF keys `falcon-h1.*`. The converter has folded all multipliers
//! into weights; the second norm's tensor has no suffix, and the bias of the output projection plays no part.

use firth_graph::{ActKind, RopePairs};

use crate::blocks::{Chain, Decoder, Mamba2, MambaShape, Norm, NormKind, Residual, Rope, Sum};
use crate::config::Config;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "falcon-h1", load };

fn load(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let shape = MambaShape::of_heads(w)?;
    let rope = Rope::new(&c, RopePairs::Half);
    Decoder::new(w, &c, |l| {
        let mut attention = l.attention().rope(&rope);
        attention.out = attention.out.unbiased();
        let mixer = Sum(attention, Mamba2::new(l, shape));
        let second = Norm::of(l.ffn.table("ffn_norm", &[c.width]), c.norm);
        Chain::of(
            Residual::pre(l.mixer.norm("attn_norm", c.width), mixer),
            Residual::pre(second, l.gated_mlp(ActKind::Silu)),
        )
    })
    .boxed()
}
