//! DeepSeek 3.2 and GLM-5: DeepSeek 3's layers, whose attention reads the keys that an indexer chooses.
//!
//! Layer:  x += attention(norm(x));  x += ffn(norm(x))
//! Rope:   adjacent pairs of the part that has positions; the indexer's first numbers in half-split pairs (DeepSeek) or
//!         adjacent ones (GLM).
//! Source: DeepSeek-AI 2025, "DeepSeek-V3.2-Exp"; transformers `modeling_glm_moe_dsa.py`; GGUF keys `deepseek32.*`,
//! `glm-dsa.*`. An indexer's key norm adds 1e-6 in both, as in those sources; llama.cpp adds nothing for GLM. A layer of
//! GLM without an indexer reads what the last one below it chose. The drafting head attends to all keys.

use firth_graph::{Gating, RopePairs};

use super::deepseek2::scaled;
use crate::blocks::{
    Decoder, Embedding, FfnPlan, Head, IndexShape, Indexer, Layer, Mla, MlaShape, NextN, NormKind, Residual,
    Rope, SparseLayers, SparseMla, Turned, by_keys,
};
use crate::config::{self, Config};
use crate::error::ModelError;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// DeepSeek 3.2.
pub const DEEPSEEK: Arch = Arch {
    name: "deepseek32",
    load: |w| load(w, RopePairs::Half, Gating::Softmax, |_, c| Ok(vec![true; c.n_blocks])),
};
/// GLM-5, 5.1 and 5.2.
pub const GLM: Arch =
    Arch { name: "glm-dsa", load: |w| load(w, RopePairs::Adjacent, Gating::Sigmoid, choosing) };

/// An indexer's key norm adds so much to the variance.
const KEY_EPS: f32 = 1e-6;

fn load(
    w: &Weights,
    pairs: RopePairs,
    gating: Gating,
    choosing: fn(&Weights, &Config) -> Result<Vec<bool>, ModelError>,
) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let shape = MlaShape::read(w, c.first_heads(), c.rope.n_rot)?;
    let (rope, scale) = scaled(w, &c, |m| m)?;
    let ffn = FfnPlan::read(w, &c, by_keys(w, &c, gating)?)?;
    let index = IndexShape::read(w, shape.query_latent, KEY_EPS)?;
    let chooses = config::first_chooses(w, &c, choosing(w, &c)?, |_| true)?;
    let turned = Turned::First(Rope { pairs, ..rope.clone() });
    let attention = |l: &Layer| {
        let mut mla = Mla::new(l, shape).rope(&rope);
        mla.scores.scale *= scale;
        mla
    };
    let layer = |l: &Layer| {
        let index = chooses[l.i].then(|| Indexer::new(l, index, turned.clone()));
        let ffn = Residual::pre(l.ffn.norm("ffn_norm", c.width), ffn.block(l));
        (l.mixer.norm("attn_norm", c.width), SparseMla::new(attention(l), index), ffn)
    };
    let embed = Embedding::new(w, &c);
    let head = Head::new(w, &c, &embed);
    let decoder = Decoder::of_body(w, &c, embed, head, |states| {
        SparseLayers((0..c.n_layers).map(|i| layer(&Layer::new(w, &c, i, states))).collect())
    });
    if !NextN::present(w, &c) {
        return decoder.boxed();
    }
    let head = |l: &Layer, trunk: &Decoder| NextN::new(l, trunk, "ffn_norm", attention(l), ffn.block(l));
    decoder.draft(w, &c, c.width, head).boxed()
}

/// `attention.indexer.types`; without it all layers where the context is short, else 0, 1, 2 and every fourth after.
fn choosing(w: &Weights, c: &Config) -> Result<Vec<bool>, ModelError> {
    if let Some(flags) = config::flags(w, "attention.indexer.types", c.n_layers)? {
        return Ok(flags);
    }
    Ok((0..c.n_layers).map(|i| c.context < 1 << 20 || i < 2 || i % 4 == 2).collect())
}
