//! The recent tokens, counted.

/// Counts over the last n tokens of a sequence, kept up to date as tokens come and are taken back.
///
/// Allocates when made and never again.
#[derive(Clone, Debug)]
pub struct History {
    /// Length of the window.
    last_n: usize,
    /// Ids by token index modulo its length: the window and what a rollback brings back into it.
    ring: Vec<u32>,
    /// Tokens in the sequence, and how many of the last of them the ring still knows.
    len: usize,
    known: usize,
    /// (id, count) of the window, each id once, in no order.
    counts: Vec<[u32; 2]>,
    /// Open addressing with linear probes: 1 + a place in `counts`, or 0.
    slots: Vec<u32>,
}

impl History {
    /// An empty history over `last_n` tokens, of which up to `max_rollback` can be taken back at a time.
    ///
    /// After a rollback that many tokens must come again before as many can be taken back.
    pub fn new(last_n: usize, max_rollback: usize) -> Self {
        Self {
            last_n,
            ring: vec![0; (last_n + max_rollback).max(1)],
            len: 0,
            known: 0,
            counts: Vec::with_capacity(last_n),
            slots: vec![0; (2 * last_n).next_power_of_two().max(2)],
        }
    }

    /// Forgets everything, keeps the memory, and looks at the last `last_n` tokens from now on.
    ///
    /// # Panics
    /// Where `last_n` is more than the history was made for.
    pub fn reset(&mut self, last_n: usize) {
        let most = self.counts.capacity();
        assert!(last_n <= most, "a window of {last_n} in a history made for {most}");
        (self.last_n, self.len, self.known) = (last_n, 0, 0);
        self.counts.clear();
        self.slots.fill(0);
    }

    /// Tokens in the sequence, also those that are no longer recent.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was pushed.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a token.
    pub fn push(&mut self, id: u32) {
        if self.last_n > 0 {
            if self.len >= self.last_n {
                self.remove(self.at(self.len - self.last_n));
            }
            self.add(id);
        }
        let place = self.len % self.ring.len();
        self.ring[place] = id;
        self.len += 1;
        self.known = (self.known + 1).min(self.ring.len());
    }

    /// Takes back the last token.
    ///
    /// # Panics
    /// Where there is none, or the ring no longer knows what comes back into the window.
    pub fn pop(&mut self) {
        assert!(self.len > 0, "no token to take back");
        let (len, known) = (self.len - 1, self.known.saturating_sub(1));
        assert!(known >= len.min(self.last_n), "rolled back further than the history reaches");
        if self.last_n > 0 {
            self.remove(self.at(len));
            if len >= self.last_n {
                self.add(self.at(len - self.last_n));
            }
        }
        (self.len, self.known) = (len, known);
    }

    /// Takes back the last `n` tokens; panics as [`pop`](Self::pop) does.
    pub fn rollback(&mut self, n: usize) {
        for _ in 0..n {
            self.pop();
        }
    }

    /// The pairs (id, count) of the recent tokens, each id once, in no order.
    pub fn counts(&self) -> &[[u32; 2]] {
        &self.counts
    }

    /// Appends [`counts`](Self::counts), as [`Lists::penalties`](crate::Lists) wants them.
    pub fn write_into(&self, out: &mut Vec<[u32; 2]>) {
        out.extend_from_slice(&self.counts);
    }

    fn at(&self, index: usize) -> u32 {
        self.ring[index % self.ring.len()]
    }

    fn home(&self, id: u32) -> usize {
        (id.wrapping_mul(0x9E37_79B1) >> 7) as usize & (self.slots.len() - 1)
    }

    /// The slot of `id`, or the free slot where it would go. Half of the slots are free, so one is found.
    fn slot(&self, id: u32) -> usize {
        let mut s = self.home(id);
        while self.slots[s] != 0 && self.counts[self.slots[s] as usize - 1][0] != id {
            s = (s + 1) & (self.slots.len() - 1);
        }
        s
    }

    fn add(&mut self, id: u32) {
        let s = self.slot(id);
        if self.slots[s] == 0 {
            self.counts.push([id, 0]);
            self.slots[s] = self.counts.len() as u32;
        }
        self.counts[self.slots[s] as usize - 1][1] += 1;
    }

    fn remove(&mut self, id: u32) {
        let s = self.slot(id);
        let place = self.slots[s] as usize - 1;
        self.counts[place][1] -= 1;
        if self.counts[place][1] > 0 {
            return;
        }
        self.close_gap(s);
        let last = self.counts.len() - 1;
        if place != last {
            let s = self.slot(self.counts[last][0]);
            self.slots[s] = place as u32 + 1;
        }
        self.counts.swap_remove(place);
    }

    /// Frees slot `gap` and moves later entries of its run forward, so that probes still find them.
    fn close_gap(&mut self, mut gap: usize) {
        let wrap = self.slots.len() - 1;
        self.slots[gap] = 0;
        let mut s = (gap + 1) & wrap;
        while self.slots[s] != 0 {
            let home = self.home(self.counts[self.slots[s] as usize - 1][0]);
            if (s.wrapping_sub(home) & wrap) >= (s.wrapping_sub(gap) & wrap) {
                self.slots[gap] = self.slots[s];
                self.slots[s] = 0;
                gap = s;
            }
            s = (s + 1) & wrap;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random pushes and rollbacks against a recount of the whole sequence.
    fn check(last_n: usize, max_rollback: usize, vocab: u64) {
        let mut history = History::new(last_n + 3, max_rollback);
        history.push(7);
        history.reset(last_n);
        let (mut all, mut back, mut state) = (Vec::new(), 0, 88172645463325252u64);
        for step in 0..4000 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            if back > 0 && state.is_multiple_of(5) {
                let n = (state >> 8) as usize % (back + 1);
                history.rollback(n);
                all.truncate(all.len() - n);
                back -= n;
            } else {
                // Ids far apart share homes in the table more often than neighbours do.
                let id = ((state >> 16) % vocab) as u32 * 128;
                history.push(id);
                all.push(id);
                back = (back + 1).min(max_rollback);
            }
            let mut want: Vec<[u32; 2]> = Vec::new();
            for id in &all[all.len().saturating_sub(last_n)..] {
                match want.iter_mut().find(|p| p[0] == *id) {
                    Some(p) => p[1] += 1,
                    None => want.push([*id, 1]),
                }
            }
            let mut got = Vec::new();
            history.write_into(&mut got);
            got.sort_unstable();
            want.sort_unstable();
            assert_eq!((got, history.len()), (want, all.len()), "n {last_n}, step {step}");
        }
    }

    #[test]
    fn counts_are_those_of_a_recount() {
        check(0, 4, 9);
        check(1, 0, 3);
        check(1, 5, 3);
        check(7, 3, 50);
        check(64, 16, 40);
        check(64, 9, 1000);
    }

    #[test]
    #[should_panic(expected = "further than the history reaches")]
    fn a_rollback_out_of_reach_panics() {
        let mut history = History::new(4, 2);
        (0..20).for_each(|id| history.push(id));
        history.rollback(3);
    }
}
