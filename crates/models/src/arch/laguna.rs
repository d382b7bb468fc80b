//! Laguna: gated attention with norms of heads, windows on three layers of four, experts.
//!
//! Layer:  x += attention(norm(x));  x += ffn(norm(x))
//! Rope:   half-split pairs; windowed layers turn their own number of elements from their own base, unscaled.
//! Source: GGUF keys `laguna.*`. The gate is the softplus of one number a head, or one an element.

use firth_graph::{ActKind, Gating, RopePairs};

use crate::blocks::{Decoder, FfnPlan, Gate, Gated, NormKind, QkNorm, Rope, by_keys};
use crate::config::{self, Config};
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "laguna", load };

fn load(w: &Weights) -> Loaded {
    let mut c = Config::read(w, NormKind::Rms)?;
    c.windows = config::windows_but_first(w, c.n_layers, None, 4)?;
    let full = Rope::new(&c, RopePairs::Half);
    let mut windowed = full.unscaled(config::positive(w, "rope.freq_base_swa", c.rope.base as f32)?);
    windowed.config.n_rot = config::optional(w, "rope.dimension_count_swa", c.rope.n_rot, c.key_dim)?;
    let mut plan = FfnPlan::read(w, &c, by_keys(w, &c, Gating::Sigmoid)?)?;
    plan.shared = config::width_or(w, "expert_shared_feed_forward_length", plan.shared.max(plan.expert))?;
    Decoder::new(w, &c, |l| {
        let rope = if c.windows[l.i].is_some() { &windowed } else { &full };
        let mut attention = l.attention().qk_norm(QkNorm::Head(QkNorm::heads(l))).rope(rope);
        let heads = c.heads[l.i];
        let rows = match w.axis(&l.mixer.name("attn_gate.weight"), 1) {
            Some(n) if n == heads => heads,
            _ => c.value_dim * heads,
        };
        let gate = Gate::new(l.mixer.linear("attn_gate", c.width, rows), ActKind::Softplus);
        attention.gate = Gated::Own(Box::new(gate));
        l.pre_norm(attention, plan.block(l))
    })
    .boxed()
}
