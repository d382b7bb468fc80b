//! Two phases of a step: what it may append is reserved, then what came of it is kept.

use crate::error::Full;
use crate::memory::{Memory, Seq};
use crate::spec::PAGE;

/// What a step appends to one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Append {
    /// The sequence.
    pub seq: Seq,
    /// Rows of the step, drafted ones included.
    pub rows: usize,
    /// Rows that will be kept whatever comes, at least one if there are any; the rest, at most a
    /// longest draft where there are slots, may turn out wrong.
    pub certain: usize,
}

impl Append {
    /// Rows that are all certain.
    pub fn certain(seq: Seq, rows: usize) -> Self {
        Self { seq, rows, certain: rows }
    }
}

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

/// The slots of a sequence in the present plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotUse {
    /// The slot read; -1 where the sequence is empty.
    pub read: i32,
    /// The slot written; that read where no rows are planned.
    pub write: i32,
    /// Rows of the log in the slot read that count: those accepted and not yet in the base.
    pub n_log: usize,
}

/// What a plan reserved for one sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub rows: usize,
    certain: usize,
    /// The slot that the step writes.
    pub write: Option<u32>,
    /// By group there is room for so many rows; `rows` may be less.
    room: usize,
}

/// A sequence whose state a failed step spoilt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The sequence, cut back to the longest snapshot that serves it, or to nothing.
    pub seq: Seq,
    /// The tokens that were cut off, to be computed again.
    pub ids: Vec<u32>,
}

impl Memory {
    /// Reserves room for these appends, each of another sequence, and lists the copies to be made first.
    /// Snapshots are dropped when pages or slots run out. The plan holds until every sequence was
    /// committed, or [`abort`](Self::abort) or [`fail`](Self::fail) ends it; there is one plan at a time.
    /// Until then a drafter may write guesses into the pages of its own group, at any planned index: they
    /// are nobody's before the commit. Into a slot it may not: that is written once a step.
    ///
    /// # Errors
    /// A sequence would grow too long, or there are too few pages or slots; nothing has changed then.
    pub fn plan(&mut self, appends: &[Append]) -> Result<(), Full> {
        assert!(self.seqs.iter().all(|s| s.pending.is_none()), "a plan is still pending");
        self.copies.clear();
        for append in appends {
            self.check_append(append)?;
        }
        for group in 0..self.pools.len() {
            self.check_room(group, appends)?;
        }
        self.check_slots(appends)?;
        for group in 0..self.pools.len() {
            self.make_room(group, appends);
        }
        self.make_slots(appends);
        for append in appends {
            self.settled(append.seq);
            self.reserve(append);
        }
        Ok(())
    }

    fn check_append(&self, a: &Append) -> Result<(), Full> {
        let drafted = a.rows.checked_sub(a.certain).expect("no more rows are certain than there are");
        assert!(a.rows == 0 || a.certain > 0, "a step of {} rows has none that is certain", a.rows);
        let longest = self.spec.slots.map_or(usize::MAX, |s| s.longest_draft);
        assert!(drafted <= longest, "{drafted} drafted rows, the slots were made for {longest}");
        let (len, max_ctx) = (self.len(a.seq) + a.rows, self.spec.max_ctx);
        if len > max_ctx { Err(Full::Context { len, max_ctx }) } else { Ok(()) }
    }

    /// The copies of the present plan, or of the one just committed.
    pub fn copies(&self) -> &[Copy] {
        &self.copies
    }

    /// The slots of a planned sequence.
    ///
    /// # Panics
    /// The model keeps nothing besides pages, or the sequence is not in the plan.
    pub fn slots(&self, seq: Seq) -> SlotUse {
        assert!(self.spec.slots.is_some(), "there are no slots");
        let s = self.live(seq);
        let pending = s.pending.expect("a step's slots follow a plan");
        let number = |slot: Option<u32>| slot.map_or(-1, |slot| slot as i32);
        SlotUse {
            read: number(s.state),
            write: number(pending.write.or(s.state)),
            n_log: s.state.map_or(0, |slot| self.slots.n_log(slot, s.tokens.len())),
        }
    }

