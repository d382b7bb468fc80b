//! Mamba and Mamba-2: state spaces alone, no attention, no feed-forward.
//!
//! Layer:  x += mixer(norm(x))
//! Source: Gu and Dao 2023, arXiv 2312.00752; Dao and Gu 2024, arXiv 2405.21060; GGUF keys `mamba.*`, `mamba2.*`.

use crate::blocks::{
    Block, Chain, Decoder, InputNorms, Layer, Mamba, Mamba2, MambaShape, Norm, NormKind, Residual,
};
use crate::config::Config;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entries.
pub const FIRST: Arch = Arch { name: "mamba", load: first };
/// With heads.
pub const SECOND: Arch = Arch { name: "mamba2", load: second };

fn first(w: &Weights) -> Loaded {
    let shape = MambaShape::read(w)?;
    // Falcon-Mamba normalises what it projects, without weights.
    let plain = w.metadata().bool(&w.key("ssm.dt_b_c_rms"))?.unwrap_or(false);
    model(w, |l| {
        let norms = match plain {
            true => InputNorms::Each(Box::new([0; 3].map(|_| Norm::bare(l.c.norm)))),
            false => InputNorms::None,
        };
        Box::new(Mamba::new(l, shape, norms))
    })
}

fn second(w: &Weights) -> Loaded {
    let shape = MambaShape::of_heads(w)?;
    model(w, |l| Box::new(Mamba2::new(l, shape)))
}

fn model(w: &Weights, mixer: impl Fn(&Layer) -> Box<dyn Block>) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    Decoder::new(w, &c, |l| {
        let norm = l.mixer.norm("attn_norm", c.width);
        Chain(vec![Box::new(Residual::pre(norm, mixer(l)))])
    })
    .boxed()
}
