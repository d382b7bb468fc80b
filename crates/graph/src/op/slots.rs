//! What the ops on slots share: the checks of their tables, and the order in which a step reads base and log,
//! runs its rows, and writes them back.

use crate::graph::{Graph, ShapeError, StateIdx};
use crate::reference::{Array, RefRing, RefSlot, RefState};
use crate::shape::{Shape, Sym};
use crate::state::{RecurrentSpec, RingSpec, StateSpec, seq_table, slot_table};

use super::{Type, expect_shape, i32s};

/// Checks the sequence table and the slot table, operands `first` and `first + 1`.
pub(super) fn expect_tables(inputs: &[Type], first: usize) -> Result<(), ShapeError> {
    let table = |width: usize| Shape::new([width.into(), Sym::S.into()]);
    expect_shape(first, i32s(inputs, first)?.shape, table(seq_table::WIDTH))?;
    expect_shape(first + 1, i32s(inputs, first + 1)?.shape, table(slot_table::WIDTH))
}

/// The recurrence of a state, which must have this base and log row.
pub(super) fn recurrence(
    g: &Graph,
    s: StateIdx,
    base: [usize; 3],
    log_row: usize,
) -> Result<RecurrentSpec, ShapeError> {
    let name = &g.states[s.idx()].name;
    let StateSpec::Recurrent(r) = g.states[s.idx()].spec else {
        return Err(ShapeError::Param(format!("state {name} is no recurrence")));
    };
    if r.base != base || (r.log_rows > 0 && r.log_row != log_row) {
        return Err(ShapeError::Param(format!(
            "state {name} has base {:?} and log rows of {}, expected {base:?} and {log_row}",
            r.base, r.log_row
        )));
    }
    Ok(r)
}

/// The ring of a state, of this width and at least this many rows.
pub(super) fn ring(g: &Graph, s: StateIdx, width: usize, rows: usize) -> Result<RingSpec, ShapeError> {
    let name = &g.states[s.idx()].name;
    let StateSpec::Ring(r) = g.states[s.idx()].spec else {
        return Err(ShapeError::Param(format!("state {name} is no ring")));
    };
    if r.width != width || r.rows < rows.max(1) {
        return Err(ShapeError::Param(format!(
            "state {name} is a ring of {} rows of {}, expected at least {} of {width}",
            r.rows,
            r.width,
            rows.max(1)
        )));
    }
    Ok(r)
}

/// One sequence of a step, from both tables.
pub(super) struct Span {
    pub first_row: usize,
    pub n_rows: usize,
    pub first_index: usize,
    pub n_certain: usize,
    pub read: i32,
    pub write: i32,
    pub n_log: usize,
}

/// The sequences of a step that have rows.
pub(super) fn spans(seqs: &Array, slots: &Array) -> Vec<Span> {
    let span = |(q, s): (&[i32], &[i32])| Span {
        first_row: q[seq_table::FIRST_ROW] as usize,
        n_rows: q[seq_table::N_ROWS] as usize,
        first_index: q[seq_table::FIRST_INDEX] as usize,
        n_certain: q[seq_table::N_CERTAIN] as usize,
        read: s[slot_table::READ],
        write: s[slot_table::WRITE],
        n_log: s[slot_table::N_LOG] as usize,
    };
    let both = seqs.i.chunks_exact(seq_table::WIDTH).zip(slots.i.chunks_exact(slot_table::WIDTH));
    both.map(span).filter(|s| s.n_rows > 0).collect()
}

/// Runs a recurrence over a step. `inputs(row)` are the inputs of row `row` as the log keeps them;
/// `apply(state, inputs, row)` moves the state by one token, and writes the outputs of a row of the step.
pub(super) fn run_recurrence(
    state: &mut RefState,
    spans: &[Span],
    inputs: impl Fn(usize) -> Vec<f32>,
    mut apply: impl FnMut(&mut [f64], &[f32], Option<usize>),
) {
    let log_rows = state.recurrent().log_rows;
    for s in spans {
        assert!(s.n_certain >= 1 && s.n_certain <= s.n_rows, "{} certain rows of {}", s.n_certain, s.n_rows);
        assert!(s.n_rows - s.n_certain <= log_rows, "{} drafted rows", s.n_rows - s.n_certain);
        let old = state.slot(s.read);
        let mut now: Vec<f64> = old.base.iter().map(|v| f64::from(*v)).collect();
        for row in &old.log[..s.n_log] {
            apply(&mut now, row, None);
        }
        let mut new = RefSlot::default();
        for r in 0..s.n_rows {
            let row = s.first_row + r;
            let x = inputs(row);
            apply(&mut now, &x, Some(row));
            if r + 1 == s.n_certain {
                new.base = now.iter().map(|v| *v as f32).collect();
            }
            if r >= s.n_certain {
                new.log.push(x);
            }
        }
        state.set_slot(s.write, new);
    }
}

/// Runs an op on a ring over a step: `look(row, past)` sees a row of the step, and through `past(n)` the row `n`
/// before it in its sequence (`None` before its start).
pub(super) fn run_ring(
    state: &mut RefState,
    spans: &[Span],
    x: &Array,
    mut look: impl FnMut(usize, &dyn Fn(usize) -> Option<Array>),
) {
    let rows = state.ring().rows;
    for s in spans {
        let mut ring: RefRing = state.ring_slot(s.read);
        for r in 0..s.n_rows {
            let index = s.first_index + r;
            let past = |n: usize| {
                let before = index.checked_sub(n)?;
                if before >= s.first_index {
                    return Some(row_of(x, s.first_row + r - n));
                }
                let (at, row) = ring.get(&(before % rows)).expect("a row that is read was written");
                assert_eq!(*at, before, "index of a ring's row");
                Some(row.clone())
            };
            look(s.first_row + r, &past);
        }
        for r in s.n_rows.saturating_sub(rows)..s.n_rows {
            let index = s.first_index + r;
            ring.insert(index % rows, (index, row_of(x, s.first_row + r)));
        }
        state.set_ring_slot(s.write, ring);
    }
}

/// Row `row` of the axis `T`: everything of one token.
fn row_of(x: &Array, row: usize) -> Array {
    let width = x.dims[0];
    let cut = |len: usize| row * width..if len == 0 { row * width } else { (row + 1) * width };
    Array {
        dims: [width, 1, 1, 1],
        f: x.f.get(cut(x.f.len())).unwrap_or_default().to_vec(),
        i: x.i.get(cut(x.i.len())).unwrap_or_default().to_vec(),
    }
}
