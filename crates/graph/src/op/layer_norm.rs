//! Layer normalisation.

use super::OpDef;
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;

/// `y = (x - mean) / sqrt(mean((x - mean)^2) + eps)`, each row by itself, without weight or bias.
///
/// Shapes: `x: [n, …]` gives `y: [n, …]`, f32. Both sums run as 16 strided sums and a fixed tree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNorm {
    /// Added under the root.
    pub eps: f32,
}

impl OpDef for LayerNorm {
    const NAME: &'static str = "layer_norm";
    const TOLERANCE: f64 = 1e-12;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        super::same_shape(inputs, g)
    }

    fn reference(&self, call: &mut RefCall) {
        let x = &call.inputs[0];
        for r in 0..x.n_rows() {
            let row = x.row(r);
            let n = row.len() as f64;
            let mean = row.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
            let var = row.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n;
            let scale = 1.0 / (var + f64::from(self.eps)).sqrt();
            for (y, v) in call.outputs[0].row_mut(r).iter_mut().zip(row) {
                *y = ((f64::from(*v) - mean) * scale) as f32;
            }
        }
    }
}
