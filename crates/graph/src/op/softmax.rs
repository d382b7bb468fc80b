//! Weights that sum to 1.

use super::OpDef;
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;

/// `y[i] = e^(x[i] - max) / sum e^(x - max)`, each row by itself, the sum ascending.
///
/// Shapes: `x: [n, …]` gives `y: [n, …]`; f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Softmax;

impl OpDef for Softmax {
    const NAME: &'static str = "softmax";
    const TOLERANCE: f64 = 1e-11;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        super::same_shape(inputs, g)
    }

    fn reference(&self, call: &mut RefCall) {
        let x = &call.inputs[0];
        for r in 0..x.n_rows() {
            let row: Vec<f64> = x.row(r).iter().map(|v| f64::from(*v)).collect();
            for (y, p) in call.outputs[0].row_mut(r).iter_mut().zip(of(&row)) {
                *y = p as f32;
            }
        }
    }
}

/// The softmax of a row.
pub(super) fn of(x: &[f64]) -> Vec<f64> {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = x.iter().map(|v| (v - max).exp()).sum();
    x.iter().map(|v| (v - max).exp() / sum).collect()
}
