//! Rows that every layer has of each token, beside the residual stream.

use firth_graph::{ActKind, Graph, Node, Part, Shape, WeightSource, op};
use firth_quant::Dtype;

use crate::StepNodes;
use crate::blocks::{Layer, Linear, Norm, Place};
use crate::config::Config;
use crate::weights::{Tensor, Weights};

/// `(norm(projection of the embedding) + row of a table) / sqrt(2)`, `width` numbers for each layer.
pub struct PerLayer {
    width: usize,
    table: Tensor,
    /// What rows that come without an id have of the table: its first.
    first: Vec<f32>,
    product: Linear,
    norm: Norm,
    scale: f32,
}

impl PerLayer {
    /// `per_layer_token_embd {width * layers, vocab}`, `per_layer_model_proj`, `per_layer_proj_norm {width}`.
    pub fn new(w: &Weights, c: &Config, width: usize) -> Self {
        let all = width * c.n_layers;
        let p = Place::root(w, c, Part::Embedding);
        PerLayer {
            width,
            table: p.matrix("per_layer_token_embd", &[all, c.n_vocab]),
            first: w.first_row("per_layer_token_embd.weight").unwrap_or_default(),
            product: p.linear("per_layer_model_proj", c.width, all),
            norm: p.norm("per_layer_proj_norm", width),
            scale: 1.0 / (c.width as f32).sqrt(),
        }
    }

    /// `[width * layers, T]` from the scaled embedding `x: [n, T]`.
    pub fn rows(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let root = (self.width as f32).sqrt();
        let values = self.first.iter().map(|v| v * root).collect();
        let source = WeightSource::Values { name: "first row of each layer".into(), values };
        let n = self.first.len();
        let first = g.weight(source, Dtype::F32, Shape::fixed(&[n]), Part::Embedding);
        let l = g.layout(step.tokens);
        let ready = g.view(first, Shape::new([n.into(), l.shape.axes()[0]]), [4, 0, 0, 0], 0);
        let table = self.table.node(g);
        let rows = g.push(op::Embed { scale: root }, &[table, step.tokens, ready]);
        let projected = self.product.apply(g, x);
        let projected = g.push(op::Scale { by: self.scale }, &[projected]);
        let projected = g.split_heads(projected, self.width);
        let projected = self.norm.apply(g, projected);
        let projected = g.merge_heads(projected);
        let sum = g.push(op::Add, &[projected, rows]);
        g.push(op::Scale { by: std::f32::consts::FRAC_1_SQRT_2 }, &[sum])
    }
}

/// What a layer makes of its row: `norm(proj(gelu(gate(x)) * row))`.
pub struct LayerRow {
    at: usize,
    width: usize,
    gate: Linear,
    out: Linear,
    norm: Norm,
}

impl LayerRow {
    /// `inp_gate {n, width}`, `proj {width, n}`, `post_norm {n}`.
    pub fn new(l: &Layer, width: usize) -> Self {
        LayerRow {
            at: l.i * width,
            width,
            gate: l.ffn.linear("inp_gate", l.c.width, width),
            out: l.ffn.linear("proj", width, l.c.width),
            norm: l.ffn.norm("post_norm", l.c.width),
        }
    }

    /// `x: [n, T]` and the rows of all layers to `[n, T]`.
    pub fn apply(&self, g: &mut Graph, x: Node, rows: Node) -> Node {
        let row = g.slice(rows, self.at, self.width);
        let gate = self.gate.apply(g, x);
        let z = g.push(op::GatedAct { kind: ActKind::GeluTanh }, &[gate, row]);
        let z = self.out.apply(g, z);
        self.norm.apply(g, z)
    }
}
