//! Spark 2.5: attention gated by head, windows, GeGLU; layers may differ in heads.
//!
//! Layer:  x += attention(norm(x));  x += mlp(norm(x))
//! Rope:   half-split pairs; windowed layers turn their own number of elements from their own base, unscaled.
//! Source: GGUF keys `spark2_5.*`.

use firth_graph::{ActKind, RopePairs};

use crate::blocks::{Decoder, Gate, Gated, NormKind, Rope};
use crate::config::{self, Config};
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "spark2_5", load };

fn load(w: &Weights) -> Loaded {
    let mut c = Config::read(w, NormKind::Rms)?;
    c.windows = config::windows(w, c.n_layers, None, 1)?;
    let full = Rope::new(&c, RopePairs::Half);
    let mut windowed = full.unscaled(config::positive(w, "rope.freq_base_swa", c.rope.base as f32)?);
    windowed.config.n_rot = config::optional(w, "rope.dimension_count_swa", c.rope.n_rot, c.key_dim)?;
    Decoder::new(w, &c, |l| {
        let rope = if c.windows[l.i].is_some() { &windowed } else { &full };
        let mut attention = l.attention().rope(rope);
        let rows = l.mixer.linear("attn_gate", c.width, c.heads[l.i]);
        attention.gate = Gated::Own(Box::new(Gate::sigmoid(rows)));
        l.pre_norm(attention, l.gated_mlp(ActKind::GeluTanh))
    })
    .boxed()
}
