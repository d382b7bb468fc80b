//! Sequences: opening, forking, rolling back, closing.

use crate::plan::Copy;
use crate::pool::Pool;
use crate::spec::{Full, MemorySpec, OutOfReach, PAGE};
use crate::table::Table;
use crate::tree::Tree;

/// An open sequence. A handle goes with its sequence: after [`Memory::close`] its use is a panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seq {
    pub(crate) slot: u32,
    generation: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Slot {
    generation: u32,
    pub open: bool,
    pub domain: u64,
    pub tokens: Vec<u32>,
    /// By group.
    pub tables: Vec<Table>,
    /// How many tokens the present plan reserved.
    pub pending: Option<usize>,
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
    pub(crate) slots: Vec<Slot>,
    free_slots: Vec<u32>,
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
    /// Bytes of pages that only the tree holds.
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
        let slot = |_| Slot {
            generation: 0,
            open: false,
            domain: 0,
            tokens: Vec::with_capacity(spec.max_ctx),
            tables: (0..groups).map(|_| Table::new(spec.max_ctx)).collect(),
            pending: None,
            replaced: vec![None; groups],
        };
        Self {
            pools: spec.groups.iter().map(|g| Pool::new(g.n_pages)).collect(),
            slots: (0..spec.max_seqs).map(slot).collect(),
            free_slots: (0..spec.max_seqs as u32).rev().collect(),
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
        let slot = self.free_slots.pop().ok_or(Full::Sequences { max_seqs: self.spec.max_seqs })?;
        let s = &mut self.slots[slot as usize];
        (s.open, s.domain) = (true, domain);
        Ok(Seq { slot, generation: s.generation })
    }

    /// Ends a sequence, with whatever a plan reserved for it.
    pub fn close(&mut self, seq: Seq) {
        self.live(seq);
        self.abort_slot(seq.slot);
        let s = &mut self.slots[seq.slot as usize];
        for (table, pool) in s.tables.iter_mut().zip(&mut self.pools) {
            table.clear(pool, seq.slot);
        }
        s.tokens.clear();
        (s.open, s.generation) = (false, s.generation.wrapping_add(1));
        self.free_slots.push(seq.slot);
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
            .slots
            .get_disjoint_mut([seq.slot as usize, child.slot as usize])
            .expect("an open sequence and a new one");
        to.tokens.extend_from_slice(&from.tokens);
        for ((to, from), pool) in to.tables.iter_mut().zip(&from.tables).zip(&mut self.pools) {
            to.copy_from(from, len, 0, |page, rows| pool.share(page, rows));
        }
        Ok(child)
    }

    /// Shortens a sequence to `new_len` tokens; 0 always works.
    ///
    /// # Errors
    /// A window has let go of keys that the token at `new_len` would see: it was more than `max_rollback`
    /// tokens longer, or was attached to a snapshot there.
    pub fn rollback(&mut self, seq: Seq, new_len: usize) -> Result<(), OutOfReach> {
        let len = self.settled(seq).tokens.len();
        assert!(new_len <= len, "rollback to {new_len} of a sequence of {len} tokens");
        let s = &mut self.slots[seq.slot as usize];
        for (group, (table, spec)) in s.tables.iter().zip(&self.spec.groups).enumerate() {
            if new_len > 0 && !table.reaches(spec, new_len) {
                return Err(OutOfReach { group, len, new_len });
            }
        }
        s.tokens.truncate(new_len);
        for (table, pool) in s.tables.iter_mut().zip(&mut self.pools) {
            match new_len {
                0 => table.clear(pool, seq.slot),
                _ => table.truncate(pool, seq.slot, new_len.div_ceil(PAGE)),
            }
        }
        self.keep_to_budget();
        Ok(())
    }

    /// Counts as they stand.
    pub fn stats(&self) -> Stats {
        Stats {
            sequences: self.spec.max_seqs - self.free_slots.len(),
            snapshots: self.tree.len(),
            cached_bytes: self.cached_bytes(),
            ..self.tree.stats
        }
    }

    /// Pages of a group that nothing holds, and pages that only the prefix tree holds.
    pub fn free_pages(&self, group: usize) -> (usize, usize) {
        (self.pools[group].free.len(), self.pools[group].cached)
    }

    pub(crate) fn live(&self, seq: Seq) -> &Slot {
        let s = &self.slots[seq.slot as usize];
        assert!(s.open && s.generation == seq.generation, "a sequence was used after its end");
        s
    }

    /// A live sequence outside any plan.
    pub(crate) fn settled(&self, seq: Seq) -> &Slot {
        let s = self.live(seq);
        assert!(s.pending.is_none(), "a sequence was touched between its plan and its commit");
        s
    }
}
