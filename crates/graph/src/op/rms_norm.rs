//! Root-mean-square normalisation.

use super::OpDef;
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;

/// `y = x / sqrt(mean(x^2) + eps)`, each row by itself.
///
/// Shapes: `x: [n, …]` gives `y: [n, …]`, f32. Squares by 16 strided sums of fma and a fixed tree; then
/// `r = 1 / sqrt(sum / n + eps)`, `y = x * r`. Source: Zhang and Sennrich 2019, eq. 4.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNorm {
    /// Added under the root.
    pub eps: f32,
}

impl OpDef for RmsNorm {
    const NAME: &'static str = "rms_norm";
    const TOLERANCE: f64 = 1e-12;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        super::same_shape(inputs, g)
    }

    fn reference(&self, call: &mut RefCall) {
        let x = &call.inputs[0];
        for r in 0..x.n_rows() {
            normalise(x.row(r), self.eps, call.outputs[0].row_mut(r));
        }
    }
}

/// One row in f64.
pub(super) fn normalise(x: &[f32], eps: f32, y: &mut [f32]) {
    let mean = x.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>() / x.len() as f64;
    let r = 1.0 / (mean + f64::from(eps)).sqrt();
    for (y, x) in y.iter_mut().zip(x) {
        *y = (f64::from(*x) * r) as f32;
    }
}
