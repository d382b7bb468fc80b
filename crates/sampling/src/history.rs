//! Counts over the last tokens of a sequence, kept up to date one token at a time.

use crate::Span;

/// How often each token occurs among the last `last_n`, with the way back for drafts that turn out wrong.
///
/// Nothing is allocated after [`History::new`].
#[derive(Debug, Clone)]
pub struct History {
    /// The newest ids, by index modulo the length.
    ring: Vec<u32>,
    /// (id, count), ids ascending.
    counts: Vec<[u32; 2]>,
    last_n: usize,
    max_last_n: usize,
    max_rollback: usize,
    /// Tokens pushed and not taken back.
    len: usize,
    /// The greatest length since the reset: what was overwritten in the ring is lost below it.
    high: usize,
}

impl History {
    /// Room for windows of up to `max_last_n` tokens from which up to `max_rollback` may be taken back.
    pub fn new(max_last_n: usize, max_rollback: usize) -> Self {
        Self {
            ring: vec![0; (max_last_n + max_rollback).max(1)],
            counts: Vec::with_capacity(max_last_n + 1),
            last_n: max_last_n,
            max_last_n,
            max_rollback,
            len: 0,
            high: 0,
        }
    }

    /// Starts again with no tokens and a window of `last_n`, cut to the room there is.
    pub fn reset(&mut self, last_n: usize) {
        self.counts.clear();
        self.last_n = last_n.min(self.max_last_n);
        (self.len, self.high) = (0, 0);
    }

    /// Tokens pushed and not taken back.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no token is held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends one token; the one that leaves the window is no longer counted.
    pub fn push(&mut self, id: u32) {
        let slot = self.slot(self.len);
        self.ring[slot] = id;
        self.len += 1;
        self.high = self.high.max(self.len);
        if self.last_n > 0 {
            if self.len > self.last_n {
                self.uncount(self.ring[self.slot(self.len - 1 - self.last_n)]);
            }
            self.count(id);
        }
    }

    /// Takes the last `n` tokens back; those that had left the window are counted again.
    ///
    /// Panics when `n` exceeds what is held, or goes more than `max_rollback` below the greatest length reached.
    pub fn rollback(&mut self, n: usize) {
        assert!(n <= self.len, "rollback of {n} tokens, {} are held", self.len);
        let below = self.high - (self.len - n);
        assert!(below <= self.max_rollback, "rollback to {below} below the end, limit {}", self.max_rollback);
        for _ in 0..n {
            self.len -= 1;
            if self.last_n > 0 {
                self.uncount(self.ring[self.slot(self.len)]);
                if self.len >= self.last_n {
                    self.count(self.ring[self.slot(self.len - self.last_n)]);
                }
            }
        }
    }

    /// Makes the present length the one from which `max_rollback` counts: what lies before is certain.
    pub fn settle(&mut self) {
        self.high = self.len;
    }

    /// (id, count) of the tokens in the window, ids ascending and unique.
    pub fn penalties(&self) -> &[[u32; 2]] {
        &self.counts
    }

    /// Appends [`penalties`](Self::penalties) to a flat list and says where they lie.
    pub fn write(&self, out: &mut Vec<[u32; 2]>) -> Span {
        let start = out.len() as u32;
        out.extend_from_slice(&self.counts);
        Span { start, len: self.counts.len() as u32 }
    }

    fn slot(&self, index: usize) -> usize {
        index % self.ring.len()
    }

    fn count(&mut self, id: u32) {
        match self.counts.binary_search_by_key(&id, |e| e[0]) {
            Ok(at) => self.counts[at][1] += 1,
            Err(at) => self.counts.insert(at, [id, 1]),
        }
    }

    fn uncount(&mut self, id: u32) {
        let at = self.counts.binary_search_by_key(&id, |e| e[0]).expect("a token in the window is counted");
        self.counts[at][1] -= 1;
        if self.counts[at][1] == 0 {
            self.counts.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Pushes and takes back at random and compares with a count from scratch.
    #[track_caller]
    fn check(last_n: usize, max_rollback: usize) {
        let mut history = History::new(last_n.max(8), max_rollback);
        history.reset(last_n);
        let (mut all, mut high) = (Vec::new(), 0);
        let mut random = 0x1234_5678_9abc_def1_u64 ^ last_n as u64;
        for _ in 0..5000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let room = max_rollback.saturating_sub(high - all.len()).min(all.len());
            if random % 3 == 0 && room > 0 {
                let n = (random >> 8) as usize % (room + 1);
                all.truncate(all.len() - n);
                history.rollback(n);
            } else {
                all.push((random >> 8) as u32 % 7);
                high = high.max(all.len());
                history.push(*all.last().unwrap());
            }
            if random % 11 == 0 {
                history.settle();
                high = all.len();
            }
            let mut expected = BTreeMap::new();
            for &id in &all[all.len().saturating_sub(last_n)..] {
                *expected.entry(id).or_insert(0) += 1;
            }
            let expected: Vec<[u32; 2]> = expected.into_iter().map(|(id, n)| [id, n]).collect();
            assert_eq!(history.penalties(), expected);
            assert_eq!(history.len(), all.len());
        }
    }

    #[test]
    fn counts_follow_pushes_and_rollbacks() {
        check(0, 4);
        check(1, 1);
        check(5, 8);
        check(64, 3);
    }

    #[test]
    fn writes_at_the_end_of_the_list() {
        let mut history = History::new(4, 0);
        [9, 2, 9].into_iter().for_each(|id| history.push(id));
        let mut list = vec![[0, 0]];
        assert_eq!(history.write(&mut list), Span { start: 1, len: 2 });
        assert_eq!(list[1..], [[2, 1], [9, 2]]);
    }
}
