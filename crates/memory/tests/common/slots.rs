//! The slots of a device that only knows what it is told.

use firth_memory::{Append, Memory, Seq, SlotSpec};

use super::{Rng, extend, root};

/// Taps of a convolution: a row sees this many before it.
const REACH: usize = 3;

/// A recurrence and a ring. Their values are digests of the tokens taken in, so that what is stale or torn
/// differs from what a recomputation gives.
#[derive(Clone, Default)]
pub struct DeviceSlot {
    /// Digest of the tokens before the log.
    base: u64,
    /// Inputs of the recurrence.
    log: Vec<u32>,
    /// Digests of prefixes, by index mod length.
    ring: Vec<u64>,
}

pub struct Slots {
    pub spec: SlotSpec,
    pub slots: Vec<DeviceSlot>,
}

impl Slots {
    pub fn new(spec: SlotSpec) -> Self {
        let slot = DeviceSlot {
            base: 0,
            log: vec![0; spec.longest_draft],
            ring: vec![0; REACH + spec.longest_draft],
        };
        Self { spec, slots: vec![slot; spec.n_slots as usize] }
    }

    /// One sequence's part of a step: `ids` follow `tokens`. What is read is checked on the way. Sequences
    /// run one after the other, so a slot that one writes while another reads it shows.
    pub fn step(&mut self, memory: &Memory, a: &Append, tokens: &[u32], ids: &[u32]) {
        let used = memory.slots(a.seq);
        let domain = memory.domain(a.seq);
        if used.read >= 0 {
            self.check(used.read as usize, used.n_log, domain, tokens);
        } else {
            assert!(tokens.is_empty() && used.n_log == 0, "{used:?} of {} tokens", tokens.len());
        }
        if ids.is_empty() {
            return;
        }
        let read = (used.read >= 0).then(|| self.slots[used.read as usize].clone());
        let to = &mut self.slots[used.write as usize];
        if let Some(read) = &read {
            to.ring.clone_from(&read.ring);
        }
        let mut hash = read.map_or(root(domain), |read| fold(read.base, &read.log[..used.n_log]));
        if !self.spec.log {
            hash = fold(root(domain), tokens);
        }
        for (i, id) in ids.iter().enumerate() {
            if i >= a.certain && self.spec.log {
                to.log[i - a.certain] = *id;
            }
            hash = extend(hash, *id);
            if i + 1 == a.certain {
                to.base = hash;
            }
            let rows = to.ring.len();
            to.ring[(tokens.len() + i) % rows] = hash;
        }
    }

    /// A step over `tokens` would read what belongs to them.
    pub fn check(&self, slot: usize, n_log: usize, domain: u64, tokens: &[u32]) {
        let (s, len) = (&self.slots[slot], tokens.len());
        if self.spec.log {
            let (found, expected) = (fold(s.base, &s.log[..n_log]), fold(root(domain), tokens));
            assert_eq!(found, expected, "slot {slot}: the state of {len} tokens, {n_log} of them logged");
        }
        for i in len.saturating_sub(REACH)..len {
            let expected = fold(root(domain), &tokens[..=i]);
            assert_eq!(s.ring[i % s.ring.len()], expected, "slot {slot}: row {i} of {len}");
        }
    }

    /// What a step leaves that stopped halfway.
    pub fn tear(&mut self, memory: &Memory, seq: Seq, rng: &mut Rng) {
        let Ok(write) = usize::try_from(memory.slots(seq).write) else { return };
        let s = &mut self.slots[write];
        s.base = rng.0;
        s.log.iter_mut().for_each(|id| *id ^= 99);
        s.ring.iter_mut().for_each(|row| *row = !*row);
    }
}

fn fold(hash: u64, ids: &[u32]) -> u64 {
    ids.iter().fold(hash, |h, id| extend(h, *id))
}
