//! Arctic: a dense decoder with experts beside each layer, which see what enters the layer.
//!
//! Layer:  y = x + attention(norm(x));  x = y + mlp(norm(y)) + experts(norm(x))
//! Rope:   adjacent pairs.
//! Source: Snowflake `modeling_arctic.py`; GGUF keys `arctic.*`. The dense feed-forward is as wide as the model.

use firth_graph::{ActKind, RopePairs};

use crate::blocks::{Chain, Decoder, Mlp, Moe, NormKind, Rope, Sum, softmax};
use crate::config::Config;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "arctic", load };

fn load(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let rope = Rope::new(&c, RopePairs::Adjacent);
    Decoder::new(w, &c, |l| {
        let mlp = Mlp::gated(&l.ffn, "", c.width, c.width, ActKind::Silu);
        let moe = Moe::new(l, c.hidden[l.i], ActKind::Silu, softmax(&c, true));
        let dense = l.pre_norm(l.attention().rope(&rope), mlp);
        let experts = Chain::of(l.ffn.norm("ffn_norm_exps", c.width), moe);
        Chain(vec![Box::new(Sum(dense, experts))])
    })
    .boxed()
}
