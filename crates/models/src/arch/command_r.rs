//! Command R, R+ and R7B: both halves side by side over one layer norm without bias.
//!
//! Layer:  n = norm(x);  x += attention(n) + mlp(n)
//! Rope:   adjacent pairs; in R7B on windowed layers alone, the others know no positions.
//! Source: transformers `modeling_cohere.py`, `modeling_cohere2.py`; GGUF keys `command-r.*`, `cohere2.*`.

use firth_graph::{ActKind, RopePairs};

use crate::blocks::{Attention, Chain, Decoder, Layer, NormKind, QkNorm, Residual, Rope, Sum};
use crate::config::{self, Config};
use crate::error::ModelError;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Command R and R+, which norms heads where it has 64 layers.
pub const COMMAND_R: Arch = Arch { name: "command-r", load: command_r };
/// Command R7B and A.
pub const COHERE2: Arch = Arch { name: "cohere2", load: cohere2 };

fn command_r(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Layer)?;
    let rope = Rope::new(&c, RopePairs::Adjacent);
    model(w, &c, |l| {
        let attention = l.attention().rope(&rope);
        match c.n_layers >= 64 {
            true => attention.qk_norm(QkNorm::Head(QkNorm::own_heads(l))),
            false => attention,
        }
    })
}

fn cohere2(w: &Weights) -> Loaded {
    let mut c = Config::read(w, NormKind::Layer)?;
    c.windows = config::windows(w, c.n_layers, None, 4)?;
    let rope = Rope::new(&c, RopePairs::Adjacent);
    model(w, &c, |l| Attention { rope: c.windows[l.i].map(|_| rope.clone()), ..l.attention() })
}

fn model(w: &Weights, c: &Config, attention: impl Fn(&Layer) -> Attention) -> Loaded {
    let mut model = Decoder::new(w, c, |l| {
        let both = Sum(attention(l), l.gated_mlp(ActKind::Silu));
        Chain(vec![Box::new(Residual::pre(l.mixer.norm("attn_norm", c.width), both))])
    });
    model.head.scale = logit_scale(w)?;
    model.boxed()
}

/// `logit_scale`, 1 where it is absent or 0.
pub(super) fn logit_scale(w: &Weights) -> Result<f32, ModelError> {
    Ok(match config::float(w, "logit_scale", 0.0)? as f32 {
        0.0 => 1.0,
        s => s,
    })
}
