//! Snapshots under one budget, found by prefix.
//!
//! The tree over token ids is kept as its leaves in lexicographic order of (domain, ids): neighbours share
//! the longest prefixes, so an inner node is a run of the list and needs no memory of its own.

use std::cmp::Ordering;

use crate::memory::{Memory, Seq, Stats};
use crate::spec::{GroupSpec, MemorySpec, PAGE, Stale};
use crate::table::Table;

/// A snapshot in the tree; it may be dropped at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SnapshotId {
    slot: u32,
    generation: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    generation: u32,
    domain: u64,
    tokens: Vec<u32>,
    /// By group.
    pub tables: Vec<Table>,
    last_use: u64,
    /// Time to compute one of its tokens, as measured when it was taken.
    token_cost: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Tree {
    slots: Vec<Snapshot>,
    free: Vec<u32>,
    /// Slots in use, by (domain, tokens).
    order: Vec<u32>,
    clock: u64,
    token_cost: u32,
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
            last_use: 0,
            token_cost: 0,
        };
        Self {
            slots: (0..n).map(snapshot).collect(),
            free: (0..n as u32).rev().collect(),
            order: Vec::with_capacity(n),
            clock: 0,
            token_cost: 1,
            stats: Stats::default(),
        }
    }

    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// The snapshots, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Snapshot> {
        self.order.iter().map(|slot| &self.slots[*slot as usize])
    }

    fn at(&self, place: usize) -> &Snapshot {
        &self.slots[self.order[place] as usize]
    }

    /// Where (domain, tokens) is in the order, or would be.
    fn place(&self, domain: u64, tokens: &[u32]) -> Result<usize, usize> {
        self.order.binary_search_by(|slot| {
            let s = &self.slots[*slot as usize];
            s.domain.cmp(&domain).then_with(|| compare(&s.tokens, tokens))
        })
    }

    fn id(&self, place: usize) -> SnapshotId {
        SnapshotId { slot: self.order[place], generation: self.at(place).generation }
    }

    fn touch(&mut self, slot: u32) {
        self.clock += 1;
        self.slots[slot as usize].last_use = self.clock;
    }

    /// Tokens that the snapshot at `place` could give to a sequence that starts with `tokens`.
    fn serves(&self, groups: &[GroupSpec], place: usize, domain: u64, tokens: &[u32]) -> (usize, bool) {
        let s = self.at(place);
        if s.domain != domain {
            return (0, false);
        }
        let n = common(&s.tokens, tokens);
        (n, n > 0 && s.tables.iter().zip(groups).all(|(t, g)| t.reaches(g, n)))
    }

    /// (tokens saved x time, bytes x 64) by which the snapshot at `place` exceeds what its neighbours give.
    fn worth(&self, groups: &[GroupSpec], place: usize) -> (u128, u128) {
        let s = self.at(place);
        let neighbours = [place.wrapping_sub(1), place + 1].into_iter().filter(|p| *p < self.order.len());
        let others = neighbours.map(|p| self.serves(groups, p, s.domain, &s.tokens));
        let common = others.filter(|(_, usable)| *usable).map(|(n, _)| n).max().unwrap_or(0);
        let saved = s.tokens.len() - common;
        let bytes = s.tables.iter().zip(groups).map(|(table, group)| {
            let rows = match group.window {
                None => saved,
                Some(_) => (table.pages.len() - table.first.max(common / PAGE).min(table.pages.len())) * PAGE,
            };
            rows as u128 * u128::from(group.page_bytes)
        });
        (saved as u128 * u128::from(s.token_cost), bytes.sum::<u128>().max(1))
    }

    /// The place of the snapshot of least worth per byte among those that `may` go.
    fn worst(&self, groups: &[GroupSpec], may: impl Fn(&Snapshot) -> bool) -> Option<usize> {
        let mut worst: Option<(usize, (u128, u128))> = None;
        for place in 0..self.order.len() {
            let (saved, bytes) = self.worth(groups, place);
            let worse = worst.is_none_or(|(other, (other_saved, other_bytes))| {
                let by_worth = (saved * other_bytes).cmp(&(other_saved * bytes));
                by_worth.then(self.at(place).last_use.cmp(&self.at(other).last_use)) == Ordering::Less
            });
            if worse && may(self.at(place)) {
                worst = Some((place, (saved, bytes)));
            }
        }
        worst.map(|(place, _)| place)
    }
}

