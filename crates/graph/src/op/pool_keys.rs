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
/// softmax_j(gate_j[d] + place[d, j]) key_j[d]` with `place` a weight. With `overlap` a pool is made of the tokens before it,
/// too, as many again where there are any: a row is a key for the pool behind its own, one for its own, and the gates of
/// both; places likewise.
///
/// Shapes: `ring` (f32, rows of `x`, at least `ratio - 1` of them, `2 ratio - 1` with overlap), `x: [n, T]`, gated
/// `[2 n, T]`, with overlap `[4 n, T]`, then, gated, `place: [n, ratio]` or `[2 n, ratio]`, `seqs: [4, S]`,
/// `slots: [4, S]` i32; results `y: [n, T]` f32 (zeros where no pool ends), `first: [T]` i32 (the index of the pool's
/// first token, 0 where no pool ends), and the ring's next version.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolKeys {
    /// Tokens of a pool.
    pub ratio: usize,
    /// Whether keys are weighed by gates.
    pub gated: bool,
    /// Whether pools reach into those before them; only with gates.
    pub overlap: bool,
}

impl PoolKeys {
    /// Numbers of a row for each number of a key.
    pub fn parts(&self) -> usize {
        match (self.gated, self.overlap) {
            (false, _) => 1,
            (true, false) => 2,
            (true, true) => 4,
        }
    }

    /// Rows before its last that a pool is made of.
    pub fn reach(&self) -> usize {
        if self.overlap { 2 * self.ratio - 1 } else { self.ratio - 1 }
    }
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
        let (n, parts) = (width / self.parts(), self.parts());
        if self.ratio == 0 || n == 0 || !width.is_multiple_of(parts) || (self.overlap && !self.gated) {
            return Err(ShapeError::Param(format!("pools of {} rows of {width}", self.ratio)));
        }
        expect_shape(1, x.shape, Shape::new([width.into(), Sym::T.into()]))?;
        if self.gated {
            expect_shape(2, f32s(inputs, 2)?.shape, Shape::fixed(&[width / 2, self.ratio]))?;
        }
        slots::ring(g, s, width, self.reach())?;
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
            // The first pool has none before it.
            let n = (self.reach() + 1).min(index(row) + 1);
            let pool: Vec<Array> = (0..n).rev().map(|n| past(n).expect("in the pool")).collect();
            self.pool(&pool, place, y.row_mut(row));
        });
    }
}

impl PoolKeys {
    fn pool(&self, pool: &[Array], place: Option<&Array>, y: &mut [f32]) {
        let n = y.len();
        // Rows of the pool itself lie behind those before it.
        let own = pool.len() - self.ratio;
        let half = |j: usize| if self.overlap && j >= own { n } else { 0 };
        for (d, y) in y.iter_mut().enumerate() {
            let key = |j: usize| f64::from(pool[j].f[half(j) + d]);
            let weights = match place {
                None => vec![1.0 / self.ratio as f64; self.ratio],
                Some(place) => {
                    let gates = n * self.parts() / 2;
                    let gate = |j: usize| {
                        let place = place.row(j % self.ratio)[half(j) + d];
                        f64::from(pool[j].f[gates + half(j) + d]) + f64::from(place)
                    };
                    super::softmax::of(&(0..pool.len()).map(gate).collect::<Vec<f64>>())
                }
            };
            *y = weights.iter().enumerate().map(|(j, w)| w * key(j)).sum::<f64>() as f32;
        }
    }
}
