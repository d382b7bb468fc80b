//! Talkie: norms without weights, and the embedding added to every layer's result.
//!
//! Layer:  x += attention(norm(x));  x += mlp(norm(x));  x += scale embedding, with the embedding normed
//! Rope:   half-split pairs; then norms of heads, and a factor of each query head.
//! Source: GGUF keys `talkie.*`.

use firth_graph::{ActKind, Graph, Node, RopePairs, op};

use crate::StepNodes;
use crate::blocks::{Block, Chain, Decoder, Embedding, Head, Layer, Norm, NormKind, QkNorm, Residual, Rope};
use crate::config::{self, Config};
use crate::registry::{Arch, Loaded};
use crate::weights::{Tensor, Weights};

/// Registry entry.
pub const ARCH: Arch = Arch { name: "talkie", load };

fn load(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let rope = Rope::new(&c, RopePairs::Half);
    let norm = || Norm::bare(c.norm);
    let embed = Embedding { norm: Some(norm()), ..Embedding::new(w, &c) };
    let scale = config::float(w, "logit_scale", 1.0)? as f32;
    let head = Head { norm: Some(norm()), scale, ..Head::bare(w, &c, &embed) };
    let layer = |l: &Layer| {
        let gain = Norm::of(l.mixer.table("attn_q_norm.weight", &[1, c.heads[l.i]]), c.norm);
        let attention = l.attention().rope(&rope).qk_norm(QkNorm::AfterRope([gain, norm()]));
        let halves =
            Chain::of(Residual::pre(norm(), attention), Residual::pre(norm(), l.gated_mlp(ActKind::Silu)));
        (halves, l.ffn.table("layer_output_scale.weight", &[1]))
    };
    Decoder::of_body(w, &c, embed, head, |states| {
        Body((0..c.n_layers).map(|i| layer(&Layer::new(w, &c, i, states))).collect())
    })
    .boxed()
}

/// Layers, and by how much of the embedding each is followed.
struct Body(Vec<(Chain, Tensor)>);

impl Block for Body {
    fn forward(&self, g: &mut Graph, embedding: Node, step: &StepNodes) -> Node {
        self.0.iter().enumerate().fold(embedding, |x, (i, (layer, scale))| {
            g.scope(format!("blk.{i}"));
            let x = layer.forward(g, x, step);
            let scale = scale.node(g);
            let again = g.push(op::Mul, &[embedding, scale]);
            g.push(op::Add, &[again, x])
        })
    }
}