    /// Says that the step will run fewer rows of a planned sequence than were reserved, as when a draft
    /// came out shorter; at least its certain ones. Said before the step runs.
    pub fn shrink(&mut self, seq: Seq, rows: usize) {
        self.live(seq);
        let pending = self.seqs[seq.index as usize].pending.as_mut().expect("a shorter step follows a plan");
        assert!((pending.certain..=pending.room).contains(&rows), "{rows} rows of {}", pending.room);
        pending.rows = rows;
    }

    /// Appends `ids` to a planned sequence, whose rows the step has written. Fewer than planned may come,
    /// where there are slots at least the certain ones: the rest is given up.
    pub fn commit(&mut self, seq: Seq, ids: &[u32]) {
        self.live(seq);
        let s = &mut self.seqs[seq.index as usize];
        let pending = s.pending.take().expect("a commit follows a plan");
        let (n, before) = (ids.len(), s.tokens.len());
        assert!(n <= pending.rows, "{n} tokens committed, the step had {}", pending.rows);
        if let Some(write) = pending.write {
            assert!(n >= pending.certain, "{n} tokens committed, {} were certain", pending.certain);
            let read = s.state.replace(write);
            self.slots.wrote(read, write, before + pending.certain, before + pending.rows);
        }
        s.tokens.extend_from_slice(ids);
        let len = s.tokens.len();
        for (group, (table, pool)) in s.tables.iter_mut().zip(&mut self.pools).enumerate() {
            if let Some(page) = s.replaced[group].take() {
                pool.release(page, seq.index);
            }
            table.truncate(pool, seq.index, len.div_ceil(PAGE));
            let first = self.spec.groups[group].first_needed(len, self.spec.max_rollback);
            table.free_below(pool, seq.index, first);
        }
        self.keep_to_budget();
    }

    /// Gives up what the present plan reserved and was not committed, as if it had not been made; its
    /// copies are void. Only where no device has begun to write: otherwise [`fail`](Self::fail).
    pub fn abort(&mut self) {
        for index in 0..self.seqs.len() as u32 {
            self.abort_one(index);
        }
        self.copies.clear();
        self.keep_to_budget();
    }

    /// Ends a plan whose step failed after a device began to write. Rows above a sequence's length are
    /// nobody's, so pages are as before; a slot that was to be written in place is not. Its sequence
    /// goes back to the longest snapshot that serves it, or to nothing, and is named with the tokens
    /// that are to be computed again. All others keep what they had.
    pub fn fail(&mut self) -> Vec<Lost> {
        let mut lost = Vec::new();
        for index in 0..self.seqs.len() as u32 {
            let s = &self.seqs[index as usize];
            let in_place = s.pending.is_some_and(|p| p.write.is_some() && p.write == s.state);
            self.abort_one(index);
            if in_place {
                lost.push(self.restart(index));
            }
        }
        self.copies.clear();
        self.keep_to_budget();
        lost
    }

    fn restart(&mut self, index: u32) -> Lost {
        let seq = self.handle(index);
        let mut ids = self.tokens(seq).to_vec();
        self.shorten(index, 0);
        if let Some((id, n)) = self.find(self.domain(seq), &ids) {
            self.attach(seq, id, n).expect("it was just found");
            ids.drain(..n);
        }
        Lost { seq, ids }
    }

    pub(crate) fn abort_one(&mut self, index: u32) {
        let s = &mut self.seqs[index as usize];
        let Some(pending) = s.pending.take() else { return };
        if let Some(write) = pending.write.filter(|write| s.state != Some(*write)) {
            self.slots.release(write);
        }
        let len = s.tokens.len();
        for ((table, pool), replaced) in s.tables.iter_mut().zip(&mut self.pools).zip(&mut s.replaced) {
            table.truncate(pool, index, len.div_ceil(PAGE));
            if let Some(old) = replaced.take() {
                let copy = table.pages.last_mut().expect("a page was replaced");
                pool.release(std::mem::replace(copy, old), index);
            }
        }
    }

    /// Whether there are the slots that the appends take, counting what the tree would give.
    fn check_slots(&self, appends: &[Append]) -> Result<(), Full> {
        let (needed, avoidable) = self.slots_needed(appends);
        let (needed, available) = (needed - avoidable, self.slots.free.len() + self.slots.cached);
        let n_slots = self.slots.slots.len();
        if needed > available { Err(Full::Slots { needed, available, n_slots }) } else { Ok(()) }
    }

