//! Attention over pages.

use super::{OpDef, f32s, state};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;
use crate::shape::{Extent, Shape, Sym};
use crate::state::{PAGE, seq_table};

/// `y = softmax over visible keys of (scale q.k) times v`, for each query head and row.
///
/// Shapes: `state` (the version that the step's rows were written to), `q: [key_dim, heads, T]` f32,
/// `seqs: [4, S]`, `pages: [max_pages, S]` i32, optionally `sinks: [heads]` f32 (one more score per head, without
/// a value); `y: [value_dim, heads, T]` f32. Query head `h` reads head `h / (heads / kv heads)`. A key at index
/// `j` is visible to the row at index `i` when `j <= i` and, with a window, `i - j < window`. Every row of the
/// step belongs to one sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attend {
    /// Factor of the products.
    pub scale: f32,
    /// `c tanh(scale q.k / c)` in place of the product, where not 0.
    pub softcap: f32,
    /// Keys further back are hidden.
    pub window: Option<usize>,
}

impl OpDef for Attend {
    const NAME: &'static str = "attend";
    const TOLERANCE: f64 = 1e-10;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        if !(4..=5).contains(&inputs.len()) {
            return Err(ShapeError::Arity { expected: "4 or 5", found: inputs.len() });
        }
        let s = state(inputs, 0)?;
        let kv = super::kv_write::keys_and_values(g, s)?;
        let q = f32s(inputs, 1)?;
        let heads = q.shape.constant(1).unwrap_or(0);
        if q.shape.constant(0) != Some(kv.key_dim) || q.shape.axes()[2] != Extent::Sym(Sym::T) {
            let expected = format!("[{}, heads, T]", kv.key_dim);
            return Err(ShapeError::Mismatch { operand: 1, expected, found: q.shape });
        }
        if kv.n_heads == 0 || !heads.is_multiple_of(kv.n_heads) {
            return Err(ShapeError::Param(format!(
                "{heads} query heads are no multiple of {} kv heads",
                kv.n_heads
            )));
        }
        if self.window == Some(0) {
            return Err(ShapeError::Param("a window of 0 hides every key".into()));
        }
        super::kv_write::expect_tables(inputs, 2)?;
        if inputs.len() == 5 {
            super::expect_shape(4, f32s(inputs, 4)?.shape, Shape::fixed(&[heads]))?;
        }
        let y = Shape::new([kv.value_dim.into(), heads.into(), Sym::T.into()]);
        Ok(vec![super::dense(g, q.dtype, y)?])
    }

    fn reference(&self, call: &mut RefCall) {
        let (q, seqs, pages) = (&call.inputs[1], &call.inputs[2], &call.inputs[3]);
        let sinks = call.inputs.get(4);
        let state = call.state.as_deref().expect("a state op has a state");
        let group = q.dims[1] / state.kv().n_heads;
        for s in 0..call.extents.s {
            let table = &seqs.i[s * seq_table::WIDTH..];
            for r in 0..table[seq_table::N_ROWS] as usize {
                let index = table[seq_table::FIRST_INDEX] as usize + r;
                let first = self.window.map_or(0, |w| (index + 1).saturating_sub(w));
                for h in 0..q.dims[1] {
                    let at = (table[seq_table::FIRST_ROW] as usize + r) * q.dims[1] + h;
                    let keys = (first..=index).map(|j| {
                        let page = pages.i[s * pages.dims[0] + j / PAGE];
                        state.read(page, j % PAGE, h / group)
                    });
                    let sink = sinks.map(|x| f64::from(x.f[h]));
                    self.one(q.row(at), keys, sink, call.outputs[0].row_mut(at));
                }
            }
        }
    }
}

impl Attend {
    /// One head of one row, in f64.
    pub(super) fn one<'a>(
        &self,
        q: &[f32],
        keys: impl Iterator<Item = (&'a [f32], &'a [f32])>,
        sink: Option<f64>,
        y: &mut [f32],
    ) {
        let keys: Vec<_> = keys.collect();
        let score = |k: &[f32]| {
            let dot: f64 = q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            let cap = f64::from(self.softcap);
            let s = dot * f64::from(self.scale);
            if cap == 0.0 { s } else { cap * (s / cap).tanh() }
        };
        let scores: Vec<f64> = keys.iter().map(|(k, _)| score(k)).collect();
        let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
        let p: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
        let sum: f64 = p.iter().sum::<f64>() + sink.map_or(0.0, |s| (s - max).exp());
        for (j, y) in y.iter_mut().enumerate() {
            let value: f64 = keys.iter().zip(&p).map(|((_, v), p)| p * f64::from(v[j])).sum();
            *y = (value / sum) as f32;
        }
    }
}
