//! dots3note: latent attention over chosen keys on some layers, and in windows, with sizes of its own, on the others;
//! gated by head; experts.
//!
//! Layer:  x += attention(norm(x));  x += ffn(norm(x))
//! Rope:   adjacent pairs of the part that has positions, whose key is normed first; windowed layers have a base of
//!         their own; the indexer's first numbers in half-split pairs.
//! Source: GGUF keys `dots3note.*`. The drafting head is left aside.

use firth_graph::{Gating, RopePairs};

use crate::blocks::{
    Decoder, Embedding, FfnPlan, Gate, Head, IndexShape, Indexer, Layer, Mla, MlaShape, NormKind, Residual,
    Rope, SparseLayers, SparseMla, Turned, by_keys,
};
use crate::config::{self, Config};
use crate::error::ModelError;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "dots3note", load };

fn load(w: &Weights) -> Loaded {
    let mut c = Config::read(w, NormKind::Rms)?;
    c.windows = config::windows(w, c.n_layers, None, 1)?;
    let full = Rope::new(&c, RopePairs::Adjacent);
    let mut windowed = full.clone();
    windowed.config.base = config::positive(w, "rope.freq_base_swa", c.rope.base as f32)?;
    let shape = MlaShape::read(w, c.first_heads(), c.rope.n_rot)?;
    let near = near(w, shape)?;
    let ffn = FfnPlan::read(w, &c, by_keys(w, &c, Gating::Sigmoid)?)?;
    let index = IndexShape::read(w, shape.query_latent, 1e-6)?;
    let chooses = config::flags(w, "attention.indexer.types", c.n_blocks)?.unwrap_or(vec![true; c.n_blocks]);
    let chooses = config::first_chooses(w, &c, chooses, |i| c.windows[i].is_none())?;
    let turned = Turned::First(Rope { pairs: RopePairs::Half, ..full.clone() });
    let layer = |l: &Layer| {
        let in_window = c.windows[l.i].is_some();
        let (rope, shape) = if in_window { (&windowed, near) } else { (&full, shape) };
        let heads = c.heads[l.i];
        let mut mla = Mla::new(l, MlaShape { heads, ..shape }).rope(rope);
        mla.key_norm = Some(l.mixer.norm("attn_k_norm", shape.turned));
        mla.gate = Some(Gate::sigmoid(l.mixer.linear("attn_gate", c.width, heads)));
        let mixer = match in_window {
            true => SparseMla::dense(mla),
            false => SparseMla::new(mla, chooses[l.i].then(|| Indexer::new(l, index, turned.clone()))),
        };
        let ffn = Residual::pre(l.ffn.norm("ffn_norm", c.width), ffn.block(l));
        (l.mixer.norm("attn_norm", c.width), mixer, ffn)
    };
    let embed = Embedding::new(w, &c);
    let head = Head::new(w, &c, &embed);
    Decoder::of_body(w, &c, embed, head, |states| {
        SparseLayers((0..c.n_layers).map(|i| layer(&Layer::new(w, &c, i, states))).collect())
    })
    .boxed()
}

/// The sizes of windowed layers.
fn near(w: &Weights, shape: MlaShape) -> Result<MlaShape, ModelError> {
    let size = |name: &str, min| config::extent(w, &format!("attention.{name}_swa"), min, 1 << 16);
    Ok(MlaShape {
        latent: size("kv_lora_rank", 1)?,
        key_dim: size("key_length_mla", shape.turned + 1)?,
        value_dim: size("value_length_mla", 1)?,
        ..shape
    })
}
