//! Jamba: Mamba with attention on some layers and experts on some.
//!
//! Layer:  x += mixer(norm(x));  x += ffn(norm(x))
//! Mixer:  Mamba with norms of step, input and output; or attention without positions, where the layer has key
//!         heads.
//! Source: transformers `modeling_jamba.py`; GGUF keys `jamba.*`. Experts where the layer has a router.

use firth_graph::ActKind;

use crate::blocks::{Block, Decoder, InputNorms, Layer, Mamba, MambaShape, Moe, NormKind, softmax};
use crate::config::Config;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "jamba", load };

fn load(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let shape = MambaShape::read(w)?;
    Decoder::new(w, &c, |l| {
        let mixer: Box<dyn Block> = match c.kv_heads[l.i] {
            0 => Box::new(Mamba::new(l, shape, norms(l, &shape))),
            _ => Box::new(l.attention()),
        };
        match l.ffn.has("ffn_gate_inp.weight") {
            true => l.pre_norm(mixer, Moe::new(l, c.hidden[l.i], ActKind::Silu, softmax(&c, false))),
            false => l.pre_norm(mixer, l.gated_mlp(ActKind::Silu)),
        }
    })
    .boxed()
}

fn norms(l: &Layer, s: &MambaShape) -> InputNorms {
    let norm = |name: &str, n| l.mixer.norm(name, n);
    InputNorms::Each(Box::new([
        norm("ssm_dt_norm", s.rank),
        norm("ssm_b_norm", s.state),
        norm("ssm_c_norm", s.state),
    ]))
}
