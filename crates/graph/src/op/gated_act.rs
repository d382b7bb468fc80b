//! Gated activations.

use super::{ActKind, OpDef, exactly, expect_shape, f32s};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;

/// `y = f(gate) * up`, element by element: SwiGLU and GeGLU.
///
/// Shapes: `gate`, `up` and `y` the same; f32. `f(gate)` is rounded before the product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedAct {
    /// The function of the gate.
    pub kind: ActKind,
}

impl OpDef for GatedAct {
    const NAME: &'static str = "gated_act";
    const TOLERANCE: f64 = 1e-11;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        let [_, _] = exactly(inputs)?;
        let (gate, up) = (f32s(inputs, 0)?, f32s(inputs, 1)?);
        expect_shape(1, up.shape, gate.shape)?;
        Ok(vec![super::dense(g, gate.dtype, gate.shape)?])
    }

    fn reference(&self, call: &mut RefCall) {
        let [gate, up] = &call.inputs[..] else { unreachable!("inferred") };
        for ((y, a), b) in call.outputs[0].f.iter_mut().zip(&gate.f).zip(&up.f) {
            *y = (self.kind.exact(f64::from(*a)) * f64::from(*b)) as f32;
        }
    }
}
