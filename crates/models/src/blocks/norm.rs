//! Norms with their weights.

use firth_graph::{Graph, Node, Part, op};

use crate::weights::{Tensor, Weights};

/// Root-mean-square norm times a weight.
#[derive(Clone, Debug)]
pub struct RmsNorm {
    weight: Tensor,
    eps: f32,
}

impl RmsNorm {
    /// `name.weight {n}`.
    pub fn new(w: &Weights, name: &str, n: usize, eps: f32, part: Part) -> Self {
        RmsNorm { weight: w.vector(&format!("{name}.weight"), n, part), eps }
    }

    /// Normalises rows of `[n, …]`: hidden rows, or each head of `[d, heads, T]`.
    pub fn forward(&self, g: &mut Graph, x: Node) -> Node {
        let weight = self.weight.node(g);
        let y = g.push(op::RmsNorm { eps: self.eps }, &[x]);
        g.push(op::Mul, &[y, weight])
    }
}
