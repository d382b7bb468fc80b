//! Llama: dense decoder, and Mixtral's mixture of experts under the same name. Also carries Yi, Mistral to 3.x,
//! SmolLM 1 and 2, TinyLlama.
//!
//! Layer:  x += attention(norm(x));  x += mlp(norm(x)) or experts(norm(x))
//! Rope:   adjacent pairs over the whole head, frequency factors from `rope_freqs` or longrope's tables.
//! Source: Touvron et al. 2023; GGUF keys `llama.*`.

use firth_graph::{ActKind, RopePairs};

use crate::blocks::{Decoder, Moe, NormKind, Rope, softmax};
use crate::config::Config;
use crate::error::ModelError;
use crate::registry::Arch;
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "llama", load: |w| decoder(w, Config::read(w, NormKind::Rms)?)?.boxed() };
/// The same where every token sees its whole sequence, as an embedding model.
pub const EMBED: Arch =
    Arch { name: "llama-embed", load: |w| decoder(w, Config::read_encoder(w, NormKind::Rms)?)?.encoder() };

fn decoder(w: &Weights, c: Config) -> Result<Decoder, ModelError> {
    if c.rope.n_rot != c.key_dim || c.key_dim != c.value_dim {
        let expected = format!("the head size {} (value size {})", c.key_dim, c.value_dim);
        return Err(ModelError::value(w.key("rope.dimension_count"), c.rope.n_rot, expected));
    }
    let rope = Rope::new(&c, RopePairs::Adjacent).factors(w);
    Ok(Decoder::new(w, &c, |l| {
        let attention = l.attention().rope(&rope);
        match c.n_experts {
            0 => l.pre_norm(attention, l.gated_mlp(ActKind::Silu)),
            _ => l.pre_norm(attention, Moe::new(l, c.hidden[l.i], ActKind::Silu, softmax(l.c, true))),
        }
    }))
}
