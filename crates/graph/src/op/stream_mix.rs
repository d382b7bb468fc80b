//! Residual streams mixed, and a layer's result added to each.

use super::{OpDef, exactly, expect_shape, f32s};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;
use crate::shape::Shape;

/// `y[:, d, t] = post[d, t] x[:, t] + sum_s comb[d, s, t] r[:, s, t]`: one product, then a chain of fma over `s` ascending.
///
/// Shapes: `r: [n, S, T]`, `comb: [S, S, T]` (the stream it goes to fastest), `x: [n, T]`, `post: [S, T]`; `y: [n, S, T]`; f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamMix;

impl OpDef for StreamMix {
    const NAME: &'static str = "stream_mix";
    const TOLERANCE: f64 = 1e-12;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        let [_, _, _, _] = exactly(inputs)?;
        let r = f32s(inputs, 0)?;
        let [n, streams, rows, _] = r.shape.axes();
        expect_shape(1, f32s(inputs, 1)?.shape, Shape::new([streams, streams, rows]))?;
        expect_shape(2, f32s(inputs, 2)?.shape, Shape::new([n, rows]))?;
        expect_shape(3, f32s(inputs, 3)?.shape, Shape::new([streams, rows]))?;
        Ok(vec![super::dense(g, r.dtype, r.shape)?])
    }

    fn reference(&self, call: &mut RefCall) {
        let [r, comb, x, post] = &call.inputs[..] else { unreachable!("inferred") };
        let [n, streams, rows, _] = r.dims;
        for t in 0..rows {
            for d in 0..streams {
                for i in 0..n {
                    let own = f64::from(post.row(t)[d]) * f64::from(x.row(t)[i]);
                    let others = (0..streams).map(|s| {
                        f64::from(comb.row(t * streams + s)[d]) * f64::from(r.row(t * streams + s)[i])
                    });
                    call.outputs[0].row_mut(t * streams + d)[i] = (own + others.sum::<f64>()) as f32;
                }
            }
        }
    }
}
