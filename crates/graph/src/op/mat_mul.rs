//! The product with a weight.

use super::{OpDef, exactly, f32s, tensor};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::{Array, RefCall};

/// `y[o] = sum_i w[i, o] x[i]` for each row of `x`.
///
/// Shapes: `w: [k, n]` of any float or block type, `x: [k, …]` f32, `y: [n, …]` f32. The form in which `x`
/// meets `w` belongs to `w`'s type (docs/numerics.md).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MatMul;

impl OpDef for MatMul {
    const NAME: &'static str = "mat_mul";
    /// Activations are rounded to 8 bits where the weight is quantised.
    const TOLERANCE: f64 = 5e-4;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        let [_, _] = exactly(inputs)?;
        let (w, x) = (tensor(inputs, 0, &[], "a float or block type")?, f32s(inputs, 1)?);
        let (k, n) = matrix(w.shape, 0)?;
        if x.shape.constant(0) != Some(k) {
            let expected = format!("[{k}, …]");
            return Err(ShapeError::Mismatch { operand: 1, expected, found: x.shape });
        }
        Ok(vec![super::dense(g, x.dtype, x.shape.with_axis0(n))?])
    }

    fn reference(&self, call: &mut RefCall) {
        let [w, x] = &call.inputs[..] else { unreachable!("inferred") };
        for r in 0..x.n_rows() {
            product(w, 0, x.row(r), call.outputs[0].row_mut(r));
        }
    }
}

/// Rows and columns of a weight matrix.
pub(super) fn matrix(shape: crate::shape::Shape, operand: usize) -> Result<(usize, usize), ShapeError> {
    match (shape.constant(0), shape.constant(1)) {
        (Some(k), Some(n)) => Ok((k, n)),
        _ => Err(ShapeError::Mismatch { operand, expected: "[k, n]".into(), found: shape }),
    }
}

/// One row times matrix `e` of `w`, in f64.
pub(super) fn product(w: &Array, e: usize, x: &[f32], y: &mut [f32]) {
    let n = w.dims[1];
    for (o, y) in y.iter_mut().enumerate() {
        let row = w.row(e * n + o);
        *y = row.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>() as f32;
    }
}
