//! Keys of an indexer, pooled.

use super::{OpDef, expect_shape, f32s, slots, state};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::{Array, RefCall};
use crate::shape::{Shape, Sym};
use firth_quant::Dtype;

/// One key for every `ratio` tokens of a sequence, at the last of them: the tokens of index `ratio p .. ratio (p + 1)` are
/// pool `p`.
///
/// Plain, `y = (sum of the keys) / ratio`, ascending. Gated, a row is a key and a gate behind it, and `y[d] = sum_j
/// softmax_j(gate_j[d] + place[d, j]) key_j[d]` with `place` a weight.
///
/// Shapes: `ring` (f32, rows of `x`, at least `ratio - 1` of them), `x: [n, T]` or, gated, `[2 n, T]`, then, gated,
/// `place: [n, ratio]`, `seqs: [4, S]`, `slots: [4, S]` i32; results `y: [n, T]` f32 (zeros where no pool ends), `first: [T]`
/// i32 (the index of the pool's first token, 0 where no pool ends), and the ring's next version.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolKeys {
    /// Tokens of a pool.
    pub ratio: usize,
    /// Whether keys are weighed by gates.
    pub gated: bool,
}

impl OpDef for PoolKeys {
    const NAME: &'static str = "pool_keys";
    const TOLERANCE: f64 = 1e-11;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        let expected = if self.gated { 5 } else { 4 };
        if inputs.len() != expected {
            let expected = if self.gated { "5" } else { "4" };
            return Err(ShapeError::Arity { expected, found: inputs.len() });
        }
        let s = state(inputs, 0)?;
        let x = f32s(inputs, 1)?;
        let width = x.shape.constant(0).unwrap_or(0);
        let n = if self.gated { width / 2 } else { width };
        if self.ratio == 0 || n == 0 || (self.gated && !width.is_multiple_of(2)) {
            return Err(ShapeError::Param(format!("pools of {} rows of {width}", self.ratio)));
        }
        expect_shape(1, x.shape, Shape::new([width.into(), Sym::T.into()]))?;
        if self.gated {
            expect_shape(2, f32s(inputs, 2)?.shape, Shape::fixed(&[n, self.ratio]))?;
        }
        slots::ring(g, s, width, self.ratio - 1)?;
        slots::expect_tables(inputs, expected - 2)?;
        let y = super::dense(g, Dtype::F32, Shape::new([n.into(), Sym::T.into()]))?;
        let first = super::dense(g, Dtype::I32, Shape::new([Sym::T.into()]))?;
        Ok(vec![y, first, Type::State(s)])
    }

    fn reference(&self, call: &mut RefCall) {
        let n_inputs = call.inputs.len();
        let x = &call.inputs[1];
        let place = self.gated.then(|| &call.inputs[2]);
        let spans = slots::spans(&call.inputs[n_inputs - 2], &call.inputs[n_inputs - 1]);
        let state = call.state.as_deref_mut().expect("a state op has a state");
        let [y, first, ..] = &mut call.outputs[..] else { unreachable!("inferred") };
        // The index of each row: `run_ring` tells only what came before it.
        let index = |row: usize| {
            let s = spans.iter().find(|s| (s.first_row..s.first_row + s.n_rows).contains(&row));
            s.map(|s| s.first_index + row - s.first_row).expect("a row of a sequence")
        };
        slots::run_ring(state, &spans, x, |row, past| {
            if (index(row) + 1) % self.ratio != 0 {
                return;
            }
            first.i[row] = (index(row) + 1 - self.ratio) as i32;
            let pool: Vec<Array> = (0..self.ratio).rev().map(|n| past(n).expect("in the pool")).collect();
            self.pool(&pool, place, y.row_mut(row));
        });
    }
}

impl PoolKeys {
    fn pool(&self, pool: &[Array], place: Option<&Array>, y: &mut [f32]) {
        let n = y.len();
        for (d, y) in y.iter_mut().enumerate() {
            let key = |j: usize| f64::from(pool[j].f[d]);
            let weights = match place {
                None => vec![1.0 / self.ratio as f64; self.ratio],
                Some(place) => {
                    let gate = |j: usize| f64::from(pool[j].f[n + d]) + f64::from(place.row(j)[d]);
                    super::softmax::of(&(0..self.ratio).map(gate).collect::<Vec<f64>>())
                }
            };
            *y = weights.iter().enumerate().map(|(j, w)| w * key(j)).sum::<f64>() as f32;
        }
    }
}
