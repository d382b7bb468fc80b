//! Queries that grow with their position.

use firth_graph::math::log2;
use firth_graph::{Graph, Node, Part, Shape, Sym, WeightSource, op};
use firth_quant::Dtype;

use crate::StepNodes;

/// Factor `1 + scale ln(floor((position + offset) / length) + 1)` of queries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    /// Factor of the logarithm.
    pub scale: f32,
    /// Positions to a step of the logarithm.
    pub length: usize,
    /// Added to the position.
    pub offset: usize,
}

impl Temperature {
    /// `None` where there is nothing to scale.
    pub fn new(scale: f32, length: usize, offset: usize) -> Option<Self> {
        (scale != 0.0 && length > 0).then_some(Temperature { scale, length, offset })
    }

    fn factor(&self, position: usize) -> f32 {
        let steps = (position + self.offset) / self.length + 1;
        (1.0 + f64::from(self.scale) * log2(steps as f64) * std::f64::consts::LN_2) as f32
    }

    /// `q: [d, heads, T]`, each times its row's factor.
    pub fn apply(&self, g: &mut Graph, q: Node, step: &StepNodes) -> Node {
        let n = step.options.ctx;
        let name = format!("temperature({}, {}, {}, {n} positions)", self.scale, self.length, self.offset);
        let values = (0..n).map(|p| self.factor(p)).collect();
        let source = WeightSource::Values { name, values };
        let table = g.weight(source, Dtype::F32, Shape::fixed(&[1, n]), Part::Tables);
        let rows = g.push(op::RowSelect, &[table, step.positions]);
        let l = g.layout(rows);
        let shape = Shape::new([1.into(), 1.into(), Sym::T.into()]);
        let rows = g.view(rows, shape, [l.strides[0], l.strides[1], l.strides[1], l.strides[2]], 0);
        g.push(op::Mul, &[q, rows])
    }
}
