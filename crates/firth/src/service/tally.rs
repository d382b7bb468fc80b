//! Allocations of steps, told apart from those of what watches and limits their text.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use firth_sampling::{Constraint, ConstraintError, Verdict, Watch};

use super::stats::Board;

/// Counts the allocations of the calling thread so far, as the program's allocator knows them.
pub type CountAllocations = fn() -> u64;

/// Counts what its inner part allocates as of texts.
pub(crate) struct OfText<T> {
    inner: T,
    count: CountAllocations,
    board: Arc<Board>,
}

impl<T> OfText<T> {
    pub fn new(inner: T, count: CountAllocations, board: Arc<Board>) -> OfText<T> {
        OfText { inner, count, board }
    }

    fn tally<R>(&mut self, f: impl FnOnce(&mut T) -> R) -> R {
        let before = (self.count)();
        let result = f(&mut self.inner);
        self.board.counts.text_allocations.fetch_add((self.count)() - before, Relaxed);
        result
    }
}

impl Constraint for OfText<Box<dyn Constraint>> {
    fn mask(&mut self, out: &mut [u32]) -> Result<(), ConstraintError> {
        self.tally(|c| c.mask(out))
    }

    fn accept(&mut self, id: u32) -> Result<(), ConstraintError> {
        self.tally(|c| c.accept(id))
    }

    fn rollback(&mut self, n: usize) {
        self.tally(|c| c.rollback(n));
    }
}

impl Watch for OfText<Box<dyn Watch>> {
    fn push(&mut self, ids: &[u32]) -> Verdict {
        self.tally(|w| w.push(ids))
    }
}
