//! A choice of blocks of tokens, for each head of queries.

use super::{OpDef, exactly, expect_shape, f32s, state};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;
use crate::shape::{Shape, Sym};
use crate::state::{PAGE, seq_table};
use firth_quant::Dtype;

/// The complete blocks of `ratio` tokens that each head of a row reads, beside the block that is not complete: numbers
/// ascending, -1 behind them.
///
/// Block `b` are the tokens of index `ratio b .. ratio (b + 1)`; its score for a head is the largest of `q_h . key` over
/// its tokens. The last `local` blocks, that of the row among them, are always read; of the others those of the largest
/// score, ties to the lowest number, until there are `n`. The row's own block counts, but is not written where it is not
/// complete.
///
/// Shapes: `state` (keys of one head, f32, the version that the step's keys were written to), `q: [key_dim, H, T]` f32,
/// `seqs: [4, S]`, `pages: [max_pages, S]` i32; `y: [n, H, T]` i32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockSelect {
    /// Tokens of a block.
    pub ratio: usize,
    /// Blocks read.
    pub n: usize,
    /// Last blocks that are read whatever their score, at most `n`.
    pub local: usize,
}

impl BlockSelect {
    /// Complete blocks for the token of this index.
    pub fn complete(&self, index: usize) -> usize {
        (index + 1) / self.ratio
    }

    /// How many of the complete blocks are read, where there are as many.
    pub fn room(&self, index: usize) -> usize {
        self.n - usize::from(!(index + 1).is_multiple_of(self.ratio))
    }

    /// The first block that is read whatever its score.
    pub fn first_local(&self, index: usize) -> usize {
        (index / self.ratio + 1).saturating_sub(self.local)
    }
}

impl OpDef for BlockSelect {
    const NAME: &'static str = "block_select";
    const TOLERANCE: f64 = 0.0;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        let [_, _, _, _] = exactly(inputs)?;
        let kv = super::kv_write::keys_and_values(g, state(inputs, 0)?)?;
        if kv.n_heads != 1 || kv.dtype != Dtype::F32 {
            let what = format!("{} heads of {}", kv.n_heads, kv.dtype.name());
            return Err(ShapeError::Param(format!("keys of blocks are one head of f32, found {what}")));
        }
        if self.ratio == 0 || self.local == 0 || self.local > self.n {
            let what = format!("{} blocks of {} tokens, the last {}", self.n, self.ratio, self.local);
            return Err(ShapeError::Param(what));
        }
        let q = f32s(inputs, 1)?;
        let heads = q.shape.constant(1).unwrap_or(0);
        expect_shape(1, q.shape, Shape::new([kv.key_dim.into(), heads.into(), Sym::T.into()]))?;
        super::kv_write::expect_tables(inputs, 2)?;
        let shape = Shape::new([self.n.into(), heads.into(), Sym::T.into()]);
        Ok(vec![super::dense(g, Dtype::I32, shape)?])
    }

    fn reference(&self, call: &mut RefCall) {
        let [_, q, seqs, pages] = &call.inputs[..] else { unreachable!("inferred") };
        let state = call.state.as_deref().expect("a state op has a state");
        for (s, table) in seqs.i.chunks_exact(seq_table::WIDTH).enumerate() {
            for r in 0..table[seq_table::N_ROWS] as usize {
                let row = table[seq_table::FIRST_ROW] as usize + r;
                let index = table[seq_table::FIRST_INDEX] as usize + r;
                for h in 0..q.dims[1] {
                    let q = q.row(row * q.dims[1] + h);
                    let product = |token: usize| {
                        let page = pages.i[s * pages.dims[0] + token / PAGE];
                        let key = state.read(page, token % PAGE, 0).0;
                        q.iter().zip(key).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
                    };
                    let score = |b: usize| match b >= self.first_local(index) {
                        true => f64::INFINITY,
                        false => {
                            let tokens = b * self.ratio..(b + 1) * self.ratio;
                            tokens.map(product).fold(f64::NEG_INFINITY, f64::max)
                        }
                    };
                    let scores: Vec<f64> = (0..self.complete(index)).map(score).collect();
                    let mut best: Vec<usize> = (0..scores.len()).collect();
                    best.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
                    best.truncate(self.room(index));
                    best.sort_unstable();
                    let at = (row * call.inputs[1].dims[1] + h) * self.n;
                    let chosen = best.iter().map(|b| *b as i32).chain(std::iter::repeat(-1));
                    let out = &mut call.outputs[0].i[at..at + self.n];
                    out.iter_mut().zip(chosen).for_each(|(y, b)| *y = b);
                }
            }
        }
    }
}
