//! A product with a weight, and its bias.

use firth_graph::{Graph, Node, Part, op};

use crate::StepNodes;
use crate::blocks::Block;
use crate::weights::{Tensor, Weights};

/// `y = W x + b`.
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    /// `name.weight {n_in, n_out}` and, where the file has it, `name.bias {n_out}`.
    pub fn new(w: &Weights, name: &str, n_in: usize, n_out: usize, part: Part) -> Self {
        Linear {
            weight: w.matrix(name, &[n_in, n_out], part),
            bias: w.vector_opt(&format!("{name}.bias"), n_out, part),
        }
    }

    /// The product with a tensor that has another use.
    pub fn of(weight: Tensor) -> Self {
        Linear { weight, bias: None }
    }

    /// Without the bias that the file may have.
    pub fn unbiased(mut self) -> Self {
        self.bias = None;
        self
    }

    /// `x: [n_in, rows]` to `[n_out, rows]`.
    pub fn apply(&self, g: &mut Graph, x: Node) -> Node {
        let weight = self.weight.node(g);
        let y = g.push(op::MatMul, &[weight, x]);
        match &self.bias {
            Some(b) => {
                let b = b.node(g);
                g.push(op::Add, &[y, b])
            }
            None => y,
        }
    }
}

impl Block for Linear {
    fn forward(&self, g: &mut Graph, x: Node, _: &StepNodes) -> Node {
        self.apply(g, x)
    }
}
