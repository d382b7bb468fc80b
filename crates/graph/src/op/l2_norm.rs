//! Normalisation by Euclidean length.

use super::OpDef;
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;

/// `y = x / sqrt(sum(x^2) + eps)`, each row by itself.
///
/// Shapes: `x: [n, …]` gives `y: [n, …]`, f32. Squares by 16 strided sums of fma and a fixed tree; then
/// `r = 1 / sqrt(sum + eps)`, `y = x * r`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct L2Norm {
    /// Added to the sum under the root.
    pub eps: f32,
}

impl OpDef for L2Norm {
    const NAME: &'static str = "l2_norm";
    const TOLERANCE: f64 = 1e-12;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        super::same_shape(inputs, g)
    }

    fn reference(&self, call: &mut RefCall) {
        let x = &call.inputs[0];
        for r in 0..x.n_rows() {
            let sum: f64 = x.row(r).iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
            let by = 1.0 / (sum + f64::from(self.eps)).sqrt();
            for (y, x) in call.outputs[0].row_mut(r).iter_mut().zip(x.row(r)) {
                *y = (f64::from(*x) * by) as f32;
            }
        }
    }
}
