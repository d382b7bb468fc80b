//! Sequences: opening, forking, rolling back, closing.

use crate::error::{Full, Limit, OutOfReach};
use crate::plan::{Copy, Pending};
use crate::pool::Pool;
use crate::slot::SlotPool;
use crate::spec::{MemorySpec, PAGE};
use crate::table::Table;
use crate::tree::Tree;

/// An open sequence. A handle goes with its sequence: after [`Memory::close`] its use is a panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seq {
    pub(crate) index: u32,
    generation: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    generation: u32,
    pub open: bool,
    pub domain: u64,
    pub tokens: Vec<u32>,
    /// By group.
    pub tables: Vec<Table>,
    /// The slot of what it keeps besides pages; an empty sequence has none.
    pub state: Option<u32>,
    /// What the present plan reserved.
    pub pending: Option<Pending>,
    /// By group: the shared page that the present plan replaced by a copy; still held.
    pub replaced: Vec<Option<i32>>,
}

/// The books over all sequences and snapshots.
///
/// Handles must be live and groups must exist; anything else is a broken promise of the caller and
/// panics, as does touching a sequence between its plan and its commit, except to close it.
#[derive(Clone, Debug)]
pub struct Memory {
    pub(crate) spec: MemorySpec,
    pub(crate) pools: Vec<Pool>,
    pub(crate) slots: SlotPool,
    pub(crate) seqs: Vec<Sequence>,
    free_seqs: Vec<u32>,
    pub(crate) tree: Tree,
    pub(crate) copies: Vec<Copy>,
}

/// Counts over a [`Memory`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Open sequences.
    pub sequences: usize,
    /// Snapshots in the tree.
    pub snapshots: usize,
    /// Bytes of pages and slots that only the tree holds.
    pub cached_bytes: u64,
    /// Snapshots dropped for want of room, so far.
    pub evictions: u64,
    /// Snapshots attached, so far.
    pub attached: u64,
    /// Tokens that attached snapshots saved, so far.
    pub tokens_saved: u64,
}

impl Memory {
    /// An empty memory.
    pub fn new(spec: MemorySpec) -> Self {
        let groups = spec.groups.len();
        let sequence = |_| Sequence {
            generation: 0,
            open: false,
            domain: 0,
            tokens: Vec::with_capacity(spec.max_ctx),
            tables: (0..groups).map(|_| Table::new(spec.max_ctx)).collect(),
            state: None,
            pending: None,
            replaced: vec![None; groups],
        };
        Self {
            pools: spec.groups.iter().map(|g| Pool::new(g.n_pages)).collect(),
            slots: SlotPool::new(spec.slots),
            seqs: (0..spec.max_seqs).map(sequence).collect(),
            free_seqs: (0..spec.max_seqs as u32).rev().collect(),
            tree: Tree::new(&spec),
            copies: Vec::with_capacity(spec.max_seqs * groups),
            spec,
        }
    }

    /// What the memory was made for.
    pub fn spec(&self) -> &MemorySpec {
        &self.spec
    }

    /// An empty sequence. Only sequences of one domain share snapshots.
    ///
    /// # Errors
    /// All sequences are open.
    pub fn open(&mut self, domain: u64) -> Result<Seq, Full> {
        let index = self.free_seqs.pop().ok_or(Full::Sequences { max_seqs: self.spec.max_seqs })?;
        let s = &mut self.seqs[index as usize];
        (s.open, s.domain) = (true, domain);
        Ok(Seq { index, generation: s.generation })
    }

    /// Ends a sequence, with whatever a plan reserved for it.
    pub fn close(&mut self, seq: Seq) {
        self.live(seq);
        self.abort_one(seq.index);
        let s = &mut self.seqs[seq.index as usize];
        for (table, pool) in s.tables.iter_mut().zip(&mut self.pools) {
            table.clear(pool, seq.index);
        }
        if let Some(slot) = s.state.take() {
            self.slots.release(slot);
        }
        s.tokens.clear();
        (s.open, s.generation) = (false, s.generation.wrapping_add(1));
        self.free_seqs.push(seq.index);
        self.keep_to_budget();
    }

    /// Tokens of a sequence.
    pub fn len(&self, seq: Seq) -> usize {
        self.live(seq).tokens.len()
    }

    /// Whether a sequence has no tokens.
    pub fn is_empty(&self, seq: Seq) -> bool {
        self.len(seq) == 0
    }

    /// The tokens of a sequence.
    pub fn tokens(&self, seq: Seq) -> &[u32] {
        &self.live(seq).tokens
    }

    /// The domain a sequence was opened in.
    pub fn domain(&self, seq: Seq) -> u64 {
        self.live(seq).domain
    }

    /// Page numbers of a sequence in one group by (token index / [`PAGE`]), -1 where freed; while a plan
    /// is pending they reach to the planned length.
    pub fn page_table(&self, seq: Seq, group: usize) -> &[i32] {
        &self.live(seq).tables[group].pages
    }

