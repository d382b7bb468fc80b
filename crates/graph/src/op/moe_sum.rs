//! The weighted sum of a token's experts.

use super::{OpDef, exactly, expect_shape, f32s};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;
use crate::shape::Shape;

/// `y[:, t] = sum_u weights[u, t] x[:, u, t]`, experts in rank order, one fma each from 0.
///
/// Shapes: `x: [n, U, T]`, `weights: [U, T]`, `y: [n, T]`; f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoeSum;

impl OpDef for MoeSum {
    const NAME: &'static str = "moe_sum";
    const TOLERANCE: f64 = 1e-12;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        let [_, _] = exactly(inputs)?;
        let (x, w) = (f32s(inputs, 0)?, f32s(inputs, 1)?);
        let [n, used, rows, _] = x.shape.axes();
        expect_shape(1, w.shape, Shape::new([used, rows]))?;
        Ok(vec![super::dense(g, x.dtype, Shape::new([n, rows]))?])
    }

    fn reference(&self, call: &mut RefCall) {
        let [x, w] = &call.inputs[..] else { unreachable!("inferred") };
        let (n, used) = (x.dims[0], x.dims[1]);
        for t in 0..x.dims[2] {
            for i in 0..n {
                let terms = (0..used).map(|u| f64::from(w.f[t * used + u]) * f64::from(x.row(t * used + u)[i]));
                call.outputs[0].row_mut(t)[i] = terms.sum::<f64>() as f32;
            }
        }
    }
}
