//! Where a prefill is cut so that snapshots can be taken.
//!
//! A model of full attention needs none of this: its snapshots serve every shorter prefix. Windows, rings
//! and recurrences serve only lengths near their own, so a later prompt that departs early is served by a
//! snapshot that was taken early.

use std::iter;

use crate::spec::MemorySpec;

/// Points that are not marks are multiples of it: a few steps of prefill, which hide the cost of a cut.
const STRIDE: usize = 256;

impl MemorySpec {
    /// Whether a snapshot serves all prefixes of its tokens, so that one at the end is enough.
    pub fn serves_all_prefixes(&self) -> bool {
        self.slots.is_none() && self.groups.iter().all(|g| g.window.is_none())
    }
}

/// The lengths above `start`, ascending, at which a prefill of `prompt_len` tokens is to be cut and a
/// snapshot taken. `marks`, ascending, are where the template ended a message or began the answer.
///
/// They are the first mark, which conversations of one system prompt share; the last two; `prompt_len - 1`,
/// for the same prompt again; and in between multiples of 256, ever fewer away from the end: whatever
/// length `n` another prompt departs at, there is a point at most `2 * max(256, prompt_len - n)` below it. So
/// a departure costs at most about three times the rows that it must cost. These multiples are among those
/// that a shorter prompt had, so the turns of a conversation go on with the same ones.
///
/// A log of at least one row saves the last cut: where the last step of the prefill says that its last row
/// is not certain, the snapshot at `prompt_len` serves `prompt_len - 1` too.
pub fn snapshot_points(start: usize, prompt_len: usize, marks: &[usize]) -> impl Iterator<Item = usize> {
    iter::successors(next_point(start, prompt_len, marks), move |after| next_point(*after, prompt_len, marks))
}

fn next_point(after: usize, prompt_len: usize, marks: &[usize]) -> Option<usize> {
    let last = &marks[marks.len().saturating_sub(2)..];
    let marks = marks.first().into_iter().chain(last).copied().filter(|mark| *mark < prompt_len);
    let stride = (after / STRIDE + 1..prompt_len.div_ceil(STRIDE))
        .map(|i| i * STRIDE)
        .find(|n| is_stride_point(*n, prompt_len));
    marks.chain(stride).chain(prompt_len.checked_sub(1)).filter(|n| *n > after).min()
}

/// Whether a multiple of the stride is one of so many times the stride as fit, by powers of two, between it
/// and the end.
fn is_stride_point(n: usize, prompt_len: usize) -> bool {
    let strides = (prompt_len - n) / STRIDE;
    strides > 0 && (n / STRIDE).is_multiple_of(1 << strides.ilog2())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(start: usize, prompt_len: usize, marks: &[usize]) -> Vec<usize> {
        snapshot_points(start, prompt_len, marks).collect()
    }

    #[test]
    fn marks_first_and_last_and_the_end() {
        assert_eq!(points(0, 0, &[]), []);
        assert_eq!(points(0, 1, &[]), []);
        assert_eq!(points(0, 40, &[]), [39]);
        assert_eq!(points(0, 40, &[10, 20, 30, 35]), [10, 30, 35, 39]);
        assert_eq!(points(10, 40, &[10, 39, 39, 40]), [39]);
        assert_eq!(points(0, 1100, &[1000, 1080, 1085]), [512, 768, 1000, 1080, 1085, 1099]);
        assert_eq!(points(0, 8192, &[]), [4096, 6144, 7168, 7680, 7936, 8191]);
        assert_eq!(points(7000, 8192, &[]), [7168, 7680, 7936, 8191]);
    }

    #[test]
    fn a_point_is_near_below_every_departure_and_few_are_taken() {
        for prompt_len in (1..20_000).step_by(37) {
            let all = points(0, prompt_len, &[]);
            assert!(all.is_sorted_by(|a, b| a < b) && all.iter().all(|n| (1..prompt_len).contains(n)));
            let octaves = (prompt_len / STRIDE + 1).ilog2() as usize;
            assert!(all.len() <= 2 * octaves + 2, "{prompt_len}: {all:?}");
            for n in (1..prompt_len).step_by(11) {
                let below = all.iter().rev().find(|p| **p <= n).copied().unwrap_or(0);
                assert!(n - below <= 2 * STRIDE.max(prompt_len - n), "{prompt_len}: {below} for {n}");
            }
        }
    }

    #[test]
    fn a_longer_prompt_goes_on_with_the_same_multiples() {
        let mut kept = 0;
        for prompt_len in (600..6000).step_by(101) {
            let (short, long) = (points(0, prompt_len, &[]), points(0, prompt_len + 700, &[]));
            let old = long.iter().filter(|n| **n + STRIDE <= prompt_len);
            assert!(old.clone().all(|n| short.contains(n)), "{short:?}, {long:?}");
            kept += old.count();
        }
        assert!(kept > 50, "{kept} points were met twice");
    }
}
