//! Token embedding and the head that may be tied to it.

use firth_graph::{Graph, Node, Part, Shape, WeightSource, op};
use firth_quant::Dtype;

use crate::StepNodes;
use crate::blocks::{Linear, Norm};
use crate::config::Config;
use crate::weights::{Tensor, Weights};

/// The table `token_embd.weight {width, vocab}`.
#[derive(Clone, Debug)]
pub struct Embedding {
    /// The table.
    pub table: Tensor,
    /// Factor of table rows (ready rows are not scaled).
    pub scale: f32,
    /// Rows added by position, `{width, context}`.
    pub positions: Option<Tensor>,
    /// A row added to all, by its name and numbers.
    pub shared: Option<WeightSource>,
    /// Applied to the rows.
    pub norm: Option<Norm>,
}

impl Embedding {
    /// Unscaled rows of the table.
    pub fn new(w: &Weights, c: &Config) -> Self {
        let table = w.matrix("token_embd", &[c.width, c.n_vocab], Part::Embedding);
        Embedding { table, scale: 1.0, positions: None, shared: None, norm: None }
    }

    /// `[width, T]` of the step's rows.
    pub fn rows(&self, g: &mut Graph, step: &StepNodes) -> Node {
        let table = self.table.node(g);
        let mut x = g.push(op::Embed { scale: self.scale }, &[table, step.tokens, step.embeds]);
        if let Some(shared) = &self.shared {
            let width = self.table.shape[0];
            let row = g.weight(shared.clone(), Dtype::F32, Shape::fixed(&[width]), Part::Embedding);
            x = g.push(op::Add, &[x, row]);
        }
        if let Some(positions) = &self.positions {
            let table = positions.node(g);
            let rows = g.push(op::RowSelect, &[table, step.positions]);
            x = g.push(op::Add, &[x, rows]);
        }
        self.norm.as_ref().map_or(x, |n| n.apply(g, x))
    }
}

/// The final norm and the product with the vocabulary.
#[derive(Clone, Debug)]
pub struct Head {
    /// The final norm.
    pub norm: Option<Norm>,
    /// The product.
    pub out: Linear,
    /// Factor of the logits.
    pub scale: f32,
    /// Soft cap of the logits, 0 for none.
    pub softcap: f32,
}

impl Head {
    /// `output_norm`, and `output` or, where the file has none, the embedding itself.
    pub fn new(w: &Weights, c: &Config, embedding: &Embedding) -> Self {
        let norm = Norm::new(w, "output_norm", &[c.width], c.norm, Part::Head);
        Head { norm: Some(norm), ..Head::bare(w, c, embedding) }
    }

    /// Without a norm.
    pub fn bare(w: &Weights, c: &Config, embedding: &Embedding) -> Self {
        let out = match w.has("output.weight") {
            true => Linear::new(w, "output", c.width, c.n_vocab, Part::Head),
            false => Linear::of(embedding.table.clone()),
        };
        Head { norm: None, out, scale: 1.0, softcap: 0.0 }
    }

    /// The final norm of `[width, rows]`.
    pub fn normalise(&self, g: &mut Graph, x: Node) -> Node {
        self.norm.as_ref().map_or(x, |n| n.apply(g, x))
    }

    /// Normalised rows `[width, O]` to logits `[vocab, O]`.
    pub fn logits(&self, g: &mut Graph, h: Node) -> Node {
        let mut logits = self.out.apply(g, h);
        if self.scale != 1.0 {
            logits = g.push(op::Scale { by: self.scale }, &[logits]);
        }
        if self.softcap != 0.0 {
            logits = g.push(op::Softcap { cap: self.softcap }, &[logits]);
        }
        logits
    }
}
