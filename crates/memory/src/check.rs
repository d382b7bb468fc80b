//! The books against a recount.

use crate::memory::Memory;
use crate::pool::{NOBODY, Pool};
use crate::table::{FREED, Table, rows};
use crate::tree::common;

/// What holds a page of one group.
#[derive(Clone, Copy)]
enum Holder {
    Sequence { index: u32, rows: usize },
    Snapshot { rows: usize },
}

impl Memory {
    /// Recounts every reference, for tests; allocates.
    ///
    /// # Panics
    /// Where a count, a free list, a writer or a mark is not what it must be.
    pub fn check(&self) {
        for (group, pool) in self.pools.iter().enumerate() {
            let mut holders: Vec<Vec<Holder>> = vec![Vec::new(); pool.pages.len()];
            for (index, s) in self.seqs.iter().enumerate() {
                let (index, len) = (index as u32, s.tokens.len());
                let held = |rows| Holder::Sequence { index, rows };
                each(&s.tables[group], |i, page| holders[page as usize].push(held(rows(len, i))));
                if let Some(page) = s.replaced[group] {
                    assert!(s.pending.is_some(), "a page is replaced outside a plan");
                    holders[page as usize].push(held(rows(len, len / crate::PAGE)));
                }
                assert!(
                    s.open || (s.tokens.is_empty() && s.tables[group].pages.is_empty()),
                    "closed and not empty"
                );
            }
            for s in self.tree.iter() {
                let len = s.len();
                each(&s.tables[group], |i, page| {
                    holders[page as usize].push(Holder::Snapshot { rows: rows(len, i) });
                });
            }
            check_pool(group, pool, &holders);
        }
        self.check_slot_counts();
        self.check_order();
        assert!(self.cached_bytes() <= self.spec.cache_bytes, "the tree holds more than its budget");
    }

    fn check_slot_counts(&self) {
        let mut held = vec![(0, 0); self.slots.slots.len()];
        for s in &self.seqs {
            let has_state = self.spec.slots.is_some() && !s.tokens.is_empty();
            assert!(s.state.is_some() == has_state, "a sequence of {} tokens: {:?}", s.tokens.len(), s.state);
            let fresh = s.pending.and_then(|p| p.write).filter(|write| s.state != Some(*write));
            fresh.into_iter().for_each(|slot| held[slot as usize].0 += 1);
            if let Some(slot) = s.state {
                held[slot as usize].0 += 1;
                self.check_reach(slot, s.tokens.len());
            }
        }
        for s in self.tree.iter() {
            assert!(s.state.is_some() == self.spec.slots.is_some(), "a snapshot has the slot {:?}", s.state);
            if let Some(slot) = s.state {
                held[slot as usize].1 += 1;
                self.check_reach(slot, s.len());
            }
        }
        for (i, (slot, (seqs, tree))) in self.slots.slots.iter().zip(&held).enumerate() {
            assert!((slot.refs, slot.tree) == (seqs + tree, *tree), "slot {i}: {slot:?}, {seqs} and {tree}");
        }
        let free = &self.slots.free;
        assert!(free.iter().all(|slot| held[*slot as usize] == (0, 0)), "a slot is wrongly free");
        let unheld = held.iter().filter(|h| **h == (0, 0)).count();
        assert!(free.len() == unheld, "{} slots are free, {unheld} are held by nobody", free.len());
        let cached = held.iter().filter(|h| h.0 == 0 && h.1 > 0).count();
        assert!(cached == self.slots.cached, "{} cached slots, recounted {cached}", self.slots.cached);
    }

    fn check_reach(&self, slot: u32, len: usize) {
        let at = self.slots.at(slot);
        let reach = self.slots.lowest(slot)..=at.top;
        assert!(reach.contains(&len), "slot {slot} goes from {reach:?}, its holder has {len} tokens");
    }

    fn check_order(&self) {
        let all: Vec<_> = self.tree.iter().collect();
        for (i, s) in all.iter().enumerate() {
            let before = i.checked_sub(1).map(|i| all[i]).filter(|b| b.domain == s.domain);
            let shared = before.map_or(0, |b| common(&b.tokens, &s.tokens));
            assert!(s.before == shared, "snapshot {i} shares {shared} tokens, not {}", s.before);
            assert!(before.is_none_or(|b| b.tokens < s.tokens), "snapshot {i} is out of order");
        }
    }
}

fn each(table: &Table, mut f: impl FnMut(usize, i32)) {
    for (i, page) in table.pages.iter().enumerate() {
        assert!((*page == FREED) == (i < table.first), "page {i} of a table with first {}", table.first);
        if *page != FREED {
            f(i, *page);
        }
    }
}

fn check_pool(group: usize, pool: &Pool, holders: &[Vec<Holder>]) {
    let mut free = vec![false; pool.pages.len()];
    for page in &pool.free {
        assert!(
            !std::mem::replace(&mut free[*page as usize], true),
            "group {group}: page {page} is free twice"
        );
    }
    let mut cached = 0;
    for (i, (page, holders)) in pool.pages.iter().zip(holders).enumerate() {
        let tree = holders.iter().filter(|h| matches!(h, Holder::Snapshot { .. })).count();
        assert!(
            (page.refs as usize, page.tree as usize) == (holders.len(), tree),
            "group {group}, page {i}: {} references, {} of the tree; recounted {}, {tree}",
            page.refs,
            page.tree,
            holders.len(),
        );
        assert!(free[i] == holders.is_empty(), "group {group}, page {i}: wrongly free or lost");
        cached += usize::from(tree > 0 && tree == holders.len());
        let mut writer_holds = page.writer == NOBODY || holders.is_empty();
        for holder in holders {
            match *holder {
                Holder::Sequence { index, .. } if index == page.writer => writer_holds = true,
                Holder::Sequence { rows, .. } | Holder::Snapshot { rows } => {
                    let shared = page.refs > 1;
                    assert!(
                        !shared || rows <= page.mark,
                        "group {group}, page {i}: {rows} rows, mark {}",
                        page.mark
                    );
                }
            }
        }
        assert!(writer_holds, "group {group}, page {i}: its writer does not hold it");
    }
    assert!(cached == pool.cached, "group {group}: {} cached pages, recounted {cached}", pool.cached);
}
