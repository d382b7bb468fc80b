//! Multiplication by a constant.

use super::OpDef;
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;

/// `y = x * by`; shapes: `x` any, `y` the same; f32, one rounding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// The factor.
    pub by: f32,
}

impl OpDef for Scale {
    const NAME: &'static str = "scale";
    const TOLERANCE: f64 = 0.0;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        super::same_shape(inputs, g)
    }

    fn reference(&self, call: &mut RefCall) {
        for (y, x) in call.outputs[0].f.iter_mut().zip(&call.inputs[0].f) {
            *y = x * self.by;
        }
    }
}
