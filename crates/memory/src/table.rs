//! Page tables of sequences and snapshots.

use crate::pool::Pool;
use crate::spec::{GroupSpec, PAGE};

/// What a table says of a page that was freed.
pub const FREED: i32 = -1;

/// The pages of one group by (token index / 64); those below `first` are freed.
#[derive(Clone, Debug)]
pub struct Table {
    pub pages: Vec<i32>,
    pub first: usize,
}

/// Rows of page `i` in a sequence of `len` tokens.
pub fn rows(len: usize, i: usize) -> usize {
    len.saturating_sub(i * PAGE).min(PAGE)
}

impl Table {
    pub fn new(max_ctx: usize) -> Self {
        Self { pages: Vec::with_capacity(max_ctx.div_ceil(PAGE)), first: 0 }
    }

    /// The pages that are held.
    pub fn held(&self) -> &[i32] {
        &self.pages[self.first..]
    }

    /// Lets a sequence go of pages from index `n` on.
    pub fn truncate(&mut self, pool: &mut Pool, seq: u32, n: usize) {
        let n = n.max(self.first);
        for page in self.pages.drain(n.min(self.pages.len())..) {
            pool.release(page, seq);
        }
    }

    /// Lets a sequence go of pages below index `first`.
    pub fn free_below(&mut self, pool: &mut Pool, seq: u32, first: usize) {
        while self.first < first {
            pool.release(std::mem::replace(&mut self.pages[self.first], FREED), seq);
            self.first += 1;
        }
    }

    /// Empties the table of a sequence.
    pub fn clear(&mut self, pool: &mut Pool, seq: u32) {
        self.truncate(pool, seq, self.first);
        self.pages.clear();
        self.first = 0;
    }

    /// Becomes the table of the first `len` tokens of another, less what is below `first`; says each page
    /// and its rows to `share`.
    pub fn copy_from(&mut self, other: &Table, len: usize, first: usize, mut share: impl FnMut(i32, usize)) {
        debug_assert!(self.pages.is_empty());
        self.first = first.max(other.first);
        self.pages.resize(self.first, FREED);
        for (i, page) in other.pages[..len.div_ceil(PAGE)].iter().enumerate().skip(self.first) {
            share(*page, rows(len, i));
            self.pages.push(*page);
        }
    }

    /// The least length that [`reaches`](Self::reaches) admits.
    pub fn lowest(&self, group: &GroupSpec) -> usize {
        match (self.first, group.window) {
            (0, _) | (_, None) => 0,
            (first, Some(w)) => first * PAGE + w as usize - 1,
        }
    }

    /// Whether everything that a query at index `len` sees is held.
    pub fn reaches(&self, group: &GroupSpec, len: usize) -> bool {
        self.first <= group.first_needed(len, 0)
    }
}
