//! Gemma 1 and 2: GeGLU, embeddings scaled by the root of the width, the head tied; Gemma 2 with norms before and
//! after each half, windows on every other layer, and capped scores and logits.
//!
//! Layer:  x += attention(norm(x));  x += mlp(norm(x));  in Gemma 2 each half normed again before it is added
//! Rope:   half-split pairs over the whole head.
//! Source: transformers `modeling_gemma.py`, `modeling_gemma2.py`; GGUF keys `gemma.*`, `gemma2.*`. The converter
//! has added 1 to norm weights.

use firth_graph::{ActKind, RopePairs};

use crate::blocks::{Decoder, NormKind, Rope};
use crate::config::{self, Config};
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Gemma.
pub const FIRST: Arch = Arch { name: "gemma", load: first };
/// Gemma 2.
pub const SECOND: Arch = Arch { name: "gemma2", load: second };

fn first(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let rope = Rope::new(&c, RopePairs::Half);
    let mut model =
        Decoder::new(w, &c, |l| l.pre_norm(l.attention().rope(&rope), l.gated_mlp(ActKind::GeluTanh)));
    model.embed.scale = (c.width as f32).sqrt();
    model.boxed()
}

fn second(w: &Weights) -> Loaded {
    let mut c = Config::read(w, NormKind::Rms)?;
    c.windows = config::windows(w, c.n_layers, Some(4096), 2)?;
    let full = Rope::new(&c, RopePairs::Half);
    let mut windowed = full.clone();
    windowed.config.base = config::positive(w, "rope.freq_base_swa", c.rope.base as f32)?;
    let cap = |name: &str, default| config::float(w, name, default).map(|c| c.max(0.0) as f32);
    let (scores, logits) = (cap("attn_logit_softcapping", 50.0)?, cap("final_logit_softcapping", 30.0)?);
    // The 27B model scales by the width per head instead of the head's size.
    let scale_of = if c.n_layers == 46 { c.width / c.first_heads().max(1) } else { c.key_dim };
    let mut model = Decoder::new(w, &c, |l| {
        let rope = if c.windows[l.i].is_some() { &windowed } else { &full };
        let mut attention = l.attention().rope(rope);
        attention.scores.scale = 1.0 / (scale_of as f32).sqrt();
        attention.scores.softcap = scores;
        l.sandwich(attention, l.gated_mlp(ActKind::GeluTanh))
    });
    model.embed.scale = (c.width as f32).sqrt();
    model.head.softcap = logits;
    model.boxed()
}
