//! One sequence of a step, and the slots it reads and writes.

use firth_graph::{RecurrentSpec, seq_table, slot_table};

use crate::operand::Rows;
use crate::states::{COLUMNS, Slots};

/// A sequence with rows in the step.
#[derive(Clone, Copy)]
pub struct Span {
    /// Its first row in the step.
    pub first_row: usize,
    /// Its rows.
    pub n_rows: usize,
    /// Index in the sequence of its first row.
    pub first_index: usize,
    /// Rows that are certain.
    pub n_certain: usize,
    /// The slot it reads; `None` when it is empty.
    pub read: Option<usize>,
    /// The slot it writes.
    pub write: usize,
    /// Logged rows that count.
    pub n_log: usize,
}

impl Span {
    /// Sequence `s` of the tables; `None` when it has no rows in the step.
    pub fn new(seqs: &Rows, slots: &Rows, s: usize) -> Option<Span> {
        let (q, t) = (seqs.i32(s), slots.i32(s));
        let n_rows = q[seq_table::N_ROWS] as usize;
        let write = usize::try_from(t[slot_table::WRITE]);
        (n_rows > 0).then(|| Span {
            first_row: q[seq_table::FIRST_ROW] as usize,
            n_rows,
            first_index: q[seq_table::FIRST_INDEX] as usize,
            n_certain: q[seq_table::N_CERTAIN] as usize,
            read: usize::try_from(t[slot_table::READ]).ok(),
            write: write.expect("a sequence with rows writes a slot"),
            n_log: t[slot_table::N_LOG] as usize,
        })
    }

    /// Rows guessed by a drafter: they do not enter the base.
    pub fn n_drafted(&self) -> usize {
        self.n_rows - self.n_certain
    }

    /// Checks what memory promises about a recurrence.
    pub fn check(&self, r: &RecurrentSpec) {
        assert!(self.n_certain >= 1 && self.n_certain <= self.n_rows, "certain rows of {}", self.n_rows);
        assert!(
            self.n_drafted() <= r.log_rows && self.n_log <= r.log_rows,
            "rows of a log of {}",
            r.log_rows
        );
        assert!(self.n_log == 0 || self.read.is_some(), "a log of an empty sequence");
    }

    /// Index in the sequence of token `t`, logged rows first.
    pub fn index(&self, t: usize) -> usize {
        self.first_index + t - self.n_log
    }
}

/// A block of columns of a base: `[rows][width]` from word `at` of a slot.
#[derive(Clone, Copy)]
pub struct Block {
    /// The head it belongs to.
    pub head: usize,
    /// Its first column in the head.
    pub first: usize,
    /// Its columns.
    pub width: usize,
    /// Its first word in a slot.
    pub at: usize,
}

/// How a base of `heads` times `columns` columns of `rows` numbers is cut into blocks.
#[derive(Clone, Copy)]
pub struct Blocks {
    /// Numbers of a column.
    pub rows: usize,
    /// Columns of a head.
    pub columns: usize,
    /// Heads.
    pub heads: usize,
}

impl Blocks {
    /// Blocks of a head.
    fn per_head(&self) -> usize {
        self.columns.div_ceil(COLUMNS)
    }

    /// Blocks of a slot.
    pub fn n(&self) -> usize {
        self.heads * self.per_head()
    }

    /// Block `i`.
    pub fn get(&self, i: usize) -> Block {
        let (head, first) = (i / self.per_head(), i % self.per_head() * COLUMNS);
        let width = (self.columns - first).min(COLUMNS);
        Block { head, first, width, at: self.rows * (head * self.columns + first) }
    }
}

/// The words of a block in the slot that a span writes, made ready to be read: `src` is where its state is read
/// first, `dst` where it goes.
pub fn block_words(slots: &Slots, span: &Span, block: &Block, rows: usize) -> (*const f32, *mut f32) {
    assert!(block.at + rows * block.width <= slots.words, "block of a slot");
    let dst = slots.slot(span.write).wrapping_add(block.at);
    match span.read {
        Some(read) => (slots.slot(read).wrapping_add(block.at).cast_const(), dst),
        None => {
            // SAFETY: the block lies in the slot, and it is this chunk's.
            unsafe { std::ptr::write_bytes(dst, 0, rows * block.width) };
            (dst.cast_const(), dst)
        }
    }
}

/// A logged row of the slot that a span reads.
pub fn log_row<'a>(slots: &'a Slots, r: &RecurrentSpec, slot: usize, row: usize) -> &'a [f32] {
    let at = r.base_len() + row * r.log_row;
    assert!(at + r.log_row <= slots.words, "row {row} of a log");
    // SAFETY: the row lies in the slot; logs are written only by the step after those that read them.
    unsafe { std::slice::from_raw_parts(slots.slot(slot).wrapping_add(at), r.log_row) }
}
