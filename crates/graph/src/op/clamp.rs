//! Bounds on every element.

use super::OpDef;
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;

/// `y = min(max(x, low), high)`, element by element; NaN stays. A bound may be infinite.
///
/// Shapes: `x` any, `y` the same; f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clamp {
    /// Least value.
    pub low: f32,
    /// Largest value.
    pub high: f32,
}

impl OpDef for Clamp {
    const NAME: &'static str = "clamp";
    const TOLERANCE: f64 = 0.0;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        if self.low.is_nan() || self.high.is_nan() || self.low > self.high {
            return Err(ShapeError::Param(format!("bounds {} and {}", self.low, self.high)));
        }
        super::same_shape(inputs, g)
    }

    fn reference(&self, call: &mut RefCall) {
        for (y, x) in call.outputs[0].f.iter_mut().zip(&call.inputs[0].f) {
            *y = x.clamp(self.low, self.high);
        }
    }
}
