//! Attention over chosen keys.

use super::{Attend, OpDef, expect_shape, i32s, state};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;
use crate::shape::{Shape, Sym};
use crate::state::{PAGE, seq_table};

/// [`Attend`] over the tokens of chosen pools, and of the pool that is not complete.
///
/// Pool `p` are the tokens of index `ratio p .. ratio (p + 1)`. With `tail` the tokens behind the last complete pool at or
/// before the row are visible too, the row itself among them.
///
/// Shapes: `state`, `q: [key_dim, heads, T]` f32, `chosen: [n, T]` i32 (pool numbers ascending, then -1: what
/// [`super::TopKSelect`] writes), or `[n, key heads, T]` where each key head has a choice of its own (what
/// [`super::BlockSelect`] writes), `seqs: [4, S]`, `pages: [max_pages, S]` i32, optionally `sinks: [heads]` f32; `y:
/// [value_dim, heads, T]` f32. A row that sees no key is zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttendChosen {
    /// Factor of the products.
    pub scale: f32,
    /// Tokens of a pool.
    pub ratio: usize,
    /// Whether the tokens of the incomplete pool are visible.
    pub tail: bool,
}

impl AttendChosen {
    /// Whether a choice of this shape is one for each key head.
    pub fn of_each_head(chosen: Shape) -> bool {
        chosen.constant(1).is_some()
    }

    /// Indexes of the incomplete pool's visible tokens, for the token of index `index`.
    pub fn tail_of(&self, index: usize) -> std::ops::Range<usize> {
        let first = (index + 1) / self.ratio * self.ratio;
        if self.tail { first..index + 1 } else { first..first }
    }
}

impl OpDef for AttendChosen {
    const NAME: &'static str = "attend_chosen";
    const TOLERANCE: f64 = 1e-10;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        if !(5..=6).contains(&inputs.len()) {
            return Err(ShapeError::Arity { expected: "5 or 6", found: inputs.len() });
        }
        let kv = super::kv_write::keys_and_values(g, state(inputs, 0)?)?;
        let chosen = i32s(inputs, 2)?;
        let n = chosen.shape.constant(0).unwrap_or(0);
        match AttendChosen::of_each_head(chosen.shape) {
            true => expect_shape(2, chosen.shape, Shape::new([n.into(), kv.n_heads.into(), Sym::T.into()]))?,
            false => expect_shape(2, chosen.shape, Shape::new([n.into(), Sym::T.into()]))?,
        }
        if self.ratio == 0 {
            return Err(ShapeError::Param("pools of no token".into()));
        }
        let rest: Vec<Type> = inputs[..2].iter().chain(&inputs[3..]).copied().collect();
        self.plain().infer(&rest, g)
    }

    fn reference(&self, call: &mut RefCall) {
        let [_, q, chosen, seqs, pages, sinks @ ..] = &call.inputs[..] else { unreachable!("inferred") };
        let state = call.state.as_deref().expect("a state op has a state");
        let group = q.dims[1] / state.kv().n_heads;
        let lists = (chosen.n_rows() / q.dims[2].max(1)).max(1);
        for (s, table) in seqs.i.chunks_exact(seq_table::WIDTH).enumerate() {
            for r in 0..table[seq_table::N_ROWS] as usize {
                let (index, row) =
                    (table[seq_table::FIRST_INDEX] as usize + r, table[seq_table::FIRST_ROW] as usize + r);
                let visible = |list: usize| -> Vec<usize> {
                    let pools = chosen.i[list * chosen.dims[0]..(list + 1) * chosen.dims[0]].iter();
                    let pools = pools.filter(|p| **p >= 0).map(|p| *p as usize * self.ratio);
                    pools.flat_map(|first| first..first + self.ratio).chain(self.tail_of(index)).collect()
                };
                for h in 0..q.dims[1] {
                    let visible = visible(row * lists + (h / group).min(lists - 1));
                    let keys = visible.iter().map(|&j| {
                        let page = pages.i[s * pages.dims[0] + j / PAGE];
                        let (k, v) = state.read(page, j % PAGE, h / group);
                        (k, v, 0.0)
                    });
                    let sink = sinks.first().map(|x| f64::from(x.f[h]));
                    let y = call.outputs[0].row_mut(row * q.dims[1] + h);
                    if !visible.is_empty() {
                        self.plain().one(q.row(row * q.dims[1] + h), keys, sink, y);
                    }
                }
            }
        }
    }
}

impl AttendChosen {
    /// The same attention over all keys.
    fn plain(&self) -> Attend {
        Attend::new(self.scale)
    }
}
