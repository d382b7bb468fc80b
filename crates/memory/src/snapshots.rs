//! Taking, finding and attaching snapshots.

use crate::error::Stale;
use crate::memory::{Memory, Seq};
use crate::tree::SnapshotId;

impl Memory {
    /// Puts a sequence at its present length into the prefix tree. `None` where nothing can be kept: it has
    /// no tokens, or is worth less than what else fills the budget.
    pub fn snapshot(&mut self, seq: Seq) -> Option<SnapshotId> {
        let (len, lowest) = (self.settled(seq).tokens.len(), self.lowest(seq));
        if len == 0 {
            return None;
        }
        let s = &self.seqs[seq.index as usize];
        if let Ok(place) = self.tree.place(s.domain, &s.tokens) {
            let id = self.tree.id(place);
            if self.lowest_of(place) <= lowest {
                self.tree.touch(id.index);
                return Some(id);
            }
            // The new one serves more lengths.
            self.evict(place);
        }
        if self.tree.is_full() {
            let place = self.worst(|_| true).expect("all snapshots are in use");
            self.drop_worst(place);
        }
        let s = &self.seqs[seq.index as usize];
        let (id, new) = self.tree.insert(s.domain, &s.tokens);
        for ((to, from), pool) in new.tables.iter_mut().zip(&s.tables).zip(&mut self.pools) {
            to.copy_from(from, len, 0, |page, rows| pool.share_with_tree(page, rows));
        }
        new.state = s.state;
        if let Some(slot) = s.state {
            self.slots.share_with_tree(slot);
        }
        self.keep_to_budget();
        self.tree.get(id).map(|_| id)
    }

    /// The snapshot that serves the longest prefix of `ids`, and how many tokens it serves. A snapshot
    /// serves shorter prefixes too, as far as its windows, its log and its rings reach back. A caller that
    /// needs the logits of the last token asks for less than all of its ids.
    pub fn find(&self, domain: u64, ids: &[u32]) -> Option<(SnapshotId, usize)> {
        let (place, shared) = self.beside(domain, ids);
        self.nearest([place, place], shared).map(|(place, n)| (self.tree.id(place), n))
    }

    /// The snapshots that no other stands for, as domain and tokens: those that no longer one begins with, and all
    /// where a longer one does not serve the shorter prefix.
    pub fn irreplaceable(&self) -> impl Iterator<Item = (u64, &[u32])> {
        let all = !self.spec.serves_all_prefixes();
        let is_leaf = move |place: &usize| all || self.tree.before(place + 1) < self.tree.at(*place).len();
        let shown = |place: usize| (self.tree.at(place).domain, &self.tree.at(place).tokens[..]);
        (0..self.tree.len()).filter(is_leaf).map(shown)
    }

    /// How many of the first of `ids` some snapshot of the domain has, too, whether or not it can be gone on from
    /// there: where a prompt departs from all that is remembered.
    pub fn known(&self, domain: u64, ids: &[u32]) -> usize {
        let (_, [left, right]) = self.beside(domain, ids);
        left.max(right)
    }

    /// The place of `ids` in the order, and how many of them the snapshots before it and at it share.
    fn beside(&self, domain: u64, ids: &[u32]) -> (usize, [usize; 2]) {
        let place = self.tree.place(domain, ids).unwrap_or_else(|p| p);
        (place, [place.checked_sub(1), Some(place)].map(|p| self.tree.shared(p, domain, ids)))
    }

    /// Away from a place in the order, the snapshot that serves the longest prefix of what belongs there:
    /// those below `places[0]` and from `places[1]` on are asked, the first of which share so many tokens.
    pub(crate) fn nearest(&self, places: [usize; 2], shared: [usize; 2]) -> Option<(usize, usize)> {
        let ([mut below, mut above], [mut left, mut right]) = (places, shared);
        // Further away, common prefixes only get shorter.
        while left.max(right) > 0 {
            let (place, n) = if left >= right { (below - 1, left) } else { (above, right) };
            if self.serves(place, n) {
                return Some((place, n));
            }
            if left >= right {
                below -= 1;
                left = left.min(self.tree.before(below));
            } else {
                above += 1;
                right = right.min(self.tree.before(above));
            }
        }
        None
    }

    /// Whether the first `n` tokens of the snapshot at `place` can be gone on from.
    fn serves(&self, place: usize, n: usize) -> bool {
        let s = self.tree.at(place);
        s.tables.iter().zip(&self.spec.groups).all(|(t, g)| t.reaches(g, n))
            && s.state.is_none_or(|slot| self.slots.lowest(slot) <= n)
    }

