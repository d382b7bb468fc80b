//! Token embedding and the head that may be tied to it.

use firth_graph::{Graph, Node, Part, op};

use crate::StepNodes;
use crate::blocks::RmsNorm;
use crate::weights::{Tensor, Weights};

/// The table `token_embd.weight {width, vocab}`.
#[derive(Clone, Debug)]
pub struct Embedding {
    table: Tensor,
    scale: f32,
}

impl Embedding {
    /// Rows times `scale` (ready rows are not scaled).
    pub fn new(w: &Weights, width: usize, n_vocab: usize, scale: f32) -> Self {
        Embedding { table: w.matrix("token_embd", &[width, n_vocab], Part::Embedding), scale }
    }

    /// `[width, T]` of the step's rows.
    pub fn rows(&self, g: &mut Graph, step: &StepNodes) -> Node {
        let table = self.table.node(g);
        g.push(op::Embed { scale: self.scale }, &[table, step.tokens, step.embeds])
    }
}

/// The final norm and the product with the vocabulary.
#[derive(Clone, Debug)]
pub struct Head {
    norm: RmsNorm,
    weight: Tensor,
    /// Soft cap of the logits, 0 for none.
    softcap: f32,
}

impl Head {
    /// `output_norm`, and `output` or, where the file has none, the embedding itself.
    pub fn new(
        w: &Weights,
        embedding: &Embedding,
        width: usize,
        n_vocab: usize,
        eps: f32,
        softcap: f32,
    ) -> Self {
        let weight = w.matrix_opt("output", &[width, n_vocab], Part::Head);
        Head {
            norm: RmsNorm::new(w, "output_norm", width, eps, Part::Head),
            weight: weight.unwrap_or_else(|| embedding.table.clone()),
            softcap,
        }
    }

    /// `[width, O]` to logits `[vocab, O]`.
    pub fn forward(&self, g: &mut Graph, x: Node) -> Node {
        let h = self.norm.forward(g, x);
        let weight = self.weight.node(g);
        let logits = g.push(op::MatMul, &[weight, h]);
        if self.softcap == 0.0 { logits } else { g.push(op::Softcap { cap: self.softcap }, &[logits]) }
    }
}
