//! A residual sum and the norm that follows it: a fusion of two ops with two results.

use super::{Add, OpDef, RmsNormMul, broadcasts, exactly, expect_shape, f32s};
use crate::graph::{Graph, Node, ShapeError, Type};
use crate::reference::RefCall;

/// `sum = a + b` and `y = rms_norm(sum) * w`.
///
/// Shapes: `a`, `b: [n, …]`, `w: [n]`; results `sum` and `y: [n, …]`; f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AddRmsNormMul {
    /// Added under the root.
    pub eps: f32,
}

impl OpDef for AddRmsNormMul {
    const NAME: &'static str = "add_rms_norm_mul";
    const TOLERANCE: f64 = 1e-12;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        let [_, _, _] = exactly(inputs)?;
        let (a, b, w) = (f32s(inputs, 0)?, f32s(inputs, 1)?, f32s(inputs, 2)?);
        expect_shape(1, b.shape, a.shape)?;
        broadcasts(a, w)?;
        let y = super::dense(g, a.dtype, a.shape)?;
        Ok(vec![y, y])
    }

    fn reference(&self, call: &mut RefCall) {
        let [a, b, w] = &call.inputs[..] else { unreachable!("inferred") };
        let [sum, y] = &mut call.outputs[..] else { unreachable!("inferred") };
        for ((s, a), b) in sum.f.iter_mut().zip(&a.f).zip(&b.f) {
            *s = a + b;
        }
        for r in 0..sum.n_rows() {
            super::rms_norm::normalise(sum.row(r), self.eps, y.row_mut(r));
            let at = sum.unravel(r * sum.dims[0]);
            for (i, y) in y.row_mut(r).iter_mut().enumerate() {
                *y *= w.broadcast([i, at[1], at[2], at[3]]);
            }
        }
    }

    fn expand(&self, g: &mut Graph, inputs: &[Node]) -> Option<Vec<Node>> {
        let sum = g.push(Add, &inputs[..2]);
        Some(vec![sum, g.push(RmsNormMul { eps: self.eps }, &[sum, inputs[2]])])
    }
}
