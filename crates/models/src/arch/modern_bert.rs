//! ModernBERT: an encoder with norms before each half, rope and a gated feed-forward; of three layers one sees its whole
//! sequence, the others a window to both sides.
//!
//! Layer:  x += attention(norm(x));  x += mlp(norm(x)); the first layer has no norm before its attention
//! Rope:   half-split pairs; windowed layers have a base of their own.
//! Source: transformers `modeling_modernbert.py`; GGUF keys `modern-bert.*`. No biases. GELU is the exact one, as there;
//! llama.cpp has the approximation by tanh.

use firth_graph::{ActKind, Part, RopePairs};

use crate::blocks::{Chain, Decoder, Embedding, Head, Layer, Mlp, Norm, NormKind, Residual, Rope};
use crate::config::{self, Config};
use crate::error::ModelError;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "modern-bert", load };

fn load(w: &Weights) -> Loaded {
    let decisions = config::optional(w, "decision.block_count", 0, config::MAX_LAYERS)?;
    if decisions > 0 {
        let expected = "0: heads that decide are not known";
        return Err(ModelError::value(w.key("decision.block_count"), decisions, expected));
    }
    let mut c = Config::read_encoder(w, NormKind::Layer)?;
    c.windows = config::windows_but_first(w, c.n_layers, None, 3)?;
    let full = Rope::new(&c, RopePairs::Half);
    let near = full.unscaled(config::positive(w, "rope.freq_base_swa", 10000.0)?);
    let act = activation(w)?;
    let norm = Norm::new(w, "token_embd_norm", &[c.width], c.norm, Part::Embedding);
    let embed = Embedding { norm: Some(norm), ..Embedding::new(w, &c) };
    let head = Head::new(w, &c, &embed);
    Decoder::with(w, &c, embed, head, |l| layer(l, if c.windows[l.i].is_some() { &near } else { &full }, act))
        .encoder()
}

fn activation(w: &Weights) -> Result<ActKind, ModelError> {
    let key = w.key("hidden_activation");
    match w.metadata().str(&key)?.unwrap_or("gelu") {
        "gelu" => Ok(ActKind::GeluErf),
        "silu" => Ok(ActKind::Silu),
        found => Err(ModelError::value(key, found, "gelu or silu")),
    }
}

fn layer(l: &Layer, rope: &Rope, act: ActKind) -> Chain {
    let (width, hidden) = (l.c.width, l.c.hidden[l.i]);
    let attention = l.attention().rope(rope);
    let attention = match l.mixer.has("attn_norm.weight") {
        true => Residual::pre(l.mixer.norm("attn_norm", width), attention),
        false => Residual::plain(attention),
    };
    let mlp = Mlp::merged(&l.ffn, "", width, hidden, act);
    Chain::of(attention, Residual::pre(l.ffn.norm("ffn_norm", width), mlp))
}
