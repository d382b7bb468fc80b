//! AFMoE (Trinity): gated attention with norms of heads, windows, norms before and after each half, experts.
//!
//! Layer:  x += norm(attention(norm(x)));  x += norm(ffn(norm(x)))
//! Rope:   half-split pairs, none on every fourth layer.
//! Source: arcee-ai `modeling_afmoe.py`; GGUF keys `afmoe.*`.

use firth_graph::{Gating, RopePairs};

use crate::blocks::{Decoder, FfnPlan, Gate, Gated, NormKind, QkNorm, Rope, by_keys};
use crate::config::{self, Config};
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "afmoe", load };

fn load(w: &Weights) -> Loaded {
    let mut c = Config::read(w, NormKind::Rms)?;
    c.windows = config::windows(w, c.n_layers, None, 4)?;
    let full = Rope::new(&c, RopePairs::Half);
    let mut windowed = full.clone();
    windowed.config.base = config::positive(w, "rope.freq_base_swa", c.rope.base as f32)?;
    let plan = FfnPlan::read(w, &c, by_keys(w, &c, Gating::Sigmoid)?)?;
    let mut model = Decoder::new(w, &c, |l| {
        let rope = if c.windows[l.i].is_some() { &windowed } else { &full };
        let mut attention = l.attention().qk_norm(QkNorm::Head(QkNorm::heads(l)));
        attention.rope = ((l.i + 1) % 4 != 0).then(|| rope.clone());
        let rows = l.mixer.linear("attn_gate", c.width, c.value_dim * c.heads[l.i]);
        attention.gate = Gated::Own(Box::new(Gate::sigmoid(rows)));
        l.sandwich(attention, plan.block(l))
    });
    model.embed.scale = (c.width as f32).sqrt();
    model.boxed()
}
