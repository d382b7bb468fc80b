//! SmolLM 3: llama without rope on every fourth layer.
//!
//! Layer:  x += attention(norm(x));  x += mlp(norm(x))
//! Source: transformers `modeling_smollm3.py`; GGUF keys `smollm3.*`.

use firth_graph::{ActKind, RopePairs};

use crate::blocks::{Decoder, NormKind, Rope};
use crate::config::Config;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "smollm3", load };

fn load(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let rope = Rope::new(&c, RopePairs::Adjacent);
    Decoder::new(w, &c, |l| {
        let mut attention = l.attention();
        attention.rope = ((l.i + 1) % 4 != 0).then(|| rope.clone());
        l.pre_norm(attention, l.gated_mlp(ActKind::Silu))
    })
    .boxed()
}
