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
/// a value) and, where `reach` is not 0, `near: [2 reach + 1, heads]` f32; `y: [value_dim, heads, T]` f32. Query head `h` reads
/// head `h / (heads / kv heads)`. Every row of the step belongs to one sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attend {
    /// Factor of the products.
    pub scale: f32,
    /// `c tanh(scale q.k / c)` in place of the product, where not 0.
    pub softcap: f32,
    /// The keys that a row sees.
    pub sight: Sight,
    /// ALiBi's largest bias: [`Attend::slope`] times the distance is taken from every score; 0 for none. Source: Press et
    /// al. 2021, arXiv 2108.12409.
    pub alibi: f32,
    /// Where not 0, the score of the key at `j` for the row at `i` has `near[j - i + reach]` of its head added, further keys
    /// that of the end on their side. Source: Raffel et al. 2020, arXiv 1910.10683.
    pub reach: usize,
}

/// The keys that a row sees, by index in its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// Those at or before it.
    Past,
    /// The row itself and those before it, so many together.
    Window(usize),
    /// Those at or before it, from the last multiple of a number.
    Chunk(usize),
    /// All of its sequence, whose rows must all be in one step.
    Whole,
    /// As `Whole`, those at most so far away.
    Near(usize),
}

impl Sight {
    /// Past keys, all or those in a window.
    pub fn within(window: Option<usize>) -> Self {
        window.map_or(Sight::Past, Sight::Window)
    }

    /// The keys that the row at `index` sees in a sequence of `len`, without a gap.
    pub fn keys(self, index: usize, len: usize) -> std::ops::Range<usize> {
        match self {
            Sight::Past => 0..index + 1,
            Sight::Window(n) => (index + 1).saturating_sub(n)..index + 1,
            Sight::Chunk(n) => index / n * n..index + 1,
            Sight::Whole => 0..len,
            Sight::Near(n) => index.saturating_sub(n)..(index + n + 1).min(len),
        }
    }
}

impl Attend {
    /// All past keys, without a cap or a bias.
    pub fn new(scale: f32) -> Self {
        Attend { scale, softcap: 0.0, sight: Sight::Past, alibi: 0.0, reach: 0 }
    }

    /// Where the number that is added to the score of the key at `j` for the row at `index` stands.
    pub fn place(&self, index: usize, j: usize) -> usize {
        (j + self.reach).saturating_sub(index).min(2 * self.reach)
    }

    /// ALiBi's slope of head `h` of `heads`.
    pub fn slope(&self, h: usize, heads: usize) -> f64 {
        let n = 1 << heads.ilog2();
        let part = if h < n { (h + 1) as f64 / n as f64 } else { (2 * (h - n) + 1) as f64 / (2 * n) as f64 };
        crate::math::exp2(-f64::from(self.alibi) * part)
    }
}

impl OpDef for Attend {
    const NAME: &'static str = "attend";
    const TOLERANCE: f64 = 1e-10;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        let near = usize::from(self.reach > 0);
        if !(4..=5).contains(&inputs.len().saturating_sub(near)) {
            let expected = ["4 or 5", "5 or 6"][near];
            return Err(ShapeError::Arity { expected, found: inputs.len() });
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
        if matches!(self.sight, Sight::Window(0) | Sight::Chunk(0)) {
            return Err(ShapeError::Param("a window of 0 hides every key".into()));
        }
        if (self.alibi != 0.0 || near > 0) && kv.value_in_key {
            return Err(ShapeError::Param("scores of keys that hold their values have no bias".into()));
        }
        super::kv_write::expect_tables(inputs, 2)?;
        if inputs.len() - near == 5 {
            super::expect_shape(4, f32s(inputs, 4)?.shape, Shape::fixed(&[heads]))?;
        }
        if near > 0 {
            let (last, n) = (inputs.len() - 1, self.reach.saturating_mul(2).saturating_add(1));
            super::expect_shape(last, f32s(inputs, last)?.shape, Shape::fixed(&[n, heads]))?;
        }
        let y = Shape::new([kv.value_dim.into(), heads.into(), Sym::T.into()]);
        Ok(vec![super::dense(g, q.dtype, y)?])
    }

