//! An indexer's choice of pools.

use super::{OpDef, expect_shape, f32s, state};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::{Array, RefCall};
use crate::shape::{Shape, Sym};
use crate::state::{PAGE, seq_table};
use firth_quant::Dtype;

/// The `n` pools of the largest score for each row, as pool numbers ascending, -1 behind them where there are fewer.
///
/// The score of a pool is `sum_h weights_h relu(q_h . key)` (all weights 1 where there are none), heads ascending; ties
/// go to the lowest pool. Pool `p` are the tokens of index `ratio p .. ratio (p + 1)`; its key lies at the last of them.
/// Only pools that end at or before the row take part.
///
/// Shapes: `state` (keys of one head, f32, the version that the step's keys were written to), `q: [key_dim, H, T]` f32,
/// optionally `weights: [H, T]` f32, `seqs: [4, S]`, `pages: [max_pages, S]` i32; `y: [n, T]` i32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TopKSelect {
    /// Tokens of a pool.
    pub ratio: usize,
    /// Pools chosen.
    pub n: usize,
}

impl TopKSelect {
    /// Pools that end at or before the token of this index.
    pub fn pools(&self, index: usize) -> usize {
        (index + 1) / self.ratio
    }
}

impl OpDef for TopKSelect {
    const NAME: &'static str = "top_k_select";
    const TOLERANCE: f64 = 0.0;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        if !(4..=5).contains(&inputs.len()) {
            return Err(ShapeError::Arity { expected: "4 or 5", found: inputs.len() });
        }
        let kv = super::kv_write::keys_and_values(g, state(inputs, 0)?)?;
        if kv.n_heads != 1 || kv.dtype != Dtype::F32 {
            let what = format!("{} heads of {}", kv.n_heads, kv.dtype.name());
            return Err(ShapeError::Param(format!("keys of pools are one head of f32, found {what}")));
        }
        if self.ratio == 0 || self.n == 0 {
            return Err(ShapeError::Param(format!("{} pools of {} tokens", self.n, self.ratio)));
        }
        let q = f32s(inputs, 1)?;
        let [_, heads, ..] = q.shape.axes();
        expect_shape(1, q.shape, Shape::new([kv.key_dim.into(), heads, Sym::T.into()]))?;
        if inputs.len() == 5 {
            expect_shape(2, f32s(inputs, 2)?.shape, Shape::new([heads, Sym::T.into()]))?;
        }
        super::kv_write::expect_tables(inputs, inputs.len() - 2)?;
        Ok(vec![super::dense(g, Dtype::I32, Shape::new([self.n.into(), Sym::T.into()]))?])
    }

    fn reference(&self, call: &mut RefCall) {
        let n_inputs = call.inputs.len();
        let q = &call.inputs[1];
        let weights = (n_inputs == 5).then(|| &call.inputs[2]);
        let (seqs, pages) = (&call.inputs[n_inputs - 2], &call.inputs[n_inputs - 1]);
        let state = call.state.as_deref().expect("a state op has a state");
        for (s, table) in seqs.i.chunks_exact(seq_table::WIDTH).enumerate() {
            for r in 0..table[seq_table::N_ROWS] as usize {
                let row = table[seq_table::FIRST_ROW] as usize + r;
                let key = |p: usize| {
                    let at = self.ratio * (p + 1) - 1;
                    state.read(pages.i[s * pages.dims[0] + at / PAGE], at % PAGE, 0).0
                };
                let pools = self.pools(table[seq_table::FIRST_INDEX] as usize + r);
                let score: Vec<f64> = (0..pools).map(|p| score(q, weights, row, key(p))).collect();
                let mut best: Vec<usize> = (0..pools).collect();
                best.sort_by(|&a, &b| score[b].total_cmp(&score[a]).then(a.cmp(&b)));
                best.truncate(self.n);
                best.sort_unstable();
                let chosen = best.iter().map(|p| *p as i32).chain(std::iter::repeat(-1));
                let out = &mut call.outputs[0].i[row * self.n..(row + 1) * self.n];
                out.iter_mut().zip(chosen).for_each(|(y, p)| *y = p);
            }
        }
    }
}

fn score(q: &Array, weights: Option<&Array>, row: usize, key: &[f32]) -> f64 {
    let heads = q.dims[1];
    let head = |h: usize| {
        let q = q.row(row * heads + h);
        let dot: f64 = q.iter().zip(key).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
        weights.map_or(1.0, |w| f64::from(w.row(row)[h])) * dot.max(0.0)
    };
    // A zero has no sign here: -0 would sort behind +0.
    (0..heads).map(head).sum::<f64>() + 0.0
}
