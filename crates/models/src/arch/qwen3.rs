//! Qwen3: dense decoder with RMS norm on each head's query and key.
//!
//! Layer:  x += attention(norm(x));  x += mlp(norm(x))
//! Rope:   half-split pairs over the whole head.
//! Source: transformers `modeling_qwen3.py`; GGUF keys `qwen3.*`.

use firth_graph::{ActKind, RopePairs};

use crate::blocks::{Decoder, Embedding, Head, NormKind, QkNorm, Rope};
use crate::config::Config;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entries.
pub const ARCH: Arch = Arch { name: "qwen3", load };
/// Qwen3-VL's text: the sections of images are one for text.
pub const VISION: Arch = Arch { name: "qwen3vl", load };

fn load(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let embed = Embedding::new(w, &c);
    let head = Head::new(w, &c, &embed);
    decoder(w, &c, embed, head).boxed()
}

pub(super) fn decoder(w: &Weights, c: &Config, embed: Embedding, head: Head) -> Decoder {
    let rope = Rope::new(c, RopePairs::Half);
    Decoder::with(w, c, embed, head, |l| {
        let attention = l.attention().qk_norm(QkNorm::Head(QkNorm::heads(l))).rope(&rope);
        l.pre_norm(attention, l.gated_mlp(ActKind::Silu))
    })
}
