//! Causal depthwise convolution over the rows of a sequence.

use super::slots::{self, Span};
use super::{OpDef, expect_shape, f32s, state};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;
use crate::shape::{Shape, Sym};

/// `y[c, t] = act(sum_j w[j, c] x[c, t - (kernel - 1 - j) dilation] + bias[c])`: tap `kernel - 1` meets the row
/// itself. Rows before the step come from the ring, rows before the sequence are zero.
///
/// Shapes: `ring` (rows of `C` f32, at least `(kernel - 1) dilation` of them), `x: [C, T]`, `w: [kernel, C]` f32,
/// optionally `bias: [C]` f32, `seqs: [4, S]`, `slots: [4, S]` i32; results `y: [C, T]` f32 and the ring's next
/// version with the step's rows of `x`. One chain of fma over taps ascending from +0, then the bias, then SiLU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conv {
    /// Taps.
    pub kernel: usize,
    /// Rows from one tap to the next, 1 for neighbours.
    pub dilation: usize,
    /// Whether the sum goes through SiLU.
    pub silu: bool,
}

impl Conv {
    /// Rows before a row that it reads.
    pub fn reach(&self) -> usize {
        self.kernel.saturating_sub(1) * self.dilation
    }
}

impl OpDef for Conv {
    const NAME: &'static str = "conv";
    const TOLERANCE: f64 = 1e-11;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        if !(5..=6).contains(&inputs.len()) {
            return Err(ShapeError::Arity { expected: "5 or 6", found: inputs.len() });
        }
        if self.kernel == 0 || self.dilation == 0 {
            return Err(ShapeError::Param(format!("{} taps {} apart", self.kernel, self.dilation)));
        }
        let s = state(inputs, 0)?;
        let x = f32s(inputs, 1)?;
        let c = x.shape.constant(0).unwrap_or(0);
        slots::ring(g, s, c, self.reach())?;
        expect_shape(1, x.shape, Shape::new([c.into(), Sym::T.into()]))?;
        expect_shape(2, f32s(inputs, 2)?.shape, Shape::fixed(&[self.kernel, c]))?;
        if inputs.len() == 6 {
            expect_shape(3, f32s(inputs, 3)?.shape, Shape::fixed(&[c]))?;
        }
        slots::expect_tables(inputs, inputs.len() - 2)?;
        Ok(vec![super::dense(g, x.dtype, x.shape)?, Type::State(s)])
    }

    fn reference(&self, call: &mut RefCall) {
        let n = call.inputs.len();
        let (x, w) = (&call.inputs[1], &call.inputs[2]);
        let bias = (n == 6).then(|| &call.inputs[3]);
        let spans: Vec<Span> = slots::spans(&call.inputs[n - 2], &call.inputs[n - 1]);
        let state = call.state.as_deref_mut().expect("a state op has a state");
        let y = &mut call.outputs[0];
        slots::run_ring(state, &spans, x, |row, past| {
            let taps: Vec<_> = (0..self.kernel).map(|j| past((self.kernel - 1 - j) * self.dilation)).collect();
            for (c, y) in y.row_mut(row).iter_mut().enumerate() {
                let term = |(j, x): (usize, &Option<crate::reference::Array>)| {
                    x.as_ref().map_or(0.0, |x| f64::from(x.f[c]) * f64::from(w.row(c)[j]))
                };
                let sum: f64 = taps.iter().enumerate().map(term).sum();
                let sum = sum + bias.map_or(0.0, |b| f64::from(b.f[c]));
                *y = if self.silu { super::ActKind::Silu.exact(sum) } else { sum } as f32;
            }
        });
    }
}
