//! Which snapshots are dropped.

use std::cmp::Ordering;

use crate::memory::Memory;
use crate::tree::Snapshot;

/// Snapshots are weighed by tokens that they save times what a token costs, per byte that they alone keep.
struct Worth {
    saved: u128,
    bytes: u128,
    last_use: u64,
}

impl Worth {
    /// By worth per byte; of equals, the one used longest ago is less.
    fn compare(&self, other: &Worth) -> Ordering {
        (self.saved * other.bytes).cmp(&(other.saved * self.bytes)).then(self.last_use.cmp(&other.last_use))
    }
}

impl Memory {
    /// What the snapshot at `place` gives that no other does.
    fn worth(&self, place: usize) -> Worth {
        let s = self.tree.at(place);
        let shared = [place, place + 1].map(|p| self.tree.before(p));
        let others = self.nearest([place, place + 1], shared).map_or(0, |(_, n)| n);
        let saved = (s.len() - others) as u128 * u128::from(s.token_cost);
        Worth { saved, bytes: u128::from(self.own_bytes(s).max(1)), last_use: s.last_use }
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
        weighed.min_by(|a, b| a.1.compare(&b.1)).map(|(place, _)| place)
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
            self.evict(place);
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
            self.evict(place);
        }
        place.is_some()
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
