//! Keys and values of the step, written to their pages.

use super::{OpDef, exactly, expect_shape, f32s, i32s, state};
use crate::graph::{Graph, ShapeError, StateIdx, Type};
use crate::reference::RefCall;
use crate::shape::{Shape, Sym};
use crate::state::{KvSpec, PAGE, StateSpec, seq_table};

/// Writes row `r` of each sequence at index `first_index + r - first_row`, rounded to the state's type.
///
/// Shapes: `state` (a version), `k: [key_dim, heads, T]`, `v: [value_dim, heads, T]` f32 (absent where the value
/// lies in the key), `seqs: [4, S]` i32 ([`seq_table`]), `pages: [max_pages, S]` i32; the result is the state's
/// next version.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvWrite;

impl OpDef for KvWrite {
    const NAME: &'static str = "kv_write";
    const TOLERANCE: f64 = 0.0;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        let s = match inputs.len() {
            0 => return Err(ShapeError::Arity { expected: "4 or 5", found: 0 }),
            _ => state(inputs, 0)?,
        };
        let kv = keys_and_values(g, s)?;
        let row = |n: usize| Shape::new([n.into(), kv.n_heads.into(), Sym::T.into()]);
        let tables = if kv.value_in_key {
            let [_, _, _, _] = exactly(inputs)?;
            2
        } else {
            let [_, _, _, _, _] = exactly(inputs)?;
            expect_shape(2, f32s(inputs, 2)?.shape, row(kv.value_dim))?;
            3
        };
        expect_shape(1, f32s(inputs, 1)?.shape, row(kv.key_dim))?;
        expect_tables(inputs, tables)?;
        Ok(vec![Type::State(s)])
    }

    fn reference(&self, call: &mut RefCall) {
        let (k, v, seqs, pages) = match &call.inputs[..] {
            [_, k, v, seqs, pages] => (k, Some(v), seqs, pages),
            [_, k, seqs, pages] => (k, None, seqs, pages),
            _ => unreachable!("inferred"),
        };
        let state = call.state.as_deref_mut().expect("a state op has a state");
        for s in 0..call.extents.s {
            let table = &seqs.i[s * seq_table::WIDTH..];
            for r in 0..table[seq_table::N_ROWS] as usize {
                let index = table[seq_table::FIRST_INDEX] as usize + r;
                let row = table[seq_table::FIRST_ROW] as usize + r;
                let page = pages.i[s * pages.dims[0] + index / PAGE];
                for h in 0..k.dims[1] {
                    let at = row * k.dims[1] + h;
                    state.write(page, index % PAGE, h, k.row(at), v.map_or(&[], |v| v.row(at)));
                }
            }
        }
    }
}

/// What a state keeps, when it keeps keys and values.
pub(super) fn keys_and_values(g: &Graph, s: StateIdx) -> Result<KvSpec, ShapeError> {
    match g.states[s.idx()].spec {
        StateSpec::Kv(kv) if kv.value_in_key && kv.value_dim > kv.key_dim => {
            Err(ShapeError::Param(format!("a value of {} in a key of {}", kv.value_dim, kv.key_dim)))
        }
        StateSpec::Kv(kv) => Ok(kv),
        _ => Err(ShapeError::Param(format!("state {} keeps no keys and values", g.states[s.idx()].name))),
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
