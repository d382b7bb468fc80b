//! A product with a weight, and its bias.

use firth_graph::{Graph, Node, Part, op};

use crate::StepNodes;
use crate::blocks::Block;
use crate::weights::{Tensor, Weights};

/// `y = s W x + b`.
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Tensor,
    /// One factor of the product, which files of types without a range of their own have.
    scale: Option<Tensor>,
    bias: Option<Tensor>,
}

impl Linear {
    /// `name.weight {n_in, n_out}` and, where the file has them, `name.scale {1}` and `name.bias {n_out}`.
    pub fn new(w: &Weights, name: &str, n_in: usize, n_out: usize, part: Part) -> Self {
        let scale = format!("{name}.scale");
        Linear {
            weight: w.matrix(name, &[n_in, n_out], part),
            scale: (w.axis(&scale, 0) == Some(1)).then(|| w.vector(&scale, 1, part)),
            bias: w.vector_opt(&format!("{name}.bias"), n_out, part),
        }
    }

    /// The product with a tensor that has another use.
    pub fn of(weight: Tensor) -> Self {
        Linear { weight, scale: None, bias: None }
    }

    /// Without the bias that the file may have.
    pub fn unbiased(mut self) -> Self {
        self.bias = None;
        self
    }

    /// `x: [n_in, rows]` to `[n_out, rows]`.
    pub fn apply(&self, g: &mut Graph, x: Node) -> Node {
        let weight = self.weight.node(g);
        let mut y = g.push(op::MatMul, &[weight, x]);
        if let Some(scale) = &self.scale {
            let scale = scale.node(g);
            y = g.push(op::Mul, &[y, scale]);
        }
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
