//! Rows by index.

use super::{OpDef, exactly, f32s, i32s};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;
use crate::shape::Shape;

/// `y[:, o] = x[:, idx[o]]`.
///
/// Shapes: `x: [n, rows]` f32, `idx: [O]` i32 below `rows`, `y: [n, O]` f32. A repeated index is legal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowSelect;

impl OpDef for RowSelect {
    const NAME: &'static str = "row_select";
    const TOLERANCE: f64 = 0.0;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        let [_, _] = exactly(inputs)?;
        let (x, idx) = (f32s(inputs, 0)?, i32s(inputs, 1)?);
        Ok(vec![super::dense(g, x.dtype, Shape::new([x.shape.axes()[0], idx.shape.axes()[0]]))?])
    }

    fn reference(&self, call: &mut RefCall) {
        let [x, idx] = &call.inputs[..] else { unreachable!("inferred") };
        for (o, &i) in idx.i.iter().enumerate() {
            call.outputs[0].row_mut(o).copy_from_slice(x.row(i as usize));
        }
    }
}
