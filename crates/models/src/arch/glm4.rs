//! ChatGLM 3, GLM-4 and GLM-4-0414: merged gate and up, rope over half of the head; GLM-4-0414 with norms before and
//! after each half.
//!
//! Layer:  x += attention(norm(x));  x += mlp(norm(x))
//! Rope:   adjacent pairs; half-split where the file has sections of images, which are one for text.
//! Source: THUDM `modeling_chatglm.py`, transformers `modeling_glm4.py`; GGUF keys `chatglm.*`, `glm4.*`.

use firth_graph::{ActKind, RopePairs};

use crate::blocks::{Decoder, Mlp, NormKind, Rope};
use crate::config::{self, Config};
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// ChatGLM 3 and the first GLM-4.
pub const CHATGLM: Arch = Arch { name: "chatglm", load: |w| load(w, false) };
/// GLM-4-0414.
pub const GLM4: Arch = Arch { name: "glm4", load: |w| load(w, true) };

fn load(w: &Weights, sandwich: bool) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let rope = Rope::new(&c, config::sections(w, RopePairs::Adjacent)?);
    Decoder::new(w, &c, |l| {
        let attention = l.attention().rope(&rope);
        let mlp = Mlp::merged(&l.ffn, "", c.width, c.hidden[l.i], ActKind::Silu);
        if sandwich { l.sandwich(attention, mlp) } else { l.pre_norm(attention, mlp) }
    })
    .boxed()
}
