//! Ministral 3 and Mistral's own format: llama whose queries grow with their position, dense or with experts.
//!
//! Layer:  x += attention(norm(x));  x += mlp(norm(x)) or experts(norm(x))
//! Rope:   adjacent pairs, YaRN with its own bounds and a multiplier of its temperature.
//! Source: transformers `modeling_ministral3.py`; GGUF keys `mistral3.*`.

use firth_graph::{ActKind, RopePairs};

use crate::blocks::{Decoder, Moe, NormKind, Rope, Temperature, softmax};
use crate::config::{self, Config};
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "mistral3", load };

fn load(w: &Weights) -> Loaded {
    let mut c = Config::read(w, NormKind::Rms)?;
    c.rope.beta_fast = config::positive(w, "rope.scaling.yarn_beta_fast", 32.0)?;
    c.rope.beta_slow = config::positive(w, "rope.scaling.yarn_beta_slow", 1.0)?;
    c.rope.log_multiplier = config::float(w, "rope.scaling.yarn_log_multiplier", 0.0)?;
    let scale = config::float(w, "attention.temperature_scale", 0.0)? as f32;
    let temperature = Temperature::new(scale, c.rope.original_context, 0);
    let rope = Rope::new(&c, RopePairs::Adjacent).factors(w);
    Decoder::new(w, &c, |l| {
        let mut attention = l.attention().rope(&rope);
        attention.temperature = temperature;
        match c.n_experts {
            0 => l.pre_norm(attention, l.gated_mlp(ActKind::Silu)),
            _ => l.pre_norm(attention, Moe::new(l, c.hidden[l.i], ActKind::Silu, softmax(&c, true))),
        }
    })
    .boxed()
}
