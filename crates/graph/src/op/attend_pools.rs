//! Attention over a window of tokens and pools of tokens together.

use super::{Attend, OpDef, Sight, expect_shape, i32s, state};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;
use crate::shape::{Shape, Sym};
use crate::state::{PAGE, seq_table};

/// One softmax over the last `window` tokens and over pools of `ratio` tokens.
///
/// The state keeps two rows a token, each key and value at once: head 0 of the token itself, head 1 of the pool that ends with
/// it (rows of other tokens are not read). Pool `p` are the tokens of index `ratio p .. ratio (p + 1)`. Only pools that end at
/// or before the row take part: all of them, or with `chosen` those of a list. All query heads, an even number of them, read
/// both.
///
/// Shapes: `state`, `q: [key_dim, heads, T]` f32, with `chosen` `[n, T]` i32 (pool numbers ascending, then -1: what
/// [`super::TopKSelect`] writes), `seqs: [4, S]`, `pages: [max_pages, S]` i32, optionally `sinks: [heads]` f32; `y: [value_dim,
/// heads, T]` f32. Source: DeepSeek-AI 2026, "DeepSeek-V4", compressed sparse attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttendPools {
    /// Factor of the products.
    pub scale: f32,
    /// Tokens that are seen themselves.
    pub window: usize,
    /// Tokens of a pool.
    pub ratio: usize,
    /// Whether a list says which pools take part.
    pub chosen: bool,
}

impl AttendPools {
    /// Tokens that the token of this index sees themselves.
    pub fn near(&self, index: usize) -> std::ops::Range<usize> {
        Sight::Window(self.window).keys(index, index + 1)
    }

    /// Pools that end at or before the token of this index.
    pub fn pools(&self, index: usize) -> usize {
        (index + 1) / self.ratio
    }

    /// The index of a pool's last token.
    pub fn end(&self, pool: usize) -> usize {
        self.ratio * (pool + 1) - 1
    }
}

impl OpDef for AttendPools {
    const NAME: &'static str = "attend_pools";
    const TOLERANCE: f64 = 1e-10;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        let n = 4 + usize::from(self.chosen);
        if inputs.len() != n && inputs.len() != n + 1 {
            let expected = if self.chosen { "5 or 6" } else { "4 or 5" };
            return Err(ShapeError::Arity { expected, found: inputs.len() });
        }
        let kv = super::kv_write::keys_and_values(g, state(inputs, 0)?)?;
        if kv.n_heads != 2 || !kv.value_in_key || kv.window.is_some() {
            let what = format!("{} heads, window {:?}", kv.n_heads, kv.window);
            return Err(ShapeError::Param(format!("two rows a token that hold their values, found {what}")));
        }
        if self.ratio == 0 || self.window == 0 {
            return Err(ShapeError::Param(format!("pools of {}, a window of {}", self.ratio, self.window)));
        }
        if self.chosen {
            let chosen = i32s(inputs, 2)?;
            let n = chosen.shape.constant(0).unwrap_or(0);
            expect_shape(2, chosen.shape, Shape::new([n.into(), Sym::T.into()]))?;
        }
        let rest: Vec<Type> = inputs[..2].iter().chain(&inputs[n - 2..]).copied().collect();
        Attend::new(self.scale).infer(&rest, g)
    }

    fn reference(&self, call: &mut RefCall) {
        let n = 4 + usize::from(self.chosen);
        let (q, seqs, pages) = (&call.inputs[1], &call.inputs[n - 2], &call.inputs[n - 1]);
        let chosen = self.chosen.then(|| &call.inputs[2]);
        let sinks = call.inputs.get(n);
        let state = call.state.as_deref().expect("a state op has a state");
        for (s, table) in seqs.i.chunks_exact(seq_table::WIDTH).enumerate() {
            for r in 0..table[seq_table::N_ROWS] as usize {
                let index = table[seq_table::FIRST_INDEX] as usize + r;
                let row = table[seq_table::FIRST_ROW] as usize + r;
                let key = |j: usize, head: usize| {
                    let (k, v) = state.read(pages.i[s * pages.dims[0] + j / PAGE], j % PAGE, head);
                    (k, v, 0.0)
                };
                let pools: Vec<usize> = match chosen {
                    None => (0..self.pools(index)).collect(),
                    Some(list) => {
                        let list = &list.i[row * list.dims[0]..(row + 1) * list.dims[0]];
                        list.iter().filter(|p| **p >= 0).map(|p| *p as usize).collect()
                    }
                };
                for h in 0..q.dims[1] {
                    let near = self.near(index).map(|j| key(j, 0));
                    let keys = near.chain(pools.iter().map(|&p| key(self.end(p), 1)));
                    let sink = sinks.map(|x| f64::from(x.f[h]));
                    let at = row * q.dims[1] + h;
                    Attend::new(self.scale).one(q.row(at), keys, sink, call.outputs[0].row_mut(at));
                }
            }
        }
    }
}