    /// Drops snapshots until there are the free slots that the appends take.
    fn make_slots(&mut self, appends: &[Append]) {
        while self.slots_needed(appends).0 > self.slots.free.len() {
            assert!(self.evict_for_slot(), "the slots were counted");
        }
    }

    /// Slots that the appends take: one for each sequence that is not the only holder of its own. Where
    /// two share one, both take another, for a step reads and writes at once. The second number is how
    /// many would not be taken if the tree held nothing.
    fn slots_needed(&self, appends: &[Append]) -> (usize, usize) {
        if self.spec.slots.is_none() {
            return (0, 0);
        }
        let (mut needed, mut avoidable) = (0, 0);
        for a in appends.iter().filter(|a| a.rows > 0) {
            let state = self.live(a.seq).state;
            if state.is_none_or(|slot| !self.slots.is_sole(slot)) {
                needed += 1;
                avoidable += usize::from(state.is_some_and(|slot| self.slots.sole_without_tree(slot)));
            }
        }
        (needed, avoidable)
    }

    /// The slot that a step writes for a sequence.
    fn take_slot(&mut self, index: u32) -> Option<u32> {
        self.spec.slots?;
        let state = self.seqs[index as usize].state;
        state.filter(|slot| self.slots.is_sole(*slot)).or_else(|| Some(self.slots.take()))
    }

    /// Whether a group has the pages that the appends take, counting what the tree would give. Dropping
    /// snapshots does not change the answer.
    fn check_room(&mut self, group: usize, appends: &[Append]) -> Result<(), Full> {
        let (needed, avoidable) = self.pages_needed(group, appends);
        let (needed, pool) = (needed - avoidable, &self.pools[group]);
        let (available, n_pages) = (pool.free.len() + pool.cached, pool.pages.len());
        if needed > available { Err(Full::Pages { group, needed, available, n_pages }) } else { Ok(()) }
    }

    /// Drops snapshots until a group has the free pages that the appends take.
    fn make_room(&mut self, group: usize, appends: &[Append]) {
        while self.pages_needed(group, appends).0 > self.pools[group].free.len() {
            let dropped = self.evict_for(group);
            assert!(dropped, "the pages of group {group} were counted");
        }
    }

    /// Pages that the appends take from a group: for new indexes, and for copies of shared pages. The
    /// second number is how many copies would not be made if the tree held nothing.
    fn pages_needed(&mut self, group: usize, appends: &[Append]) -> (usize, usize) {
        let (mut needed, mut avoidable) = (0, 0);
        for &Append { seq, rows: n, .. } in appends.iter().filter(|a| a.rows > 0) {
            let s = &self.seqs[seq.index as usize];
            let (len, pages) = (s.tokens.len(), &s.tables[group].pages);
            needed += (len + n).div_ceil(PAGE) - pages.len();
            if !len.is_multiple_of(PAGE) {
                let page = pages[len / PAGE];
                let pool = &mut self.pools[group];
                if !pool.claim(page, seq.index, len % PAGE) {
                    needed += 1;
                    avoidable += usize::from(pool.claimable_without_tree(page));
                }
            }
        }
        (needed, avoidable)
    }

    /// Takes the pages and the slot that were counted.
    fn reserve(&mut self, append: &Append) {
        let (index, n) = (append.seq.index, append.rows);
        let write = if n > 0 { self.take_slot(index) } else { None };
        let s = &mut self.seqs[index as usize];
        s.pending = Some(Pending { rows: n, certain: append.certain, write, room: n });
        let len = s.tokens.len();
        if n == 0 {
            return;
        }
        for (group, (table, pool)) in s.tables.iter_mut().zip(&mut self.pools).enumerate() {
            let rows = len % PAGE;
            if rows > 0 && !pool.claim(table.pages[len / PAGE], index, rows) {
                let to = pool.take(index);
                let from = std::mem::replace(&mut table.pages[len / PAGE], to);
                s.replaced[group] = Some(from);
                self.copies.push(Copy { group, from: from as u32, to: to as u32, rows });
            }
            for _ in table.pages.len()..(len + n).div_ceil(PAGE) {
                table.pages.push(pool.take(index));
            }
        }
    }
}
