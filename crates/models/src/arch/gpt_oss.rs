//! gpt-oss: attention with sinks, windows on every other layer, experts with biases and a clamped unit.
//!
//! Layer:  x += attention(norm(x));  x += experts(norm(x))
//! Rope:   half-split pairs with YaRN, the same on both kinds of layer.
//! Source: transformers `modeling_gpt_oss.py`; GGUF keys `gpt-oss.*`. A head is as large as what is turned; the second
//! norm is called `post_attention_norm`.

use firth_graph::{Gating, RopePairs};

use crate::blocks::{Decoder, Glu, Moe, NormKind, Rope, by};
use crate::config::{self, Config};
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "gpt-oss", load };

fn load(w: &Weights) -> Loaded {
    let mut c = Config::read(w, NormKind::Rms)?;
    (c.key_dim, c.value_dim) = (c.rope.n_rot, c.rope.n_rot);
    c.windows = config::windows(w, c.n_layers, None, 2)?;
    let full = Rope::new(&c, RopePairs::Half);
    let mut windowed = full.clone();
    windowed.config.base = config::positive(w, "rope.freq_base_swa", c.rope.base as f32)?;
    let hidden = config::expert_width(w, &c)?;
    Decoder::new(w, &c, |l| {
        let rope = if c.windows[l.i].is_some() { &windowed } else { &full };
        let mut attention = l.attention().rope(rope);
        attention.sinks = Some(l.mixer.table("attn_sinks.weight", &[c.heads[l.i]]));
        let moe = Moe::new(l, hidden, Glu::Oai(7.0), by(&c, Gating::SoftmaxOfChosen, false));
        l.pre_norm_named("post_attention_norm", attention, moe)
    })
    .boxed()
}