    /// A second sequence with the same tokens. It shares all pages; nothing is copied until one of the two
    /// writes into a page that both hold.
    ///
    /// # Errors
    /// All sequences are open.
    pub fn fork(&mut self, seq: Seq) -> Result<Seq, Full> {
        let (domain, len) = (self.settled(seq).domain, self.len(seq));
        let child = self.open(domain)?;
        let [from, to] = self
            .seqs
            .get_disjoint_mut([seq.index as usize, child.index as usize])
            .expect("an open sequence and a new one");
        to.tokens.extend_from_slice(&from.tokens);
        to.state = from.state;
        if let Some(slot) = to.state {
            self.slots.share(slot);
        }
        for ((to, from), pool) in to.tables.iter_mut().zip(&from.tables).zip(&mut self.pools) {
            to.copy_from(from, len, 0, |page, rows| pool.share(page, rows));
        }
        Ok(child)
    }

    /// Shortens a sequence to `new_len` tokens; 0 and the present length always work.
    ///
    /// # Errors
    /// What the token at `new_len` goes on from is no longer kept. A window reaches back `max_rollback`
    /// tokens from the longest length the sequence had; a recurrence to the tokens that were certain in
    /// its last step; rings alone `longest_draft` rows from the highest ever written. After an attach the
    /// snapshot's own reach counts.
    pub fn rollback(&mut self, seq: Seq, new_len: usize) -> Result<(), OutOfReach> {
        let len = self.settled(seq).tokens.len();
        assert!(new_len <= len, "rollback to {new_len} of a sequence of {len} tokens");
        if new_len > 0 && new_len < len {
            let limit = self.limit(seq, new_len);
            limit.map_or(Ok(()), |limit| Err(OutOfReach { len, new_len, limit }))?;
        }
        self.shorten(seq.index, new_len);
        self.keep_to_budget();
        Ok(())
    }

    /// The shortest length besides 0 that [`rollback`](Self::rollback) can reach.
    pub fn lowest(&self, seq: Seq) -> usize {
        let s = self.live(seq);
        let windows = s.tables.iter().zip(&self.spec.groups).map(|(t, g)| t.lowest(g));
        let state = s.state.map_or(0, |slot| self.slots.lowest(slot));
        windows.max().unwrap_or(0).max(state).min(s.tokens.len())
    }

    fn limit(&self, seq: Seq, new_len: usize) -> Option<Limit> {
        let s = self.live(seq);
        let mut groups = s.tables.iter().zip(&self.spec.groups);
        if let Some(group) = groups.position(|(table, spec)| !table.reaches(spec, new_len)) {
            return Some(Limit::Window { group });
        }
        let lowest = s.state.map_or(0, |slot| self.slots.lowest(slot));
        (new_len < lowest).then_some(Limit::State { lowest })
    }

    /// Lets go of what is above `new_len`, whether or not the rest is whole.
    pub(crate) fn shorten(&mut self, index: u32, new_len: usize) {
        let s = &mut self.seqs[index as usize];
        s.tokens.truncate(new_len);
        for (table, pool) in s.tables.iter_mut().zip(&mut self.pools) {
            match new_len {
                0 => table.clear(pool, index),
                _ => table.truncate(pool, index, new_len.div_ceil(PAGE)),
            }
        }
        if let Some(slot) = s.state.take_if(|_| new_len == 0) {
            self.slots.release(slot);
        }
    }

    /// Counts as they stand.
    pub fn stats(&self) -> Stats {
        Stats {
            sequences: self.spec.max_seqs - self.free_seqs.len(),
            snapshots: self.tree.len(),
            cached_bytes: self.cached_bytes(),
            ..self.tree.stats
        }
    }

    /// Pages of a group that nothing holds, and pages that only the prefix tree holds.
    pub fn free_pages(&self, group: usize) -> (usize, usize) {
        (self.pools[group].free.len(), self.pools[group].cached)
    }

    /// Slots that nothing holds, and slots that only the prefix tree holds.
    pub fn free_slots(&self) -> (usize, usize) {
        (self.slots.free.len(), self.slots.cached)
    }

    /// A handle of an open sequence.
    pub(crate) fn handle(&self, index: u32) -> Seq {
        Seq { index, generation: self.seqs[index as usize].generation }
    }

    pub(crate) fn live(&self, seq: Seq) -> &Sequence {
        let s = &self.seqs[seq.index as usize];
        assert!(s.open && s.generation == seq.generation, "a sequence was used after its end");
        s
    }

    /// A live sequence outside any plan.
    pub(crate) fn settled(&self, seq: Seq) -> &Sequence {
        let s = self.live(seq);
        assert!(s.pending.is_none(), "a sequence was touched between its plan and its commit");
        s
    }
}
