//! Linear attention with one fixed decay per head.

use super::{OpDef, exactly, expect_shape, f32s, slots, state};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::{Array, RefCall};
use crate::shape::{Shape, Sym};

/// Per head, with state `M [S, Sv]` (key by value), token by token: `M = decay M + k v^T`, `o = M^T q`.
///
/// Shapes: `state` (base `[S, Sv, H]`), `q, k: [S, H, T]`, `v: [Sv, H, T]` f32, `seqs: [4, S]`, `slots: [4, S]` i32;
/// results `o: [Sv, H, T]` f32 and the state's next version. A logged row is k and v of all heads. Source:
/// lightning attention, Qin et al. 2024, arXiv 2401.04658.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearAttention {
    /// Factor of the state per head.
    pub decay: Vec<f32>,
}

impl OpDef for LinearAttention {
    const NAME: &'static str = "linear_attention";
    const TOLERANCE: f64 = 1e-10;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        let [_, _, _, _, _, _] = exactly(inputs)?;
        let s = state(inputs, 0)?;
        let (q, v) = (f32s(inputs, 1)?, f32s(inputs, 3)?);
        let n = |s: &Shape, axis: usize| s.constant(axis).unwrap_or(0);
        let (key, heads, value) = (n(&q.shape, 0), n(&q.shape, 1), n(&v.shape, 0));
        if heads != self.decay.len() || key * heads * value == 0 {
            return Err(ShapeError::Param(format!(
                "{heads} heads of {key} by {value} and {} decays",
                self.decay.len()
            )));
        }
        let row = |n: usize| Shape::new([n.into(), heads.into(), Sym::T.into()]);
        expect_shape(1, q.shape, row(key))?;
        expect_shape(2, f32s(inputs, 2)?.shape, row(key))?;
        expect_shape(3, v.shape, row(value))?;
        slots::expect_tables(inputs, 4)?;
        slots::recurrence(g, s, [key, value, heads], (key + value) * heads)?;
        Ok(vec![super::dense(g, v.dtype, v.shape)?, Type::State(s)])
    }

    fn reference(&self, call: &mut RefCall) {
        let [_, q, k, v, seqs, slots] = &call.inputs[..] else { unreachable!("inferred") };
        let (key, heads, value) = (k.dims[0], k.dims[1], v.dims[0]);
        let token = |x: &Array, n: usize, row: usize| x.f[row * n..(row + 1) * n].to_vec();
        let logged = |row: usize| [token(k, key * heads, row), token(v, value * heads, row)].concat();
        let spans = slots::spans(seqs, slots);
        let state = call.state.as_deref_mut().expect("a state op has a state");
        let o = &mut call.outputs[0];
        slots::run_recurrence(state, &spans, logged, |m, x, row| {
            for (at, m) in m.chunks_exact_mut(key).enumerate() {
                let h = at / value;
                let (k, v) = (&x[h * key..][..key], f64::from(x[key * heads + at]));
                for (m, k) in m.iter_mut().zip(k) {
                    *m = f64::from(self.decay[h]) * *m + f64::from(*k) * v;
                }
                let Some(row) = row else { continue };
                let sum: f64 = m.iter().zip(q.row(row * heads + h)).map(|(m, q)| m * f64::from(*q)).sum();
                o.f[row * heads * value + at] = sum as f32;
            }
        });
    }
}
