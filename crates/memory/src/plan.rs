//! Two phases of a step: what it may append is reserved, then what came of it is kept.

use crate::memory::{Memory, Seq};
use crate::spec::{Full, PAGE};

/// Rows that a device copies from page to page in all layers of a group before the step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// The page group.
    pub group: usize,
    /// The page read.
    pub from: u32,
    /// The page written.
    pub to: u32,
    /// How many rows, from row 0.
    pub rows: usize,
}

impl Memory {
    /// Reserves room for so many tokens in each of these sequences, each named once, and lists the copies
    /// to be made first. Snapshots are dropped when pages run out. The plan holds until every sequence was
    /// committed or [`abort`](Self::abort) ends it; there is one plan at a time.
    ///
    /// # Errors
    /// A sequence would grow too long, or there are too few pages; nothing has changed then.
    pub fn plan(&mut self, appends: &[(Seq, usize)]) -> Result<(), Full> {
        assert!(self.slots.iter().all(|s| s.pending.is_none()), "a plan is still pending");
        self.copies.clear();
        let max_ctx = self.spec.max_ctx;
        for &(seq, n) in appends {
            let len = self.len(seq) + n;
            if len > max_ctx {
                return Err(Full::Context { len, max_ctx });
            }
        }
        for group in 0..self.pools.len() {
            self.check_room(group, appends)?;
        }
        for group in 0..self.pools.len() {
            self.make_room(group, appends);
        }
        for &(seq, n) in appends {
            self.settled(seq);
            self.slots[seq.slot as usize].pending = Some(n);
            self.reserve(seq.slot, n);
        }
        Ok(())
    }

    /// The copies of the present plan, or of the one just committed.
    pub fn copies(&self) -> &[Copy] {
        &self.copies
    }

    /// Appends `ids` to a planned sequence, whose rows the step has written. Fewer than planned may come:
    /// the rest is given up.
    pub fn commit(&mut self, seq: Seq, ids: &[u32]) {
        self.live(seq);
        let s = &mut self.slots[seq.slot as usize];
        let planned = s.pending.take().expect("a commit follows a plan");
        assert!(ids.len() <= planned, "{} tokens committed, {planned} were planned", ids.len());
        s.tokens.extend_from_slice(ids);
        let len = s.tokens.len();
        for (group, (table, pool)) in s.tables.iter_mut().zip(&mut self.pools).enumerate() {
            if let Some(page) = s.replaced[group].take() {
                pool.release(page, seq.slot);
            }
            table.truncate(pool, seq.slot, len.div_ceil(PAGE));
            let first = self.spec.groups[group].first_needed(len, self.spec.max_rollback);
            table.free_below(pool, seq.slot, first);
        }
        self.keep_to_budget();
    }

    /// Gives up what the present plan reserved and was not committed, as if it had not been made; its
    /// copies are void.
    pub fn abort(&mut self) {
        for slot in 0..self.slots.len() as u32 {
            self.abort_slot(slot);
        }
        self.copies.clear();
        self.keep_to_budget();
    }

    pub(crate) fn abort_slot(&mut self, slot: u32) {
        let s = &mut self.slots[slot as usize];
        if s.pending.take().is_none() {
            return;
        }
        let len = s.tokens.len();
        for ((table, pool), replaced) in s.tables.iter_mut().zip(&mut self.pools).zip(&mut s.replaced) {
            table.truncate(pool, slot, len.div_ceil(PAGE));
            if let Some(old) = replaced.take() {
                let copy = table.pages.last_mut().expect("a page was replaced");
                pool.release(std::mem::replace(copy, old), slot);
            }
        }
    }

    /// Whether a group has the pages that the appends take, counting what the tree would give. Dropping
    /// snapshots does not change the answer.
    fn check_room(&mut self, group: usize, appends: &[(Seq, usize)]) -> Result<(), Full> {
        let (needed, avoidable) = self.pages_needed(group, appends);
        let (needed, pool) = (needed - avoidable, &self.pools[group]);
        let (available, n_pages) = (pool.free.len() + pool.cached, pool.pages.len());
        if needed > available { Err(Full::Pages { group, needed, available, n_pages }) } else { Ok(()) }
    }

    /// Drops snapshots until a group has the free pages that the appends take.
    fn make_room(&mut self, group: usize, appends: &[(Seq, usize)]) {
        while self.pages_needed(group, appends).0 > self.pools[group].free.len() {
            let dropped = self.evict_for(group);
            assert!(dropped, "the pages of group {group} were counted");
        }
    }

    /// Pages that the appends take from a group: for new indexes, and for copies of shared pages. The
    /// second number is how many copies would not be made if the tree held nothing.
    fn pages_needed(&mut self, group: usize, appends: &[(Seq, usize)]) -> (usize, usize) {
        let (mut needed, mut avoidable) = (0, 0);
        for &(seq, n) in appends.iter().filter(|(_, n)| *n > 0) {
            let s = &self.slots[seq.slot as usize];
            let (len, pages) = (s.tokens.len(), &s.tables[group].pages);
            needed += (len + n).div_ceil(PAGE) - pages.len();
            if !len.is_multiple_of(PAGE) {
                let page = pages[len / PAGE];
                let pool = &mut self.pools[group];
                if !pool.claim(page, seq.slot, len % PAGE) {
                    needed += 1;
                    avoidable += usize::from(pool.claimable_without_tree(page));
                }
            }
        }
        (needed, avoidable)
    }

    /// Takes the pages that were counted.
    fn reserve(&mut self, slot: u32, n: usize) {
        let s = &mut self.slots[slot as usize];
        let len = s.tokens.len();
        if n == 0 {
            return;
        }
        for (group, (table, pool)) in s.tables.iter_mut().zip(&mut self.pools).enumerate() {
            let rows = len % PAGE;
            if rows > 0 && !pool.claim(table.pages[len / PAGE], slot, rows) {
                let to = pool.take(slot);
                let from = std::mem::replace(&mut table.pages[len / PAGE], to);
                s.replaced[group] = Some(from);
                self.copies.push(Copy { group, from: from as u32, to: to as u32, rows });
            }
            for _ in table.pages.len()..(len + n).div_ceil(PAGE) {
                table.pages.push(pool.take(slot));
            }
        }
    }
}
