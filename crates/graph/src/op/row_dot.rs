//! Products of rows.

use super::{OpDef, broadcasts, exactly, f32s};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;

/// `y[0, …] = sum_i a[i, …] b[i, …]`; axes of `b` after the first repeat where they are 1.
///
/// Shapes: `a: [n, …]`, `b: [n, …]` with 1 or `a`'s length on the other axes; `y: [1, …]` as `a` on the others; f32. Sixteen
/// strided sums of fma and a fixed tree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowDot;

impl OpDef for RowDot {
    const NAME: &'static str = "row_dot";
    const TOLERANCE: f64 = 1e-11;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        let [_, _] = exactly(inputs)?;
        let (a, b) = (f32s(inputs, 0)?, f32s(inputs, 1)?);
        broadcasts(a, b)?;
        if a.shape.axes()[0] != b.shape.axes()[0] || a.shape.constant(0).is_none() {
            let expected = format!("rows as long as those of {}", a.shape);
            return Err(ShapeError::Mismatch { operand: 1, expected, found: b.shape });
        }
        Ok(vec![super::dense(g, a.dtype, a.shape.with_axis0(1))?])
    }

    fn reference(&self, call: &mut RefCall) {
        let [a, b] = &call.inputs[..] else { unreachable!("inferred") };
        let n = a.dims[0];
        for (r, y) in call.outputs[0].f.iter_mut().enumerate() {
            let term = |i: usize| f64::from(a.row(r)[i]) * f64::from(b.broadcast(a.unravel(r * n + i)));
            *y = (0..n).map(term).sum::<f64>() as f32;
        }
    }
}
