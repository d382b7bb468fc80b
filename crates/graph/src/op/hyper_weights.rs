//! The weights of manifold-constrained hyper-connections.

use super::{ActKind, OpDef, exactly, expect_shape, f32s};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;
use crate::shape::Shape;

/// Weights by which `n` residual streams enter a layer, take its result and mix, from one product `m` a token.
///
/// Shapes: `m: [n + n + n n, T]` (parts: pre, post, comb with the stream it goes to fastest), `scale: [3]`, `base` as a
/// row of `m`; `y` as `m`; f32. Each part is `scale m + base` (one fma), then
///
/// ```text
/// pre  = sigmoid(.) + eps
/// post = 2 sigmoid(.)
/// comb = softmax over the stream it goes to, + eps; then columns divided by (their sum + eps);
///        then, iterations - 1 times, rows and columns the same way
/// ```
///
/// A row is the stream it comes from, a column the stream it goes to; sums ascend. Source: Xie et al. 2025, arXiv
/// 2512.24880 (Sinkhorn and Knopp).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HyperWeights {
    /// Streams, n.
    pub streams: usize,
    /// Normalisations of the columns, at least 1.
    pub iterations: usize,
    /// Added to weights and sums.
    pub eps: f32,
}

impl HyperWeights {
    /// Numbers of a row.
    pub fn width(&self) -> usize {
        self.streams * (2 + self.streams)
    }
}

impl OpDef for HyperWeights {
    const NAME: &'static str = "hyper_weights";
    const TOLERANCE: f64 = 1e-11;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        let [_, _, _] = exactly(inputs)?;
        let m = f32s(inputs, 0)?;
        if self.streams == 0 || self.iterations == 0 {
            let what = format!("{} streams, {} iterations", self.streams, self.iterations);
            return Err(ShapeError::Param(what));
        }
        expect_shape(0, m.shape, Shape::new([self.width().into(), m.shape.axes()[1]]))?;
        expect_shape(1, f32s(inputs, 1)?.shape, Shape::fixed(&[3]))?;
        expect_shape(2, f32s(inputs, 2)?.shape, Shape::fixed(&[self.width()]))?;
        Ok(vec![super::dense(g, m.dtype, m.shape)?])
    }

    fn reference(&self, call: &mut RefCall) {
        let [m, scale, base] = &call.inputs[..] else { unreachable!("inferred") };
        let n = self.streams;
        for t in 0..m.n_rows() {
            let part = |i: usize| (i / n).min(2);
            let mixed = |(i, m): (usize, &f32)| {
                f64::from(scale.f[part(i)]) * f64::from(*m) + f64::from(base.f[i])
            };
            let mut x: Vec<f64> = m.row(t).iter().enumerate().map(mixed).collect();
            x[..n].iter_mut().for_each(|v| *v = ActKind::Sigmoid.exact(*v) + f64::from(self.eps));
            x[n..2 * n].iter_mut().for_each(|v| *v = 2.0 * ActKind::Sigmoid.exact(*v));
            self.balance(&mut x[2 * n..]);
            for (y, x) in call.outputs[0].row_mut(t).iter_mut().zip(x) {
                *y = x as f32;
            }
        }
    }
}

impl HyperWeights {
    fn balance(&self, c: &mut [f64]) {
        let (n, eps) = (self.streams, f64::from(self.eps));
        for row in c.chunks_mut(n) {
            let p = super::softmax::of(row);
            row.iter_mut().zip(p).for_each(|(c, p)| *c = p + eps);
        }
        for i in 0..self.iterations {
            if i > 0 {
                for row in c.chunks_mut(n) {
                    let sum = row.iter().sum::<f64>() + eps;
                    row.iter_mut().for_each(|c| *c /= sum);
                }
            }
            for column in 0..n {
                let sum = c[column..].iter().step_by(n).sum::<f64>() + eps;
                c[column..].iter_mut().step_by(n).for_each(|c| *c /= sum);
            }
        }
    }
}
