//! A priority queue for entries that mostly come in ascending order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Ascending runs beside the heap. A text of one repeated pattern pushes two or three interleaved ones.
const N_RUNS: usize = 4;

#[derive(Debug, Default)]
struct Run {
    entries: Vec<u64>,
    head: usize,
}

impl Run {
    fn first(&self) -> Option<u64> {
        self.entries.get(self.head).copied()
    }

    fn last(&self) -> Option<u64> {
        self.first().and(self.entries.last().copied())
    }
}

/// Gives the smallest entry first. What continues an ascending run costs no comparison in a heap, so a million
/// entries of one pattern cost about as much as reading them.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    runs: [Run; N_RUNS],
    heap: BinaryHeap<Reverse<u64>>,
}

impl Queue {
    pub(crate) fn push(&mut self, entry: u64) {
        let fits =
            self.runs.iter().enumerate().filter(|(_, run)| run.last().is_none_or(|last| last <= entry));
        // The highest end leaves the lower ones free for entries to come; an empty run is the last choice.
        match fits.max_by_key(|(_, run)| run.last()) {
            Some((i, _)) => {
                let run = &mut self.runs[i];
                if run.first().is_none() {
                    run.entries.clear();
                    run.head = 0;
                }
                run.entries.push(entry);
            }
            None => self.heap.push(Reverse(entry)),
        }
    }

    pub(crate) fn pop(&mut self) -> Option<u64> {
        let heads = self.runs.iter().enumerate().filter_map(|(i, run)| Some((run.first()?, i)));
        let heap = self.heap.peek().map(|&Reverse(entry)| entry);
        match (heads.min(), heap) {
            (Some((entry, i)), heap) if heap.is_none_or(|other| entry <= other) => {
                self.runs[i].head += 1;
                Some(entry)
            }
            _ => self.heap.pop().map(|Reverse(entry)| entry),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pops_in_order() {
        let mut queue = Queue::default();
        let mut expected = BinaryHeap::new();
        let mut state = 1u64;
        for round in 0..20_000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            if state >> 62 == 0 {
                assert_eq!(queue.pop(), expected.pop().map(|Reverse(e)| e));
            } else {
                let entry = if state >> 61 & 1 == 0 { round } else { state >> 40 };
                queue.push(entry);
                expected.push(Reverse(entry));
            }
        }
        while let Some(Reverse(entry)) = expected.pop() {
            assert_eq!(queue.pop(), Some(entry));
        }
        assert_eq!(queue.pop(), None);
    }
}
