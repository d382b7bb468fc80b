//! A sequence's books, for state files: what they say beside the rows that devices keep.

use crate::error::{Full, ImportError};
use crate::memory::{Memory, Seq};
use crate::spec::PAGE;
use crate::table::{FREED, rows};

/// What must be known of a sequence to go on from the rows of its pages and the contents of its slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Books {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// By group: the first page that is held; those before it are out of a window's reach.
    pub first_pages: Vec<usize>,
    /// What its slot holds, where the model has slots and the sequence has tokens.
    pub state: Option<StateBooks>,
}

/// The indexes of a slot's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateBooks {
    /// Tokens that the bases have taken in; the log holds those from here to the sequence's length. 0
    /// where there are only rings.
    pub base: usize,
    /// One more than the highest index that was ever written to a ring.
    pub top: usize,
}

impl Memory {
    /// The books of a sequence. Allocates: this is not for a step.
    pub fn export(&self, seq: Seq) -> Books {
        let s = self.settled(seq);
        let state = s.state.map(|slot| {
            let at = self.slots.at(slot);
            StateBooks { base: self.slots.base(slot), top: at.top }
        });
        Books {
            tokens: s.tokens.clone(),
            first_pages: s.tables.iter().map(|table| table.first).collect(),
            state,
        }
    }

    /// The pages that a sequence holds in a group, in order: index in the page table, page number, and how
    /// many of its rows, from row 0, are the sequence's.
    pub fn held_pages(&self, seq: Seq, group: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        let s = self.live(seq);
        let pages = s.tables[group].pages.iter().enumerate().filter(|(_, page)| **page != FREED);
        pages.map(|(i, page)| (i, *page as usize, rows(s.tokens.len(), i)))
    }

    /// The slot that a sequence holds; `None` where it is empty or the model has none.
    pub fn slot(&self, seq: Seq) -> Option<usize> {
        self.live(seq).state.map(|slot| slot as usize)
    }

    /// Opens a sequence with these books. Its pages ([`held_pages`](Self::held_pages)) and its slot
    /// ([`slot`](Self::slot)) are then for the caller to fill before its next step; a caller that cannot
    /// closes it. Pages that a window does not need are not taken even where the books have them.
    ///
    /// # Errors
    /// The books contradict themselves or this memory, or there is no room; nothing has changed then.
    pub fn import(&mut self, domain: u64, books: &Books) -> Result<Seq, ImportError> {
        self.check_books(books)?;
        let n_pages = books.tokens.len().div_ceil(PAGE);
        for group in 0..self.pools.len() {
            let (needed, pool) = (n_pages - self.first_page(books, group), &self.pools[group]);
            let (available, n_pages) = (pool.free.len() + pool.cached, pool.pages.len());
            if needed > available {
                return Err(Full::Pages { group, needed, available, n_pages }.into());
            }
        }
        let (needed, available) =
            (usize::from(books.state.is_some()), self.slots.free.len() + self.slots.cached);
        if needed > available {
            return Err(Full::Slots { needed, available, n_slots: self.slots.slots.len() }.into());
        }
        let seq = self.open(domain)?;
        for group in 0..self.pools.len() {
            self.import_pages(seq, books, group, n_pages);
        }
        if let Some(state) = books.state {
            while self.slots.free.is_empty() {
                assert!(self.evict_for_slot(), "a slot was counted");
            }
            let slot = self.slots.take();
            self.slots.wrote(None, slot, state.base, state.top);
            self.seqs[seq.index as usize].state = Some(slot);
        }
        self.seqs[seq.index as usize].tokens.extend_from_slice(&books.tokens);
        Ok(seq)
    }

    fn import_pages(&mut self, seq: Seq, books: &Books, group: usize, n_pages: usize) {
        let first = self.first_page(books, group);
        while self.pools[group].free.len() < n_pages - first {
            assert!(self.evict_for(group), "the pages of group {group} were counted");
        }
        let (pool, table) = (&mut self.pools[group], &mut self.seqs[seq.index as usize].tables[group]);
        table.first = first;
        table.pages.resize(first, FREED);
        for _ in first..n_pages {
            table.pages.push(pool.take(seq.index));
        }
    }

    /// The first page that an imported sequence takes.
    fn first_page(&self, books: &Books, group: usize) -> usize {
        let needed = self.spec.groups[group].first_needed(books.tokens.len(), self.spec.max_rollback);
        books.first_pages[group].max(needed)
    }

    fn check_books(&self, books: &Books) -> Result<(), ImportError> {
        let (len, max_ctx) = (books.tokens.len(), self.spec.max_ctx);
        if len > max_ctx {
            return Err(Full::Context { len, max_ctx }.into());
        }
        let (found, expected) = (books.first_pages.len(), self.spec.groups.len());
        if found != expected {
            return Err(ImportError::Groups { found, expected });
        }
        for (group, (first, spec)) in books.first_pages.iter().zip(&self.spec.groups).enumerate() {
            let needed = spec.first_needed(len, 0);
            if *first > needed {
                return Err(ImportError::Page { group, first: *first, needed });
            }
        }
        self.check_state(books.state, len)
    }

    fn check_state(&self, state: Option<StateBooks>, len: usize) -> Result<(), ImportError> {
        let expected = self.spec.slots.filter(|_| len > 0);
        let (Some(spec), Some(StateBooks { base, top })) = (expected, state) else {
            let (expected, found) = (expected.is_some(), state.is_some());
            return if expected == found { Ok(()) } else { Err(ImportError::Slot { expected, found }) };
        };
        // The oldest row that is whole, of the log or of a ring.
        let low = if spec.log { base } else { top.saturating_sub(spec.longest_draft) };
        let whole =
            (low..=top).contains(&len) && if spec.log { top - base <= spec.longest_draft } else { base == 0 };
        let longest_draft = spec.longest_draft;
        if whole { Ok(()) } else { Err(ImportError::State { len, base, top, longest_draft }) }
    }
}
