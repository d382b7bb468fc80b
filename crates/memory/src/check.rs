//! The books against a recount.

use crate::memory::Memory;
use crate::pool::{NOBODY, Pool};
use crate::table::{FREED, Table, rows};

/// What holds a page of one group.
#[derive(Clone, Copy)]
enum Holder {
    Sequence { slot: u32, rows: usize },
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
            for (slot, s) in self.slots.iter().enumerate() {
                let (slot, len) = (slot as u32, s.tokens.len());
                let held = |rows| Holder::Sequence { slot, rows };
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
        assert!(self.cached_bytes() <= self.spec.cache_bytes, "the tree holds more than its budget");
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
                Holder::Sequence { slot, .. } if slot == page.writer => writer_holds = true,
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
