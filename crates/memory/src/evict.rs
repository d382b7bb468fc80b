//! Which snapshots are dropped.

use crate::memory::Memory;
use crate::tree::Snapshot;

/// Snapshots are weighed by tokens that they save times what a token costs, per byte that they alone keep. To that comes
/// the worth of what was dropped before a snapshot was last used: so one that nobody asks for is outlived in the end by
/// what is worth less and new. (GreedyDual-Size: Cao and Irani 1997.)
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Worth {
    worth: u128,
    /// Of equals, the one used longest ago is less.
    last_use: u64,
}

/// Bits behind the point of a worth.
const FRACTION: u32 = 20;

impl Memory {
    /// What the snapshot at `place` gives that no other does.
    fn worth(&self, place: usize) -> Worth {
        let s = self.tree.at(place);
        let shared = [place, place + 1].map(|p| self.tree.before(p));
        let others = self.nearest([place, place + 1], shared).map_or(0, |(_, n)| n);
        let saved = (s.len() - others) as u128 * u128::from(s.token_cost);
        let own = (saved << FRACTION) / u128::from(self.own_bytes(s).max(1));
        Worth { worth: s.floor + own, last_use: s.last_use }
    }

    /// Bytes of pages and of a slot that no other snapshot holds.
    fn own_bytes(&self, s: &Snapshot) -> u64 {
        let pages = s.tables.iter().zip(&self.pools).zip(&self.spec.groups).map(|((table, pool), group)| {
            let own = table.held().iter().filter(|page| pool.pages[**page as usize].tree == 1).count();
            own as u64 * group.page_bytes
        });
        let slot = s.state.filter(|slot| self.slots.at(*slot).tree == 1);
        pages.sum::<u64>() + slot.map_or(0, |_| self.spec.slots.map_or(0, |s| s.slot_bytes))
    }

    /// The place of the snapshot of least worth per byte among those that `may` go.
    pub(crate) fn worst(&self, may: impl Fn(&Snapshot) -> bool) -> Option<usize> {
        let places = (0..self.tree.len()).filter(|place| may(self.tree.at(*place)));
        let weighed = places.map(|place| (place, self.worth(place)));
        weighed.min_by_key(|(_, worth)| *worth).map(|(place, _)| place)
    }

    pub(crate) fn cached_bytes(&self) -> u64 {
        let pages = self.pools.iter().zip(&self.spec.groups).map(|(p, g)| p.cached as u64 * g.page_bytes);
        pages.sum::<u64>() + self.slots.cached_bytes()
    }

    /// Drops snapshots until the pages and slots that only the tree holds fit the budget.
    pub(crate) fn keep_to_budget(&mut self) {
        while self.cached_bytes() > self.spec.cache_bytes {
            let (pools, slots) = (&self.pools, &self.slots);
            let holds = |s: &Snapshot| {
                s.tables.iter().zip(pools).any(|(t, p)| t.held().iter().any(|page| p.is_cached(*page)))
                    || s.state.is_some_and(|slot| slots.is_cached(slot))
            };
            let place = self.worst(holds).expect("a snapshot holds what is cached");
            self.drop_worst(place);
        }
    }

    /// Drops the snapshot of least worth among those that may give a page of a group; if none holds a page
    /// that only the tree holds, any. Says whether there was one.
    pub(crate) fn evict_for(&mut self, group: usize) -> bool {
        let pool = &self.pools[group];
        let gives = |s: &Snapshot| s.tables[group].held().iter().any(|page| pool.is_cached(*page));
        self.evict_one(self.worst(gives))
    }

    /// The same for a slot.
    pub(crate) fn evict_for_slot(&mut self) -> bool {
        let gives = |s: &Snapshot| s.state.is_some_and(|slot| self.slots.is_cached(slot));
        self.evict_one(self.worst(gives))
    }

    fn evict_one(&mut self, place: Option<usize>) -> bool {
        let place = place.or_else(|| self.worst(|_| true));
        if let Some(place) = place {
            self.drop_worst(place);
        }
        place.is_some()
    }

    /// Drops the snapshot of least worth for want of room; what is used from here on is worth that much more.
    pub(crate) fn drop_worst(&mut self, place: usize) {
        self.tree.raise_floor(self.worth(place).worth);
        self.evict(place);
    }

    pub(crate) fn evict(&mut self, place: usize) {
        let s = self.tree.remove(place);
        for (table, pool) in s.tables.iter_mut().zip(&mut self.pools) {
            for page in table.held() {
                pool.release_from_tree(*page);
            }
            table.pages.clear();
            table.first = 0;
        }
        if let Some(slot) = s.state.take() {
            self.slots.release_from_tree(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::spec::{GroupSpec, MemorySpec, SlotSpec};
    use crate::{Append, Memory};

    /// A state costs what many pages cost, so short prefixes are worth less than long ones; yet once nobody asks for the
    /// long ones any more, short ones that are asked for again are kept.
    #[test]
    fn what_nobody_asks_for_gives_way() {
        let slots = SlotSpec { n_slots: 40, slot_bytes: 10, longest_draft: 1, log: true };
        let mut memory = Memory::new(MemorySpec {
            groups: vec![GroupSpec { window: None, n_pages: 200, page_bytes: 1 }],
            slots: Some(slots),
            max_seqs: 4,
            max_ctx: 1024,
            max_rollback: 1,
            cache_bytes: 100,
        });
        let mut ask = |name: u32, n: u32| {
            let ids: Vec<u32> = (0..n).map(|i| name * 10_000 + i).collect();
            let found = memory.find(0, &ids[..ids.len() - 1]);
            let seq = memory.open(0).expect("a sequence");
            let done = found.map_or(0, |(id, len)| {
                memory.attach(seq, id, len).expect("it was just found");
                len
            });
            for rows in ids[done..].chunks(64) {
                memory.plan(&[Append { seq, rows: rows.len(), certain: rows.len() }]).expect("room");
                memory.commit(seq, rows);
            }
            memory.snapshot(seq);
            memory.close(seq);
            done
        };
        for name in 0..5 {
            ask(name, 640);
        }
        let mut hits = 0;
        for name in 10..40 {
            ask(name, 64);
            hits += usize::from(ask(name, 80) >= 64);
        }
        assert!(hits >= 20, "{hits} of 30 prefixes were kept until they were asked for again");
    }
}
