//! Columns of a ring's slot: what one chunk reads and writes of it.

use firth_graph::RingSpec;

use super::span::Span;
use crate::operand::Rows;
use crate::states::Slots;

/// The rows of a ring's slot, some columns of them. The columns belong to one chunk.
#[derive(Clone, Copy)]
pub struct RingColumns {
    slot: *mut f32,
    width: usize,
    rows: usize,
    first: usize,
    n: usize,
}

impl RingColumns {
    /// Columns `first .. first + n` of a slot.
    pub fn new(state: &Slots, r: &RingSpec, slot: usize, first: usize, n: usize) -> Self {
        assert!(first + n <= r.width && r.width * r.rows <= state.words, "columns of a ring");
        RingColumns { slot: state.slot(slot), width: r.width, rows: r.rows, first, n }
    }

    fn at(&self, index: usize) -> *mut f32 {
        self.slot.wrapping_add(index % self.rows * self.width + self.first)
    }

    /// Its columns of the row of token `index`.
    ///
    /// # Safety
    /// No other thread writes the columns, and no borrow from [`RingColumns::row_mut`] lives.
    pub unsafe fn row(&self, index: usize) -> &[f32] {
        // SAFETY: in the slot, by the check in `new`; the rest is the caller's word.
        unsafe { std::slice::from_raw_parts(self.at(index), self.n) }
    }

    /// Its columns of the row of token `index`, to write.
    ///
    /// # Safety
    /// No other thread touches the columns, and no other borrow of them lives.
    #[allow(clippy::mut_from_ref, reason = "columns of a slot are shared out to chunks")]
    pub unsafe fn row_mut(&self, index: usize) -> &mut [f32] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.at(index), self.n) }
    }
}

/// Some columns of the rows of a sequence, in the step and before it.
pub struct Past<'a> {
    x: &'a Rows,
    span: &'a Span,
    ring: Option<RingColumns>,
    first: usize,
    n: usize,
}

impl<'a> Past<'a> {
    /// Columns `first .. first + n`.
    ///
    /// # Safety
    /// The columns belong to the calling chunk, which writes none of them while this lives.
    pub unsafe fn new(
        x: &'a Rows,
        span: &'a Span,
        state: &Slots,
        r: &RingSpec,
        first: usize,
        n: usize,
    ) -> Self {
        let ring = span.read.map(|slot| RingColumns::new(state, r, slot, first, n));
        Past { x, span, ring, first, n }
    }

    /// The row `back` before row `r` of the sequence in the step; `None` before the sequence.
    #[inline(always)]
    pub fn get(&self, r: usize, back: usize) -> Option<&[f32]> {
        match (r.checked_sub(back), (self.span.first_index + r).checked_sub(back)) {
            (Some(r), _) => {
                Some(&self.x.f32_at([self.span.first_row + r, 0, 0])[self.first..self.first + self.n])
            }
            // SAFETY: by the contract of `new`.
            (None, Some(index)) => self.ring.as_ref().map(|o| unsafe { o.row(index) }),
            (None, None) => None,
        }
    }
}

/// Writes a step's rows of these columns to the ring, and carries over the others where the slot is another.
/// `put(r, to)` writes the columns of row `r` of the sequence in the step.
///
/// # Safety
/// The columns belong to the calling chunk.
pub unsafe fn write_ring(
    state: &Slots,
    r: &RingSpec,
    span: &Span,
    first: usize,
    n: usize,
    put: impl Fn(usize, &mut [f32]),
) {
    let to = RingColumns::new(state, r, span.write, first, n);
    let from = span.read.filter(|read| *read != span.write);
    let from = from.map(|read| RingColumns::new(state, r, read, first, n));
    if span.read != Some(span.write) {
        for place in 0..r.rows {
            // SAFETY: two different slots, columns of this chunk.
            unsafe {
                match &from {
                    Some(from) => to.row_mut(place).copy_from_slice(from.row(place)),
                    None => to.row_mut(place).fill(0.0),
                }
            }
        }
    }
    for row in span.n_rows.saturating_sub(r.rows)..span.n_rows {
        // SAFETY: columns of this chunk.
        put(row, unsafe { to.row_mut(span.first_index + row) });
    }
}

/// Writes a step's rows of `x` to the ring, see [`write_ring`].
///
/// # Safety
/// The columns belong to the calling chunk.
pub unsafe fn write_rows(state: &Slots, r: &RingSpec, span: &Span, first: usize, n: usize, x: &Rows) {
    let put = |row: usize, to: &mut [f32]| {
        to.copy_from_slice(&x.f32_at([span.first_row + row, 0, 0])[first..first + n]);
    };
    // SAFETY: by the contract.
    unsafe { write_ring(state, r, span, first, n, put) };
}
