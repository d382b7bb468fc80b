//! Granite, dense, with experts, hybrid with Mamba-2, and MiniCPM: a llama with factors on embedding, residuals, scores and
//! logits.
//!
//! Layer:  x += r mixer(norm(x));  x += r ffn(norm(x))
//! Rope:   adjacent pairs with `rope_freqs` or longrope's lists; none where `rope.scaling.finetuned` is false.
//! Source: transformers `modeling_granite.py`, `modeling_granitemoe.py`, `modeling_granitemoehybrid.py`; GGUF keys
//! `granite.*`, `granitemoe.*`, `granitehybrid.*`, `minicpm.*`.

use firth_graph::{ActKind, RopePairs};

use crate::blocks::{
    Block, Chain, Decoder, Layer, Mamba2, MambaShape, Moe, NormKind, Residual, Rope, softmax,
};
use crate::config::{self, Config};
use crate::error::ModelError;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entries.
pub const DENSE: Arch = Arch { name: "granite", load: |w| model(w, &Factors::read(w)?, switch(w)?, None) };
/// With experts: rope is always on.
pub const EXPERTS: Arch = Arch { name: "granitemoe", load: |w| model(w, &Factors::read(w)?, true, None) };
/// With Mamba-2 on layers without key heads.
pub const HYBRID: Arch = Arch {
    name: "granitehybrid",
    load: |w| model(w, &Factors::read(w)?, switch(w)?, Some(MambaShape::of_heads(w)?)),
};
/// MiniCPM: the same with factors of its own where the file has none.
pub const MINICPM: Arch = Arch { name: "minicpm", load: |w| model(w, &Factors::minicpm(w)?, true, None) };

/// What embedding, residuals and scores are multiplied by, and logits divided; 0 for nothing.
pub(super) struct Factors {
    pub(super) embedding: f32,
    pub(super) residual: f32,
    pub(super) scores: f32,
    pub(super) logits: f32,
    /// Width of the shared expert, 0 for none.
    pub(super) shared: usize,
}

impl Factors {
    pub(super) fn read(w: &Weights) -> Result<Self, ModelError> {
        let factor = |name: &str| Ok::<_, ModelError>(config::float(w, name, 0.0)? as f32);
        Ok(Factors {
            embedding: factor("embedding_scale")?,
            residual: factor("residual_scale")?,
            scores: factor("attention.scale")?,
            logits: factor("logit_scale")?,
            shared: config::optional(w, "expert_shared_feed_forward_length", 0, 1 << 24)?,
        })
    }

    fn minicpm(w: &Weights) -> Result<Self, ModelError> {
        let factor = |name: &str, default| Ok::<_, ModelError>(config::float(w, name, default)? as f32);
        let layers = config::extent(w, "block_count", 1, 512)? as f32;
        let width = config::extent(w, "embedding_length", 1, 1 << 24)? as f32;
        Ok(Factors {
            embedding: factor("embedding_scale", 12.0)?,
            residual: factor("residual_scale", 1.4 / layers.sqrt())?,
            scores: 0.0,
            logits: factor("logit_scale", 256.0 / width)?,
            shared: 0,
        })
    }
}

/// A factor that is 1 where the file says 0.
pub(super) fn or_one(f: f32) -> f32 {
    if f == 0.0 { 1.0 } else { f }
}

/// Whether there is rope.
fn switch(w: &Weights) -> Result<bool, ModelError> {
    Ok(w.metadata().bool(&w.key("rope.scaling.finetuned"))?.unwrap_or(true))
}

fn model(w: &Weights, f: &Factors, turned: bool, mamba: Option<MambaShape>) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let rope = Rope::new(&c, RopePairs::Adjacent).factors(w);
    let mut decoder = Decoder::new(w, &c, |l| {
        let mixer: Box<dyn Block> = match mamba.filter(|_| c.kv_heads[l.i] == 0) {
            Some(shape) => Box::new(Mamba2::new(l, shape)),
            None => {
                let mut attention = l.attention();
                attention.rope = turned.then(|| rope.clone());
                if f.scores != 0.0 {
                    attention.scores.scale = f.scores;
                }
                Box::new(attention)
            }
        };
        let [first, second] = ["attn_norm", "ffn_norm"].map(|n| l.mixer.norm(n, c.width));
        let by = or_one(f.residual);
        Chain::of(Residual::pre(first, mixer).scaled(by), Residual::pre(second, ffn(l, f.shared)).scaled(by))
    });
    decoder.embed.scale = or_one(f.embedding);
    decoder.head.scale = 1.0 / or_one(f.logits);
    decoder.boxed()
}

fn ffn(l: &Layer, shared: usize) -> Box<dyn Block> {
    match l.c.n_experts {
        0 => Box::new(l.gated_mlp(ActKind::Silu)),
        _ => Moe::new(l, l.c.hidden[l.i], ActKind::Silu, softmax(l.c, true)).shared(l, shared, ActKind::Silu),
    }
}
