//! Qwen 2 and 3 with experts on every layer, and OLMoE and Mellum beside them.
//!
//! Layer:  x += attention(norm(x));  x += experts(norm(x))
//! Rope:   half-split pairs over the whole head.
//! Source: transformers `modeling_qwen2_moe.py`, `modeling_qwen3_moe.py`, `modeling_olmoe.py`; GGUF keys by name.

use firth_graph::{ActKind, RopePairs};

use crate::blocks::{Decoder, Moe, NormKind, QkNorm, Rope, Shared, Sum, softmax};
use crate::config::{self, Config};
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Qwen 1.5 and 2: weights as softmax gives them, a gated shared expert.
pub const QWEN2: Arch = Arch { name: "qwen2moe", load: qwen2 };
/// Qwen 3: norms of heads, weights made to sum to 1.
pub const QWEN3: Arch = Arch { name: "qwen3moe", load: |w| qwen3(w, config::windows_off) };
/// Qwen3-VL's text: the sections of images are one for text.
pub const QWEN3VL: Arch = Arch { name: "qwen3vlmoe", load: |w| qwen3(w, config::windows_off) };
/// Mellum: windows on some layers, whose rope is unscaled.
pub const MELLUM: Arch = Arch { name: "mellum", load: |w| qwen3(w, |w, n| config::windows(w, n, None, 4)) };
/// OLMoE: norms of all heads together, weights as softmax gives them.
pub const OLMOE: Arch = Arch { name: "olmoe", load: olmoe };

fn qwen2(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let rope = Rope::new(&c, RopePairs::Half);
    let hidden = config::expert_width(w, &c)?;
    let shared = config::width_or(w, "expert_shared_feed_forward_length", c.hidden[0])?;
    Decoder::new(w, &c, |l| {
        let moe = Moe::new(l, hidden, ActKind::Silu, softmax(&c, false));
        let shared = Shared::new(l, shared, ActKind::Silu).gated(l);
        l.pre_norm(l.attention().rope(&rope), Sum(moe, shared))
    })
    .boxed()
}

type Windows = fn(&Weights, usize) -> Result<Vec<Option<usize>>, crate::ModelError>;

fn qwen3(w: &Weights, windows: Windows) -> Loaded {
    let mut c = Config::read(w, NormKind::Rms)?;
    c.windows = windows(w, c.n_layers)?;
    let full = Rope::new(&c, RopePairs::Half);
    let windowed = full.unscaled(c.rope.base);
    let hidden = config::expert_width(w, &c)?;
    Decoder::new(w, &c, |l| {
        let rope = if c.windows[l.i].is_some() { &windowed } else { &full };
        let attention = l.attention().qk_norm(QkNorm::Head(QkNorm::heads(l))).rope(rope);
        l.pre_norm(attention, Moe::new(l, hidden, ActKind::Silu, softmax(&c, true)))
    })
    .boxed()
}

fn olmoe(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let rope = Rope::new(&c, RopePairs::Half);
    Decoder::new(w, &c, |l| {
        let attention = l.attention().qk_norm(QkNorm::Row(QkNorm::rows(l))).rope(&rope);
        l.pre_norm(attention, Moe::new(l, c.hidden[l.i], ActKind::Silu, softmax(&c, false)))
    })
    .boxed()
}
