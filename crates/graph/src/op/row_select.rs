//! Rows by index.

use super::{OpDef, exactly, f32s, i32s};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;
use crate::shape::Shape;

/// `y[:, o] = x[:, idx[o]]`, for each index of a list or of a list per token.
///
/// Shapes: `x: [n, rows]` f32, `idx: [O]` or `[U, T]` i32 below `rows`, `y: [n, O]` or `[n, U, T]` f32. A repeated index
/// is legal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowSelect;

impl OpDef for RowSelect {
    const NAME: &'static str = "row_select";
    const TOLERANCE: f64 = 0.0;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        let [_, _] = exactly(inputs)?;
        let (x, idx) = (f32s(inputs, 0)?, i32s(inputs, 1)?);
        let [first, second, ..] = idx.shape.axes();
        Ok(vec![super::dense(g, x.dtype, Shape::new([x.shape.axes()[0], first, second]))?])
    }

    fn reference(&self, call: &mut RefCall) {
        let [x, idx] = &call.inputs[..] else { unreachable!("inferred") };
        for (o, &i) in idx.i.iter().enumerate() {
            call.outputs[0].row_mut(o).copy_from_slice(x.row(i as usize));
        }
    }
}