    /// The shortest prefix that the snapshot at `place` serves.
    fn lowest_of(&self, place: usize) -> usize {
        let s = self.tree.at(place);
        let windows = s.tables.iter().zip(&self.spec.groups).map(|(t, g)| t.lowest(g));
        windows.max().unwrap_or(0).max(s.state.map_or(0, |slot| self.slots.lowest(slot)))
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
        let from = self.tree.get(id).ok_or(Stale)?;
        let s = &mut self.seqs[seq.index as usize];
        assert!(s.tokens.is_empty(), "a snapshot was attached to a sequence of {} tokens", s.tokens.len());
        assert!(s.domain == from.domain, "a snapshot of another domain was attached");
        s.tokens.extend_from_slice(&from.tokens[..len]);
        let tables = s.tables.iter_mut().zip(&from.tables).zip(&self.spec.groups).zip(&mut self.pools);
        for (((to, from), group), pool) in tables {
            assert!(from.reaches(group, len), "a snapshot was attached where its window has moved on");
            let first = group.first_needed(len, self.spec.max_rollback);
            to.copy_from(from, len, first, |page, rows| pool.share(page, rows));
        }
        s.state = from.state.filter(|_| len > 0);
        if let Some(slot) = s.state {
            assert!(self.slots.lowest(slot) <= len, "a snapshot was attached below what its state reaches");
            self.slots.share(slot);
        }
        self.tree.touch(id.index);
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
}

#[cfg(test)]
mod tests {
    use crate::spec::{GroupSpec, MemorySpec, SlotSpec};
    use crate::tree::common;
    use crate::{Append, Memory};

    fn check(windows: &[Option<u32>], slots: Option<SlotSpec>, seed: u64) {
        let group = |w: &Option<u32>| GroupSpec { window: *w, n_pages: 4000, page_bytes: 1 };
        let groups: Vec<GroupSpec> = windows.iter().map(group).collect();
        let spec = MemorySpec {
            groups,
            slots: None,
            max_seqs: 8,
            max_ctx: 800,
            max_rollback: 3,
            cache_bytes: 1 << 40,
        };
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
                let low = s.state.map_or(0, |slot| memory.slots.lowest(slot));
                if whole && low <= n { n } else { 0 }
            });
            let expected = expected.max().unwrap_or(0);
            let found = memory.find(domain, &ids).map_or(0, |f| f.1);
            assert_eq!(found, expected, "windows {windows:?}, {} tokens", ids.len());
            let known = memory.tree.iter().filter(|s| s.domain == domain).map(|s| common(&s.tokens, &ids));
            assert_eq!(memory.known(domain, &ids), known.max().unwrap_or(0));
            let inner = |a: &crate::tree::Snapshot| {
                let goes_on =
                    |b: &crate::tree::Snapshot| b.tokens.len() > a.len() && b.tokens.starts_with(&a.tokens);
                memory.tree.iter().any(|b| b.domain == a.domain && goes_on(b))
            };
            let all = !memory.spec.serves_all_prefixes();
            let alone = memory.tree.iter().filter(|s| all || !inner(s)).count();
            assert_eq!(memory.irreplaceable().count(), alone);
            served += usize::from(found > 0);
            let seq = memory.open(domain).expect("a sequence is free");
            for step in ids.chunks(100) {
                let drafted = slots.map_or(0, |s| s.longest_draft.min(step.len() - 1));
                let append = Append { seq, rows: step.len(), certain: step.len() - drafted };
                memory.plan(&[append]).expect("pages suffice");
                memory.commit(seq, step);
            }
            memory.snapshot(seq);
            memory.close(seq);
        }
        assert!(served > 60 && memory.tree.len() == 64, "{served} served, {} snapshots", memory.tree.len());
    }

    #[test]
    fn find_is_a_search_through_all_snapshots() {
        check(&[None], None, 1);
        check(&[None, Some(100)], None, 2);
        check(&[Some(65), Some(200)], None, 3);
        for log in [true, false] {
            let slots = SlotSpec { n_slots: 200, slot_bytes: 1, longest_draft: 90, log };
            check(&[None], Some(slots), 4);
            check(&[], Some(SlotSpec { longest_draft: 30, ..slots }), 5);
        }
    }
}
