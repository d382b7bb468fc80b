//! Rows joined end to end.

use super::{OpDef, f32s};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;

/// `y[:, …]` is the rows of all operands one after another, along axis 0.
///
/// Shapes: two to eight operands `[n_i, …]` f32, equal on all axes but the first; `y: [sum n_i, …]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Concat;

impl OpDef for Concat {
    const NAME: &'static str = "concat";
    const TOLERANCE: f64 = 0.0;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        if !(2..=8).contains(&inputs.len()) {
            return Err(ShapeError::Arity { expected: "2 to 8", found: inputs.len() });
        }
        let first = f32s(inputs, 0)?;
        let mut width = 0;
        for operand in 0..inputs.len() {
            let x = f32s(inputs, operand)?;
            let n = x.shape.constant(0);
            let n = n.ok_or_else(|| ShapeError::Param("rows of a constant length are joined".into()))?;
            super::expect_shape(operand, x.shape, first.shape.with_axis0(n))?;
            width += n;
        }
        Ok(vec![super::dense(g, first.dtype, first.shape.with_axis0(width))?])
    }

    fn reference(&self, call: &mut RefCall) {
        for r in 0..call.outputs[0].n_rows() {
            let row: Vec<f32> = call.inputs.iter().flat_map(|x| x.row(r).iter().copied()).collect();
            call.outputs[0].row_mut(r).copy_from_slice(&row);
        }
    }
}