    fn reference(&self, call: &mut RefCall) {
        let (q, seqs, pages) = (&call.inputs[1], &call.inputs[2], &call.inputs[3]);
        let near = (self.reach > 0).then(|| &call.inputs[call.inputs.len() - 1]);
        let sinks = call.inputs[..call.inputs.len() - usize::from(near.is_some())].get(4);
        let state = call.state.as_deref().expect("a state op has a state");
        let group = q.dims[1] / state.kv().n_heads;
        for s in 0..call.extents.s {
            let table = &seqs.i[s * seq_table::WIDTH..];
            for r in 0..table[seq_table::N_ROWS] as usize {
                let index = table[seq_table::FIRST_INDEX] as usize + r;
                let len = (table[seq_table::FIRST_INDEX] + table[seq_table::N_ROWS]) as usize;
                for h in 0..q.dims[1] {
                    let at = (table[seq_table::FIRST_ROW] as usize + r) * q.dims[1] + h;
                    let slope = if self.alibi == 0.0 { 0.0 } else { self.slope(h, q.dims[1]) };
                    let keys = self.sight.keys(index, len).map(|j| {
                        let page = pages.i[s * pages.dims[0] + j / PAGE];
                        let (k, v) = state.read(page, j % PAGE, h / group);
                        let near = near.map_or(0.0, |n| f64::from(n.row(h)[self.place(index, j)]));
                        (k, v, near - slope * index.abs_diff(j) as f64)
                    });
                    let sink = sinks.map(|x| f64::from(x.f[h]));
                    self.one(q.row(at), keys, sink, call.outputs[0].row_mut(at));
                }
            }
        }
    }
}

impl Attend {
    /// One head of one row, in f64, over keys, values and what is added to their scores.
    pub(super) fn one<'a>(
        &self,
        q: &[f32],
        keys: impl Iterator<Item = (&'a [f32], &'a [f32], f64)>,
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
        let scores: Vec<f64> = keys.iter().map(|(k, _, bias)| score(k) + bias).collect();
        let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
        let p: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
        let sum: f64 = p.iter().sum::<f64>() + sink.map_or(0.0, |s| (s - max).exp());
        for (j, y) in y.iter_mut().enumerate() {
            let value: f64 = keys.iter().zip(&p).map(|((_, v, _), p)| p * f64::from(v[j])).sum();
            *y = (value / sum) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_row_sees() {
        assert_eq!(Sight::Past.keys(7, 9), 0..8);
        assert_eq!(Sight::Window(3).keys(7, 9), 5..8);
        assert_eq!(Sight::Window(30).keys(7, 9), 0..8);
        assert_eq!((Sight::Chunk(4).keys(7, 9), Sight::Chunk(4).keys(8, 9)), (4..8, 8..9));
        assert_eq!(Sight::Whole.keys(7, 9), 0..9);
        assert_eq!((Sight::Near(2).keys(1, 9), Sight::Near(2).keys(7, 9)), (0..4, 5..9));
    }

    #[test]
    fn places_of_near_keys() {
        let op = Attend { reach: 2, ..Attend::new(1.0) };
        let places = |index| (0..9).map(|j| op.place(index, j)).collect::<Vec<_>>();
        assert_eq!(places(4), [0, 0, 0, 1, 2, 3, 4, 4, 4]);
        assert_eq!(places(0), [2, 3, 4, 4, 4, 4, 4, 4, 4]);
    }

    #[test]
    fn slopes_of_heads() {
        let op = Attend { alibi: 8.0, ..Attend::new(1.0) };
        let slopes = |n: usize| (0..n).map(|h| op.slope(h, n)).collect::<Vec<f64>>();
        assert_eq!(slopes(8)[..3], [0.5, 0.25, 0.125]);
        assert_eq!(slopes(1), [2f64.powi(-8)]);
        // Those of two heads, then the first of four.
        assert_eq!(slopes(3), [2f64.powi(-4), 2f64.powi(-8), 2f64.powi(-2)]);
    }
}
