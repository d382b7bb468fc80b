//! Element-wise product with broadcasting.

use super::{OpDef, broadcasts, exactly, f32s};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;

/// `y = a * b`; axes of `b` of length 1 repeat.
///
/// Shapes: `a` any, `b` 1 or `a`'s length on each axis; `y` as `a`; f32, one rounding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mul;

impl OpDef for Mul {
    const NAME: &'static str = "mul";
    const TOLERANCE: f64 = 0.0;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        let [_, _] = exactly(inputs)?;
        let (a, b) = (f32s(inputs, 0)?, f32s(inputs, 1)?);
        broadcasts(a, b)?;
        Ok(vec![super::dense(g, a.dtype, a.shape)?])
    }

    fn reference(&self, call: &mut RefCall) {
        let [a, b] = &call.inputs[..] else { unreachable!("inferred") };
        for (n, y) in call.outputs[0].f.iter_mut().enumerate() {
            *y = a.f[n] * b.broadcast(a.unravel(n));
        }
    }
}
