//! Rows of the step tables that every program reads: what a sequence has in the step, and its pages.

use firth_graph::{HostValues, seq_table};

/// What a sequence has in a step.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    /// Its first row, and how many.
    pub row: usize,
    pub rows: usize,
    /// Rows that are no guesses.
    pub certain: usize,
    /// Index in the sequence of the first.
    pub first: usize,
}

/// Writes row `s` of the sequence table in host slot `slot`.
pub(crate) fn put_span(host: &mut HostValues, slot: usize, s: usize, span: Span) {
    let table = &mut host.i32_mut(slot)[s * seq_table::WIDTH..(s + 1) * seq_table::WIDTH];
    table[seq_table::FIRST_ROW] = span.row as i32;
    table[seq_table::N_ROWS] = span.rows as i32;
    table[seq_table::FIRST_INDEX] = span.first as i32;
    table[seq_table::N_CERTAIN] = span.certain as i32;
}

/// Writes row `s` of a page table of `width` columns in host slot `slot`.
pub(crate) fn put_pages(host: &mut HostValues, slot: usize, s: usize, width: usize, pages: &[i32]) {
    let n = pages.len().min(width);
    host.i32_mut(slot)[s * width..s * width + n].copy_from_slice(&pages[..n]);
}

/// Columns of the page tables for sequences of `ctx` tokens.
pub(crate) fn page_columns(ctx: usize) -> usize {
    ctx.div_ceil(firth_graph::PAGE).max(1)
}
