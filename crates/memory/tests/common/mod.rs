//! A device that is only told what a real one is told, and a random caller.

// Each test binary uses a part.
#![allow(dead_code)]

pub mod slots;

use std::collections::HashMap;

use firth_memory::{Append, Books, Full, GroupSpec, Memory, MemorySpec, PAGE, Seq, SlotSpec};

pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let x = (self.0 ^ (self.0 >> 29)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((x >> 20) % n.max(1) as u64) as usize
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// A digest of a prefix: what the row of its last token holds.
pub fn extend(hash: u64, id: u32) -> u64 {
    (hash ^ u64::from(id) ^ 0x5555).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(23)
}

/// The digest of no tokens. Keys of two domains differ, so that a page that crossed over would show.
pub fn root(domain: u64) -> u64 {
    domain.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1
}

/// Rows by group and page, and slots.
pub struct Device {
    rows: Vec<Vec<[u64; PAGE]>>,
    pub slots: Option<slots::Slots>,
}

/// A sequence as a state file keeps it.
#[derive(Clone)]
pub struct Saved {
    pub domain: u64,
    pub books: Books,
    /// By group: index in the page table, and rows.
    pages: Vec<Vec<(usize, [u64; PAGE])>>,
    slot: Option<slots::DeviceSlot>,
}

impl Device {
    pub fn new(spec: &MemorySpec) -> Self {
        let rows = spec.groups.iter().map(|g| vec![[0; PAGE]; g.n_pages as usize]);
        Self { rows: rows.collect(), slots: spec.slots.map(slots::Slots::new) }
    }

    pub fn apply_copies(&mut self, memory: &Memory) {
        for c in memory.copies() {
            let from = self.rows[c.group][c.from as usize];
            self.rows[c.group][c.to as usize][..c.rows].copy_from_slice(&from[..c.rows]);
        }
    }

    /// Writes the row of index `i` in every group.
    pub fn write(&mut self, memory: &Memory, seq: Seq, i: usize, value: u64) {
        for (group, rows) in self.rows.iter_mut().enumerate() {
            let page = memory.page_table(seq, group)[i / PAGE];
            assert!(page >= 0, "index {i} of group {group} is planned and has no page");
            rows[page as usize][i % PAGE] = value;
        }
    }

    /// Every index that the next query sees holds the digest of its own prefix.
    pub fn check(&self, memory: &Memory, seq: Seq, tokens: &[u32]) {
        assert_eq!(memory.tokens(seq), tokens);
        if let (Some(slots), Some(slot)) = (&self.slots, memory.slot(seq)) {
            let state = memory.export(seq).state.expect("it has a slot");
            let n_log = if slots.spec.log { tokens.len() - state.base } else { 0 };
            slots.check(slot, n_log, memory.domain(seq), tokens);
        }
        let mut hash = root(memory.domain(seq));
        for (i, id) in tokens.iter().enumerate() {
            hash = extend(hash, *id);
            for (group, spec) in memory.spec().groups.iter().enumerate() {
                if spec.window.is_none_or(|w| tokens.len() - i < w as usize) {
                    let page = memory.page_table(seq, group)[i / PAGE];
                    assert!(page >= 0, "index {i} of {} is visible in group {group} and freed", tokens.len());
                    let row = self.rows[group][page as usize][i % PAGE];
                    assert_eq!(row, hash, "index {i} of {}, group {group}, page {page}", tokens.len());
                }
            }
        }
    }
}

impl Device {
    pub fn save(&self, memory: &Memory, seq: Seq) -> Saved {
        let group = |g: usize| {
            let rows = |(i, page, n): (usize, usize, usize)| {
                let mut kept = [0; PAGE];
                kept[..n].copy_from_slice(&self.rows[g][page][..n]);
                (i, kept)
            };
            memory.held_pages(seq, g).map(rows).collect()
        };
        Saved {
            domain: memory.domain(seq),
            books: memory.export(seq),
            pages: (0..self.rows.len()).map(group).collect(),
            slot: memory.slot(seq).map(|slot| self.slots.as_ref().expect("it has slots").slots[slot].clone()),
        }
    }

    /// Fills what an import reserved.
    pub fn load(&mut self, memory: &Memory, seq: Seq, saved: &Saved) {
        for (g, pages) in saved.pages.iter().enumerate() {
            for (i, page, n) in memory.held_pages(seq, g) {
                let rows = &pages.iter().find(|(at, _)| *at == i).expect("the page was saved").1;
                self.rows[g][page][..n].copy_from_slice(&rows[..n]);
            }
        }
        if let Some(slot) = memory.slot(seq) {
            let slots = &mut self.slots.as_mut().expect("it has slots").slots;
            slots[slot] = saved.slot.clone().expect("the slot was saved");
        }
    }
}

pub fn group(window: Option<u32>, n_pages: u32) -> GroupSpec {
    GroupSpec { window, n_pages, page_bytes: 1000 + u64::from(n_pages) }
}

/// What the model knows of a sequence.
#[derive(Clone)]
pub struct Known {
    pub seq: Seq,
    pub tokens: Vec<u32>,
    /// The longest it was since its rows were last replaced by attaching.
    pub longest: usize,
    pub attached: bool,
    /// What the last step's certain rows left in the bases.
    pub base: usize,
    /// The highest row that was ever written to the ring, and one.
    pub top: usize,
}

impl Known {
    pub fn new(seq: Seq) -> Self {
        Self { seq, tokens: Vec::new(), longest: 0, attached: false, base: 0, top: 0 }
    }

    /// What a sequence is that was given `tokens` by a snapshot or a file.
    pub fn given(memory: &Memory, seq: Seq, tokens: Vec<u32>) -> Self {
        let state = memory.export(seq).state;
        let (base, top) = state.map_or((0, 0), |s| (s.base, s.top));
        Self { seq, longest: tokens.len(), attached: !tokens.is_empty(), tokens, base, top }
    }

    /// The least length that its slot goes on from.
    pub fn lowest_state(&self, spec: &MemorySpec) -> usize {
        match spec.slots {
            None => 0,
            Some(s) if s.log => self.base,
            Some(s) => self.top.saturating_sub(s.longest_draft),
        }
    }
}

/// Tokens of one of a few texts, so that sequences share prefixes; now and then a text forks.
pub fn next_id(rng: &mut Rng, tokens: &[u32]) -> u32 {
    if rng.one_in(150) { rng.below(3) as u32 } else { (tokens.len() as u32 / 90) % 5 }
}

/// Commits `n` tokens to one sequence, in one plan.
pub fn append(memory: &mut Memory, device: &mut Device, known: &mut Known, ids: &[u32]) -> Result<(), Full> {
    let a = Append::certain(known.seq, ids.len());
    memory.plan(&[a])?;
    device.apply_copies(memory);
    write(memory, device, known, ids, &a);
    memory.commit(known.seq, ids);
    keep(known, ids, &a);
    Ok(())
}

/// A device's step: the rows of `ids`, then wrong guesses.
pub fn write(memory: &Memory, device: &mut Device, known: &Known, ids: &[u32], a: &Append) {
    let mut hash = known.tokens.iter().fold(root(memory.domain(known.seq)), |h, id| extend(h, *id));
    let mut all = ids.to_vec();
    all.resize(a.rows, 77);
    for (i, id) in all.iter().enumerate() {
        hash = extend(hash, *id);
        device.write(memory, known.seq, known.tokens.len() + i, hash);
    }
    if let Some(slots) = &mut device.slots {
        slots.step(memory, a, &known.tokens, &all);
    }
}

pub fn keep(known: &mut Known, ids: &[u32], a: &Append) {
    if a.rows > 0 {
        known.base = known.tokens.len() + a.certain;
        known.top = known.top.max(known.tokens.len() + a.rows);
    }
    known.tokens.extend_from_slice(ids);
    known.longest = known.longest.max(known.tokens.len());
}

pub fn small(rng: &mut Rng) -> MemorySpec {
    let mut groups = vec![group(None, 20 + rng.below(40) as u32)];
    for _ in 0..rng.below(3) {
        let window = 64 + rng.below(137) as u32;
        groups.push(group(Some(window), 12 + rng.below(30) as u32));
    }
    if rng.one_in(4) {
        groups.remove(0);
        groups.push(group(Some(100), 15));
    }
    let max_seqs = 2 + rng.below(6);
    let slots = SlotSpec {
        n_slots: (1 + rng.below(3 * max_seqs)) as u32,
        slot_bytes: 3000,
        longest_draft: [0, 1, 4, 8][rng.below(4)],
        log: rng.one_in(2),
    };
    MemorySpec {
        groups,
        slots: (!rng.one_in(3)).then_some(slots),
        max_seqs,
        max_ctx: 700 + rng.below(600),
        max_rollback: rng.below(20),
        cache_bytes: [0, 5_000, 20_000, 1_000_000][rng.below(4)],
    }
}

/// What happened, so that a test can tell it saw enough.
pub type Seen = HashMap<&'static str, usize>;
