//! The pages of one group.

use crate::spec::PAGE;

/// No sequence.
pub const NOBODY: u32 = u32::MAX;

#[derive(Clone, Debug)]
pub struct Page {
    /// Holders: sequences, and snapshots of the tree.
    pub refs: u32,
    /// Snapshots among them.
    pub tree: u32,
    /// The sequence that may append above the mark; it is a holder.
    pub writer: u32,
    /// Rows below it may be read by others than the writer.
    pub mark: usize,
}

#[derive(Clone, Debug)]
pub struct Pool {
    pub pages: Vec<Page>,
    pub free: Vec<u32>,
    /// Pages that only the tree holds.
    pub cached: usize,
}

impl Pool {
    pub fn new(n_pages: u32) -> Self {
        let page = Page { refs: 0, tree: 0, writer: NOBODY, mark: 0 };
        Self { pages: vec![page; n_pages as usize], free: (0..n_pages).rev().collect(), cached: 0 }
    }

    /// A free page for `writer`; there must be one.
    pub fn take(&mut self, writer: u32) -> i32 {
        let p = self.free.pop().expect("the plan counted free pages");
        self.pages[p as usize] = Page { refs: 1, tree: 0, writer, mark: 0 };
        p as i32
    }

    /// One more sequence reads the first `rows` rows.
    pub fn share(&mut self, page: i32, rows: usize) {
        self.change(page, |p| {
            p.refs += 1;
            p.mark = p.mark.max(rows.min(PAGE));
        });
    }

    /// One more snapshot reads the first `rows` rows.
    pub fn share_with_tree(&mut self, page: i32, rows: usize) {
        self.change(page, |p| {
            (p.refs, p.tree) = (p.refs + 1, p.tree + 1);
            p.mark = p.mark.max(rows.min(PAGE));
        });
    }

    /// Sequence `seq` lets go of a page.
    pub fn release(&mut self, page: i32, seq: u32) {
        self.change(page, |p| {
            p.refs -= 1;
            if p.writer == seq {
                p.writer = NOBODY;
            }
        });
    }

    /// A snapshot lets go of a page.
    pub fn release_from_tree(&mut self, page: i32) {
        self.change(page, |p| (p.refs, p.tree) = (p.refs - 1, p.tree - 1));
    }

    fn change(&mut self, page: i32, f: impl FnOnce(&mut Page)) {
        let p = &mut self.pages[page as usize];
        assert!(p.refs > 0, "page {page} has no holder");
        let before = p.refs == p.tree;
        f(p);
        let after = p.refs == p.tree && p.refs > 0;
        if p.refs == 0 {
            self.free.push(page as u32);
        }
        self.cached = self.cached + usize::from(after) - usize::from(before);
    }

    /// Whether only the tree holds a page.
    pub fn is_cached(&self, page: i32) -> bool {
        let p = &self.pages[page as usize];
        p.refs == p.tree
    }

    /// Whether `seq`, a holder, may write `row` and those after it in place; it is the writer then.
    pub fn claim(&mut self, page: i32, seq: u32, row: usize) -> bool {
        let p = &mut self.pages[page as usize];
        if p.refs == 1 {
            (p.writer, p.mark) = (seq, 0);
        } else if p.writer == NOBODY && row >= p.mark {
            p.writer = seq;
        }
        p.writer == seq && row >= p.mark
    }

    /// Whether `seq` could write there if the tree let go of the page.
    pub fn claimable_without_tree(&self, page: i32) -> bool {
        let p = &self.pages[page as usize];
        p.refs - p.tree == 1
    }
}
