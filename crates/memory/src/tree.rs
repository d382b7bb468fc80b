//! Snapshots in the order of their tokens.
//!
//! The tree over token ids is kept as its leaves in lexicographic order of (domain, ids): neighbours share
//! the longest prefixes, so an inner node is a run of the list. Each leaf says how long a prefix it shares
//! with the one before it; the least of those over a run is what its ends share.

use std::cmp::Ordering;

use crate::memory::Stats;
use crate::spec::MemorySpec;
use crate::table::Table;

/// A snapshot in the tree; it may be dropped at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SnapshotId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    generation: u32,
    pub domain: u64,
    pub tokens: Vec<u32>,
    /// By group.
    pub tables: Vec<Table>,
    /// The slot of what is not in pages.
    pub state: Option<u32>,
    pub last_use: u64,
    /// The worth of what had been dropped by then.
    pub floor: u128,
    /// Time to compute one of its tokens, as measured when it was taken.
    pub token_cost: u32,
    /// Tokens shared with the one before it in the order; 0 where that has another domain.
    pub before: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Tree {
    snapshots: Vec<Snapshot>,
    free: Vec<u32>,
    /// Those in use, by (domain, tokens).
    order: Vec<u32>,
    clock: u64,
    /// The highest worth of what was dropped for want of room.
    floor: u128,
    pub token_cost: u32,
    pub stats: Stats,
}

impl Snapshot {
    pub fn len(&self) -> usize {
        self.tokens.len()
    }
}

impl Tree {
    pub fn new(spec: &MemorySpec) -> Self {
        // Each turn of a conversation leaves about two; the budget in bytes is what limits them in practice.
        let n = (8 * spec.max_seqs).max(64);
        let snapshot = |_| Snapshot {
            generation: 0,
            domain: 0,
            tokens: Vec::with_capacity(spec.max_ctx),
            tables: spec.groups.iter().map(|_| Table::new(spec.max_ctx)).collect(),
            state: None,
            last_use: 0,
            floor: 0,
            token_cost: 0,
            before: 0,
        };
        Self {
            snapshots: (0..n).map(snapshot).collect(),
            free: (0..n as u32).rev().collect(),
            order: Vec::with_capacity(n),
            clock: 0,
            floor: 0,
            token_cost: 1,
            stats: Stats::default(),
        }
    }

    pub fn len(&self) -> usize {
        self.order.len()
    }

    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// The snapshots, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Snapshot> {
        self.order.iter().map(|index| &self.snapshots[*index as usize])
    }

    pub fn at(&self, place: usize) -> &Snapshot {
        &self.snapshots[self.order[place] as usize]
    }

    pub fn id(&self, place: usize) -> SnapshotId {
        SnapshotId { index: self.order[place], generation: self.at(place).generation }
    }

    /// The snapshot of an id, unless it was dropped.
    pub fn get(&self, id: SnapshotId) -> Option<&Snapshot> {
        // The generation is raised when a snapshot is dropped, so an equal one is in use.
        self.snapshots.get(id.index as usize).filter(|s| s.generation == id.generation)
    }

    /// Where (domain, tokens) is in the order, or would be.
    pub fn place(&self, domain: u64, tokens: &[u32]) -> Result<usize, usize> {
        self.order.binary_search_by(|index| {
            let s = &self.snapshots[*index as usize];
            s.domain.cmp(&domain).then_with(|| compare(&s.tokens, tokens))
        })
    }

    /// Tokens that the snapshot at `place` shares with these; 0 past either end and across domains.
    pub fn shared(&self, place: Option<usize>, domain: u64, tokens: &[u32]) -> usize {
        let s = place.filter(|place| *place < self.len()).map(|place| self.at(place));
        s.filter(|s| s.domain == domain).map_or(0, |s| common(&s.tokens, tokens))
    }

    /// Tokens that the snapshot at `place` shares with the one before it; 0 at either end.
    pub fn before(&self, place: usize) -> usize {
        if place < self.len() { self.at(place).before } else { 0 }
    }

    pub fn touch(&mut self, index: u32) {
        self.clock += 1;
        let s = &mut self.snapshots[index as usize];
        (s.last_use, s.floor) = (self.clock, self.floor);
    }

    /// Something of this worth was dropped for want of room.
    pub fn raise_floor(&mut self, worth: u128) {
        self.floor = self.floor.max(worth);
    }

    /// A new snapshot of tokens that are not there yet; its tables are empty.
    pub fn insert(&mut self, domain: u64, tokens: &[u32]) -> (SnapshotId, &mut Snapshot) {
        let place = self.place(domain, tokens).expect_err("the tokens are new");
        let before = self.shared(place.checked_sub(1), domain, tokens);
        let after = self.shared(Some(place), domain, tokens);
        if place < self.len() {
            self.snapshots[self.order[place] as usize].before = after;
        }
        let index = self.free.pop().expect("a snapshot was dropped");
        self.order.insert(place, index);
        self.touch(index);
        let new = &mut self.snapshots[index as usize];
        (new.domain, new.token_cost, new.before) = (domain, self.token_cost, before);
        new.tokens.extend_from_slice(tokens);
        (SnapshotId { index, generation: new.generation }, new)
    }

    /// Takes a snapshot out; its tables and its slot are for the caller to empty.
    pub fn remove(&mut self, place: usize) -> &mut Snapshot {
        let index = self.order.remove(place);
        let before = self.snapshots[index as usize].before;
        if place < self.len() {
            let next = &mut self.snapshots[self.order[place] as usize].before;
            *next = before.min(*next);
        }
        let s = &mut self.snapshots[index as usize];
        s.tokens.clear();
        s.generation = s.generation.wrapping_add(1);
        self.free.push(index);
        self.stats.evictions += 1;
        s
    }
}

/// Length of the common prefix.
pub fn common(a: &[u32], b: &[u32]) -> usize {
    // Whole blocks first: a comparison of slices is much faster than one of elements.
    const BLOCK: usize = 128;
    let blocks = a.chunks_exact(BLOCK).zip(b.chunks_exact(BLOCK)).take_while(|(a, b)| a == b).count() * BLOCK;
    blocks + a[blocks..].iter().zip(&b[blocks..]).take_while(|(a, b)| a == b).count()
}

/// Lexicographic order.
fn compare(a: &[u32], b: &[u32]) -> Ordering {
    let n = common(a, b);
    a.get(n).cmp(&b.get(n))
}