/// Length of the common prefix.
fn common(a: &[u32], b: &[u32]) -> usize {
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

impl Memory {
    /// Puts a sequence at its present length into the prefix tree. `None` where nothing can be kept: it has
    /// no tokens, or is worth less than what else fills the budget.
    pub fn snapshot(&mut self, seq: Seq) -> Option<SnapshotId> {
        let len = self.settled(seq).tokens.len();
        if len == 0 {
            return None;
        }
        let s = &self.slots[seq.slot as usize];
        if let Ok(place) = self.tree.place(s.domain, &s.tokens) {
            self.tree.touch(self.tree.order[place]);
            return Some(self.tree.id(place));
        }
        if self.tree.free.is_empty() {
            let place = self.tree.worst(&self.spec.groups, |_| true).expect("all snapshots are in use");
            self.evict(place);
        }
        let s = &self.slots[seq.slot as usize];
        let place = self.tree.place(s.domain, &s.tokens).expect_err("it was not there");
        let slot = self.tree.free.pop().expect("one was dropped");
        let new = &mut self.tree.slots[slot as usize];
        (new.domain, new.token_cost) = (s.domain, self.tree.token_cost);
        new.tokens.extend_from_slice(&s.tokens);
        for ((to, from), pool) in new.tables.iter_mut().zip(&s.tables).zip(&mut self.pools) {
            to.copy_from(from, len, 0, |page, rows| pool.share_with_tree(page, rows));
        }
        self.tree.order.insert(place, slot);
        self.tree.touch(slot);
        let id = SnapshotId { slot, generation: self.tree.slots[slot as usize].generation };
        self.keep_to_budget();
        self.found(id).then_some(id)
    }

    /// The snapshot that serves the longest prefix of `ids`, and how many tokens it serves. A snapshot
    /// serves shorter prefixes too, as far as its windows reach back. A caller that needs the logits of the
    /// last token asks for less than all of its ids.
    pub fn find(&self, domain: u64, ids: &[u32]) -> Option<(SnapshotId, usize)> {
        let (tree, groups) = (&self.tree, &self.spec.groups);
        let place = tree.place(domain, ids).unwrap_or_else(|p| p);
        let look = |p: usize| tree.serves(groups, p, domain, ids);
        let (mut below, mut above) = (place, place);
        // Away from the place of `ids`, common prefixes only get shorter.
        loop {
            let left = below.checked_sub(1).map_or((0, false), look);
            let right = if above < tree.len() { look(above) } else { (0, false) };
            if left.0.max(right.0) == 0 {
                return None;
            }
            let (p, (n, usable)) = if left.0 >= right.0 { (below - 1, left) } else { (above, right) };
            if usable {
                return Some((tree.id(p), n));
            }
            if left.0 >= right.0 { below -= 1 } else { above += 1 }
        }
    }

    /// Makes an empty sequence the first `len` tokens of a snapshot, as [`find`](Self::find) gave them.
    ///
    /// # Errors
    /// The snapshot was dropped since.
    ///
    /// # Panics
    /// Where the sequence has tokens or another domain, or the snapshot does not serve `len` tokens.
    pub fn attach(&mut self, seq: Seq, id: SnapshotId, len: usize) -> Result<(), Stale> {
        self.settled(seq);
        if !self.found(id) {
            return Err(Stale);
        }
        let (s, from) = (&mut self.slots[seq.slot as usize], &self.tree.slots[id.slot as usize]);
        assert!(s.tokens.is_empty(), "a snapshot was attached to a sequence of {} tokens", s.tokens.len());
        assert!(s.domain == from.domain, "a snapshot of another domain was attached");
        s.tokens.extend_from_slice(&from.tokens[..len]);
        let tables = s.tables.iter_mut().zip(&from.tables).zip(&self.spec.groups).zip(&mut self.pools);
        for (((to, from), group), pool) in tables {
            assert!(from.reaches(group, len), "a snapshot was attached where its window has moved on");
            let first = group.first_needed(len, self.spec.max_rollback);
            to.copy_from(from, len, first, |page, rows| pool.share(page, rows));
        }
        self.tree.touch(id.slot);
        self.tree.stats.attached += 1;
        self.tree.stats.tokens_saved += len as u64;
        Ok(())
    }

    /// Says what a token of prefill costs now, in any unit; it weighs snapshots that are taken from here on.
    pub fn set_token_cost(&mut self, cost: u32) {
        self.tree.token_cost = cost.max(1);
    }

    /// Drops all snapshots.
    pub fn clear_snapshots(&mut self) {
        while self.tree.len() > 0 {
            self.evict(self.tree.len() - 1);
        }
    }

    fn found(&self, id: SnapshotId) -> bool {
        // The generation is raised when a slot is freed, so an equal one is in use.
        self.tree.slots[id.slot as usize].generation == id.generation
    }

    pub(crate) fn cached_bytes(&self) -> u64 {
        self.pools.iter().zip(&self.spec.groups).map(|(p, g)| p.cached as u64 * g.page_bytes).sum()
    }

    /// Drops snapshots until the pages that only the tree holds fit the budget.
    pub(crate) fn keep_to_budget(&mut self) {
        while self.cached_bytes() > self.spec.cache_bytes {
            let pools = &self.pools;
            let holds = |s: &Snapshot| {
                s.tables.iter().zip(pools).any(|(t, p)| t.held().iter().any(|page| p.is_cached(*page)))
            };
            let place = self.tree.worst(&self.spec.groups, holds).expect("a snapshot holds the pages");
            self.evict(place);
        }
    }

    /// Drops the snapshot of least worth among those that may give a page of a group; if none holds a page
    /// that only the tree holds, any. Says whether there was one.
    pub(crate) fn evict_for(&mut self, group: usize) -> bool {
        let (tree, groups, pool) = (&self.tree, &self.spec.groups, &self.pools[group]);
        let gives = |s: &Snapshot| s.tables[group].held().iter().any(|page| pool.is_cached(*page));
        let place = tree.worst(groups, gives).or_else(|| tree.worst(groups, |_| true));
        if let Some(place) = place {
            self.evict(place);
        }
        place.is_some()
    }

    fn evict(&mut self, place: usize) {
        let slot = self.tree.order.remove(place);
        let s = &mut self.tree.slots[slot as usize];
        for (table, pool) in s.tables.iter_mut().zip(&mut self.pools) {
            for page in table.held() {
                pool.release_from_tree(*page);
            }
            table.pages.clear();
            table.first = 0;
        }
        s.tokens.clear();
        s.generation = s.generation.wrapping_add(1);
        self.tree.free.push(slot);
        self.tree.stats.evictions += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(windows: &[Option<u32>], seed: u64) {
        let group = |w: &Option<u32>| GroupSpec { window: *w, n_pages: 4000, page_bytes: 1 };
        let groups: Vec<GroupSpec> = windows.iter().map(group).collect();
        let spec = MemorySpec { groups, max_seqs: 8, max_ctx: 800, max_rollback: 3, cache_bytes: 1 << 40 };
        let (mut memory, mut state) = (Memory::new(spec), seed);
        let mut below = |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        let mut served = 0;
        for _ in 0..400 {
            let (domain, mut ids) = (below(2), Vec::new());
            for i in 0..below(700) {
                ids.push(if below(200) == 0 { 9 } else { i as u32 / 100 });
            }
            let expected = memory.tree.iter().filter(|s| s.domain == domain).map(|s| {
                let n = common(&s.tokens, &ids);
                let whole = s.tables.iter().zip(&memory.spec.groups).all(|(t, g)| t.reaches(g, n));
                if whole { n } else { 0 }
            });
            let expected = expected.max().unwrap_or(0);
            let found = memory.find(domain, &ids).map_or(0, |f| f.1);
            assert_eq!(found, expected, "windows {windows:?}, {} tokens", ids.len());
            served += usize::from(found > 0);
            let seq = memory.open(domain).expect("a sequence is free");
            for step in ids.chunks(100) {
                memory.plan(&[(seq, step.len())]).expect("pages suffice");
                memory.commit(seq, step);
            }
            memory.snapshot(seq);
            memory.close(seq);
        }
        assert!(served > 100 && memory.tree.len() == 64, "{served} served, {} snapshots", memory.tree.len());
    }

    #[test]
    fn find_is_a_search_through_all_snapshots() {
        check(&[None], 1);
        check(&[None, Some(100)], 2);
        check(&[Some(65), Some(200)], 3);
    }
}
