//! Rows of a table by the last few tokens.

use super::{OpDef, READY_ROW, exactly, expect_shape, i32s, slots, state};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;
use crate::shape::{Shape, Sym};
use firth_quant::Dtype;

/// `y[:, h, t] = table[:, row_h]`, where `row_h` is a hash of the last `n` tokens of the sequence, for `n` from 2 up.
///
/// With `x_0` the token, `x_1` the one before it and so on, `mix_n = x_0 m_0 xor … xor x_(n-1) m_(n-1)` in wrapping 64 bits,
/// and `row_h = mix_n mod size_h + offset_h`; the heads of a length follow one another, lengths ascending. A token
/// before the sequence reads as `end`, and so does everything from the first `end` before the token on back.
///
/// Shapes: `ring` (i32, width 1, at least `lengths` rows), `tokens: [T]` i32 (`READY_ROW` counts as `ready`), `table:
/// [n, rows]` of any type, `seqs: [4, S]`, `slots: [4, S]` i32; results `y: [n, H, T]` f32 and the ring's next version
/// with the step's ids.
#[derive(Clone, Debug, PartialEq)]
pub struct NgramRows {
    /// Factors of the tokens, nearest first: as many as the longest n-gram has.
    pub multipliers: Vec<u64>,
    /// Rows of each head.
    pub sizes: Vec<u64>,
    /// First row of each head.
    pub offsets: Vec<u64>,
    /// The token that ends a text.
    pub end: i32,
    /// What a row without a token counts as.
    pub ready: i32,
}

impl NgramRows {
    /// Tokens before a token that its rows depend on.
    pub fn reach(&self) -> usize {
        self.multipliers.len().saturating_sub(1)
    }

    /// The id that stands for a token input.
    pub fn id(&self, token: i32) -> i32 {
        if token == READY_ROW { self.ready } else { token }
    }

    /// Rows of a token. `before(n)` is the id `n` tokens back, `None` before the sequence; `row(h, r)` is told each.
    pub fn rows(&self, token: i32, before: impl Fn(usize) -> Option<i32>, mut row: impl FnMut(usize, u64)) {
        let per_length = self.sizes.len() / self.reach();
        let mut mix = (self.id(token) as u64).wrapping_mul(self.multipliers[0]);
        let mut ended = false;
        for n in 1..=self.reach() {
            let id = if ended { self.end } else { before(n).unwrap_or(self.end) };
            ended |= id == self.end;
            mix ^= (id as u64).wrapping_mul(self.multipliers[n]);
            for h in (n - 1) * per_length..n * per_length {
                row(h, mix % self.sizes[h] + self.offsets[h]);
            }
        }
    }
}

impl OpDef for NgramRows {
    const NAME: &'static str = "ngram_rows";
    const TOLERANCE: f64 = 0.0;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        let [_, _, _, _, _] = exactly(inputs)?;
        let s = state(inputs, 0)?;
        expect_shape(1, i32s(inputs, 1)?.shape, Shape::new([Sym::T.into()]))?;
        let (n, rows) = super::mat_mul::matrix(inputs, 2)?;
        slots::ring(g, s, 1, self.reach())?;
        slots::expect_tables(inputs, 3)?;
        let heads = self.sizes.len();
        let whole = self.reach() > 0 && heads > 0 && heads.is_multiple_of(self.reach());
        if !whole || self.offsets.len() != heads {
            return Err(ShapeError::Param(format!(
                "{heads} sizes and {} offsets for n-grams up to {}",
                self.offsets.len(),
                self.multipliers.len()
            )));
        }
        let ends = self.sizes.iter().zip(&self.offsets).map(|(s, o)| s.checked_add(*o).filter(|_| *s > 0));
        if let Some(h) = ends.into_iter().position(|end| end.is_none_or(|end| end > rows as u64)) {
            let (size, offset) = (self.sizes[h], self.offsets[h]);
            return Err(ShapeError::Param(format!("head {h}: {size} rows from {offset} in a table of {rows}")));
        }
        let y = Shape::new([n.into(), heads.into(), Sym::T.into()]);
        Ok(vec![super::dense(g, Dtype::F32, y)?, Type::State(s)])
    }

    fn reference(&self, call: &mut RefCall) {
        let [_, tokens, table, seqs, slots] = &call.inputs[..] else { unreachable!("inferred") };
        let spans = slots::spans(seqs, slots);
        let ids = crate::reference::Array {
            dims: [1, tokens.dims[0], 1, 1],
            f: Vec::new(),
            i: tokens.i.iter().map(|t| self.id(*t)).collect(),
        };
        let state = call.state.as_deref_mut().expect("a state op has a state");
        let (y, heads) = (&mut call.outputs[0], self.sizes.len());
        slots::run_ring(state, &spans, &ids, |row, past| {
            self.rows(ids.i[row], |n| past(n).map(|x| x.i[0]), |h, r| {
                y.row_mut(row * heads + h).copy_from_slice(table.row(r as usize));
            });
        });
    }
}
