//! State slots: where a sequence keeps what is not in pages.
//!
//! A slot is never written while two hold it, so what a slot says of its indexes holds for all its holders.

use crate::spec::SlotSpec;

#[derive(Clone, Copy, Debug, Default)]
pub struct StateSlot {
    /// Holders: sequences, and snapshots of the tree.
    pub refs: u32,
    /// Snapshots among them.
    pub tree: u32,
    /// Tokens that the bases have taken in.
    pub base: usize,
    /// One more than the highest index whose row was ever written, in this slot or in those it goes back to.
    pub top: usize,
}

#[derive(Clone, Debug)]
pub struct SlotPool {
    pub spec: Option<SlotSpec>,
    pub slots: Vec<StateSlot>,
    pub free: Vec<u32>,
    /// Slots that only the tree holds.
    pub cached: usize,
}

impl SlotPool {
    pub fn new(spec: Option<SlotSpec>) -> Self {
        let n = spec.map_or(0, |s| s.n_slots);
        Self { spec, slots: vec![StateSlot::default(); n as usize], free: (0..n).rev().collect(), cached: 0 }
    }

    pub fn at(&self, slot: u32) -> &StateSlot {
        &self.slots[slot as usize]
    }

    /// A free slot for one sequence; there must be one.
    pub fn take(&mut self) -> u32 {
        let slot = self.free.pop().expect("the plan counted free slots");
        self.slots[slot as usize] = StateSlot { refs: 1, ..StateSlot::default() };
        slot
    }

    /// A step read one slot and wrote another or the same, which now belongs to the reader alone: its
    /// bases have taken in `base` tokens, and the step's rows reached to index `top`.
    pub fn wrote(&mut self, read: Option<u32>, write: u32, base: usize, top: usize) {
        // Rows of a ring that later ones had overwritten are not there again after a rollback.
        let before = read.map_or(0, |slot| self.at(slot).top);
        let s = &mut self.slots[write as usize];
        (s.base, s.top) = (base, top.max(before));
        if let Some(slot) = read.filter(|slot| *slot != write) {
            self.release(slot);
        }
    }

    /// One more sequence holds a slot.
    pub fn share(&mut self, slot: u32) {
        self.change(slot, |s| s.refs += 1);
    }

    /// One more snapshot holds a slot.
    pub fn share_with_tree(&mut self, slot: u32) {
        self.change(slot, |s| (s.refs, s.tree) = (s.refs + 1, s.tree + 1));
    }

    /// A sequence lets go of a slot.
    pub fn release(&mut self, slot: u32) {
        self.change(slot, |s| s.refs -= 1);
    }

    /// A snapshot lets go of a slot.
    pub fn release_from_tree(&mut self, slot: u32) {
        self.change(slot, |s| (s.refs, s.tree) = (s.refs - 1, s.tree - 1));
    }

    fn change(&mut self, slot: u32, f: impl FnOnce(&mut StateSlot)) {
        let s = &mut self.slots[slot as usize];
        assert!(s.refs > 0, "slot {slot} has no holder");
        let before = s.refs == s.tree;
        f(s);
        let after = s.refs == s.tree && s.refs > 0;
        if s.refs == 0 {
            self.free.push(slot);
        }
        self.cached = self.cached + usize::from(after) - usize::from(before);
    }

    /// Whether its only holder may write a slot.
    pub fn is_sole(&self, slot: u32) -> bool {
        self.at(slot).refs == 1
    }

    /// Whether a sequence would be the only holder if the tree let go.
    pub fn sole_without_tree(&self, slot: u32) -> bool {
        let s = self.at(slot);
        s.refs - s.tree == 1
    }

    /// Whether only the tree holds a slot.
    pub fn is_cached(&self, slot: u32) -> bool {
        let s = self.at(slot);
        s.refs == s.tree
    }

    /// Tokens that the bases have taken in; 0 where there are none.
    pub fn base(&self, slot: u32) -> usize {
        if self.spec.is_some_and(|s| s.log) { self.at(slot).base } else { 0 }
    }

    /// The shortest length that a slot can go on from.
    pub fn lowest(&self, slot: u32) -> usize {
        let spec = self.spec.expect("a slot has a specification");
        let s = self.at(slot);
        spec.lowest(s.base, s.top)
    }

    /// The rows of the log that belong to the first `len` tokens.
    pub fn n_log(&self, slot: u32, len: usize) -> usize {
        if self.spec.is_some_and(|s| s.log) { len - self.at(slot).base } else { 0 }
    }

    /// Bytes of slots that only the tree holds.
    pub fn cached_bytes(&self) -> u64 {
        self.spec.map_or(0, |s| self.cached as u64 * s.slot_bytes)
    }
}
