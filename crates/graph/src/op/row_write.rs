//! Rows replaced by index: a pure value, never a write into its operand.

use super::{OpDef, exactly, f32s, i32s};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;
use crate::shape::Shape;

/// `y = base` with `y[:, idx[r]] = rows[:, r]`, rows in ascending order, so that of equal indices the last wins.
///
/// Shapes: `base: [n, A]`, `rows: [n, B]`, `idx: [B]` i32 below `A`, `y: [n, A]`; f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowWrite;

impl OpDef for RowWrite {
    const NAME: &'static str = "row_write";
    const TOLERANCE: f64 = 0.0;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        let [_, _, _] = exactly(inputs)?;
        let (base, rows, idx) = (f32s(inputs, 0)?, f32s(inputs, 1)?, i32s(inputs, 2)?);
        let expected = Shape::new([base.shape.axes()[0], idx.shape.axes()[0]]);
        super::expect_shape(1, rows.shape, expected)?;
        Ok(vec![super::dense(g, base.dtype, base.shape)?])
    }

    fn reference(&self, call: &mut RefCall) {
        let [base, rows, idx] = &call.inputs[..] else { unreachable!("inferred") };
        call.outputs[0].f.copy_from_slice(&base.f);
        for (r, &i) in idx.i.iter().enumerate() {
            call.outputs[0].row_mut(i as usize).copy_from_slice(rows.row(r));
        }
    }
}
