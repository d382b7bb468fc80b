//! A dense copy.

use super::{OpDef, exactly, tensor};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;

/// `y = x`, laid out densely. The only op that every layout must be legal for: the planner uses it where a
/// kernel cannot read a view.
///
/// Shapes: `x` any view of any dtype, `y` the same, dense.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Copy;

impl OpDef for Copy {
    const NAME: &'static str = "copy";
    const TOLERANCE: f64 = 0.0;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        let [_] = exactly(inputs)?;
        let x = tensor(inputs, 0, &[], "a tensor")?;
        Ok(vec![super::dense(g, x.dtype, x.shape)?])
    }

    fn reference(&self, call: &mut RefCall) {
        call.outputs[0].f.copy_from_slice(&call.inputs[0].f);
        call.outputs[0].i.copy_from_slice(&call.inputs[0].i);
    }
}
