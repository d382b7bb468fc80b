//! A device that is only told what a real one is told, and a random caller.

// Each test binary uses a part.
#![allow(dead_code)]

use std::collections::HashMap;

use firth_memory::{Append, Full, GroupSpec, Memory, MemorySpec, PAGE, Seq};

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

/// Rows by group and page.
pub struct Device {
    rows: Vec<Vec<[u64; PAGE]>>,
}

impl Device {
    pub fn new(groups: &[GroupSpec]) -> Self {
        Self { rows: groups.iter().map(|g| vec![[0; PAGE]; g.n_pages as usize]).collect() }
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

pub fn group(window: Option<u32>, n_pages: u32) -> GroupSpec {
    GroupSpec { window, n_pages, page_bytes: 1000 + u64::from(n_pages) }
}

/// What the model knows of a sequence.
pub struct Known {
    pub seq: Seq,
    pub tokens: Vec<u32>,
    /// The longest it was since its rows were last replaced by attaching.
    pub longest: usize,
    pub attached: bool,
}

/// Tokens of one of a few texts, so that sequences share prefixes; now and then a text forks.
pub fn next_id(rng: &mut Rng, tokens: &[u32]) -> u32 {
    if rng.one_in(150) { rng.below(3) as u32 } else { (tokens.len() as u32 / 90) % 5 }
}

/// Commits `n` tokens to one sequence, in one plan.
pub fn append(memory: &mut Memory, device: &mut Device, known: &mut Known, ids: &[u32]) -> Result<(), Full> {
    memory.plan(&[Append::certain(known.seq, ids.len())])?;
    device.apply_copies(memory);
    write(memory, device, known, ids, ids.len());
    memory.commit(known.seq, ids);
    keep(known, ids);
    Ok(())
}

/// Writes the rows of `n` planned tokens: `ids`, then wrong guesses.
pub fn write(memory: &Memory, device: &mut Device, known: &Known, ids: &[u32], n: usize) {
    let mut hash = known.tokens.iter().fold(root(memory.domain(known.seq)), |h, id| extend(h, *id));
    for i in 0..n {
        hash = extend(hash, ids.get(i).copied().unwrap_or(77));
        device.write(memory, known.seq, known.tokens.len() + i, hash);
    }
}

pub fn keep(known: &mut Known, ids: &[u32]) {
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
    MemorySpec {
        groups,
        slots: None,
        max_seqs: 2 + rng.below(6),
        max_ctx: 700 + rng.below(600),
        max_rollback: rng.below(20),
        cache_bytes: [0, 5_000, 20_000, 1_000_000][rng.below(4)],
    }
}

/// What happened, so that a test can tell it saw enough.
pub type Seen = HashMap<&'static str, usize>;
