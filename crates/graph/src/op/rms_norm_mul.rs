//! Root-mean-square normalisation with its weight: a fusion of two ops.

use super::{Mul, OpDef, RmsNorm, broadcasts, exactly, f32s};
use crate::graph::{Graph, Node, ShapeError, Type};
use crate::reference::RefCall;

/// `y = rms_norm(x) * w`, the product rounded on its own.
///
/// Shapes: `x: [n, …]`, `w: [n]`, `y: [n, …]`; f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNormMul {
    /// Added under the root.
    pub eps: f32,
}

impl OpDef for RmsNormMul {
    const NAME: &'static str = "rms_norm_mul";
    const TOLERANCE: f64 = 1e-12;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        let [_, _] = exactly(inputs)?;
        let (x, w) = (f32s(inputs, 0)?, f32s(inputs, 1)?);
        broadcasts(x, w)?;
        Ok(vec![super::dense(g, x.dtype, x.shape)?])
    }

    fn reference(&self, call: &mut RefCall) {
        let [x, w] = &call.inputs[..] else { unreachable!("inferred") };
        let y = &mut call.outputs[0];
        for r in 0..x.n_rows() {
            super::rms_norm::normalise(x.row(r), self.eps, y.row_mut(r));
            let at = x.unravel(r * x.dims[0]);
            for (i, y) in y.row_mut(r).iter_mut().enumerate() {
                *y *= w.broadcast([i, at[1], at[2], at[3]]);
            }
        }
    }

    fn expand(&self, g: &mut Graph, inputs: &[Node]) -> Option<Vec<Node>> {
        let n = g.push(RmsNorm { eps: self.eps }, &inputs[..1]);
        Some(vec![g.push(Mul, &[n, inputs[1]])])
    }
}
