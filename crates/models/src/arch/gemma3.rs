//! Gemma 3: dense decoder with norms before and after each half, GeGLU, and windows on five layers of six.
//!
//! Layer:  x += norm(attention(norm(x)));  x += norm(mlp(norm(x)))
//! Rope:   half-split pairs; windowed layers have a base of their own and no scaling.
//! Source: transformers `modeling_gemma3.py`; GGUF keys `gemma3.*`. The converter has added 1 to norm weights.
//! EmbeddingGemma (`gemma-embedding.*`) is the same without logits; its tokens see what comes after them, too, in windows half a
//! window's size to both sides.

use firth_graph::{ActKind, RopePairs};

use crate::blocks::{Decoder, NormKind, QkNorm, Rope};
use crate::config::{self, Config};
use crate::error::ModelError;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "gemma3", load };

/// EmbeddingGemma.
pub const EMBEDDING: Arch = Arch { name: "gemma-embedding", load: embedding };

fn load(w: &Weights) -> Loaded {
    decoder(w, Config::read(w, NormKind::Rms)?)?.boxed()
}

fn embedding(w: &Weights) -> Loaded {
    decoder(w, Config::read_encoder(w, NormKind::Rms)?)?.encoder()
}

fn decoder(w: &Weights, mut c: Config) -> Result<Decoder, ModelError> {
    c.windows = config::windows(w, c.n_layers, None, 6)?;
    let full = Rope::new(&c, RopePairs::Half);
    let windowed = full.unscaled(config::positive(w, "rope.freq_base_swa", 10000.0)?);
    // The 27B model scales by the width per head instead of the head's size.
    let scale_of = if c.n_layers == 62 { c.width / c.heads[0].max(1) } else { c.key_dim };
    let softcap = config::float(w, "final_logit_softcapping", 0.0)?.max(0.0) as f32;
    let mut model = Decoder::new(w, &c, |l| {
        let rope = if c.windows[l.i].is_some() { &windowed } else { &full };
        let mut attention = l.attention().qk_norm(QkNorm::Head(QkNorm::heads(l))).rope(rope);
        attention.scores.scale = 1.0 / (scale_of as f32).sqrt();
        l.sandwich(attention, l.gated_mlp(ActKind::GeluTanh))
    });
    model.embed.scale = (c.width as f32).sqrt();
    model.head.softcap = softcap;
    Ok(model)
}
