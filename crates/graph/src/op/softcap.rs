//! Soft capping of logits.

use super::OpDef;
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;

/// `y = cap * tanh(x / cap)`; shapes: `x` any, `y` the same; f32. The division is one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Softcap {
    /// The bound, above 0.
    pub cap: f32,
}

impl OpDef for Softcap {
    const NAME: &'static str = "softcap";
    const TOLERANCE: f64 = 1e-11;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        if self.cap.is_nan() || self.cap <= 0.0 {
            return Err(ShapeError::Param(format!("cap must be above 0, found {}", self.cap)));
        }
        super::same_shape(inputs, g)
    }

    fn reference(&self, call: &mut RefCall) {
        let cap = f64::from(self.cap);
        for (y, x) in call.outputs[0].f.iter_mut().zip(&call.inputs[0].f) {
            *y = (cap * (f64::from(*x) / cap).tanh()) as f32;
        }
    }
}
