//! Keys and values of the step, written to their pages.

use super::{OpDef, exactly, expect_shape, f32s, i32s, state};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;
use crate::shape::{Shape, Sym};
use crate::state::{PAGE, StateSpec, seq_table};

/// Writes row `r` of each sequence at index `first_index + r - first_row`, rounded to the state's type.
///
/// Shapes: `state` (a version), `k: [key_dim, heads, T]`, `v: [value_dim, heads, T]` f32, `seqs: [4, S]` i32
/// ([`seq_table`]), `pages: [max_pages, S]` i32; the result is the state's next version.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvWrite;

impl OpDef for KvWrite {
    const NAME: &'static str = "kv_write";
    const TOLERANCE: f64 = 0.0;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        let [_, _, _, _, _] = exactly(inputs)?;
        let s = state(inputs, 0)?;
        let StateSpec::Kv(kv) = g.states[s.idx()].spec;
        let row = |n: usize| Shape::new([n.into(), kv.n_heads.into(), Sym::T.into()]);
        expect_shape(1, f32s(inputs, 1)?.shape, row(kv.key_dim))?;
        expect_shape(2, f32s(inputs, 2)?.shape, row(kv.value_dim))?;
        expect_tables(inputs, 3)?;
        Ok(vec![Type::State(s)])
    }

    fn reference(&self, call: &mut RefCall) {
        let [_, k, v, seqs, pages] = &call.inputs[..] else { unreachable!("inferred") };
        let state = call.state.as_deref_mut().expect("a state op has a state");
        for s in 0..call.extents.s {
            let table = &seqs.i[s * seq_table::WIDTH..];
            for r in 0..table[seq_table::N_ROWS] as usize {
                let index = table[seq_table::FIRST_INDEX] as usize + r;
                let row = table[seq_table::FIRST_ROW] as usize + r;
                let page = pages.i[s * pages.dims[0] + index / PAGE];
                for h in 0..k.dims[1] {
                    let at = row * k.dims[1] + h;
                    state.write(page, index % PAGE, h, k.row(at), v.row(at));
                }
            }
        }
    }
}

/// Checks the sequence table and the page table, operands `first` and `first + 1`.
pub(super) fn expect_tables(inputs: &[Type], first: usize) -> Result<(), ShapeError> {
    let (seqs, pages) = (i32s(inputs, first)?, i32s(inputs, first + 1)?);
    expect_shape(first, seqs.shape, Shape::new([seq_table::WIDTH.into(), Sym::S.into()]))?;
    match (pages.shape.constant(0), pages.shape.symbol()) {
        (Some(_), Some(Sym::S)) => Ok(()),
        _ => Err(ShapeError::Mismatch { operand: first + 1, expected: "[pages, S]".into(), found: pages.shape }),
    }
}
