//! Which steps may run side by side: phases of a program, decided at load from the memory that each step touches.
//!
//! A phase ends with a barrier. Steps whose memory does not conflict share one, so that a layer costs a handful
//! of barriers and not one for each op. Order inside a phase is free, so it never shows in a bit.

use std::ops::Range;

use firth_graph::{Extents, Place, SegOp, SegValue, Segment, Type};

/// A kind of memory that steps share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// The program's arena.
    Arena,
    /// A host slot.
    Host(usize),
    /// A state.
    State(usize),
    /// A buffer of packed activations.
    Packed(usize),
    /// What divided attention leaves between its parts.
    Partials,
}

/// A range of bytes of one space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    space: Space,
    bytes: Range<usize>,
}

impl Span {
    /// All of a space.
    pub fn whole(space: Space) -> Self {
        Span { space, bytes: 0..usize::MAX }
    }

    /// What a value of a segment reaches at the largest step; `None` for a weight, which nobody writes.
    pub fn of(v: &SegValue, bounds: &Extents) -> Option<Self> {
        let (space, base) = match v.place {
            Place::Arena(at) => (Space::Arena, at),
            Place::Host(slot) => (Space::Host(slot), 0),
            Place::State(s) => return Some(Span::whole(Space::State(s))),
            Place::Weight(_) => return None,
        };
        let Type::Tensor(l) = v.ty else { return None };
        Some(Span { space, bytes: base + l.offset..base + l.reach(bounds) })
    }

    /// Whether they have a byte in common.
    pub fn meets(&self, other: &Span) -> bool {
        let (start, end) = (self.bytes.start.max(other.bytes.start), self.bytes.end.min(other.bytes.end));
        self.space == other.space && start < end
    }
}

/// The memory that a step touches.
#[derive(Clone, Debug, Default)]
pub struct Touch {
    /// What it reads.
    pub reads: Vec<Span>,
    /// What it writes.
    pub writes: Vec<Span>,
}

impl Touch {
    /// What an op of a segment touches by its operands and results.
    pub fn of(segment: &Segment, op: &SegOp) -> Self {
        let span = |v: &usize| Span::of(&segment.values[*v], &segment.bounds);
        Touch {
            reads: op.inputs.iter().filter_map(span).collect(),
            writes: op.results.iter().filter_map(span).collect(),
        }
    }

    /// Whether the order of the two shows.
    fn conflicts(&self, later: &Touch) -> bool {
        let meet = |a: &[Span], b: &[Span]| a.iter().any(|a| b.iter().any(|b| a.meets(b)));
        meet(&self.writes, &later.reads)
            || meet(&self.writes, &later.writes)
            || meet(&self.reads, &later.writes)
    }
}

/// The phases: steps by number, each in the earliest phase after all that it conflicts with.
pub fn phases(steps: &[Touch]) -> Vec<Vec<usize>> {
    let mut level: Vec<usize> = Vec::with_capacity(steps.len());
    let mut out: Vec<Vec<usize>> = Vec::new();
    for (i, step) in steps.iter().enumerate() {
        let after = |j: &usize| steps[*j].conflicts(step);
        let at = (0..i).filter(after).map(|j| level[j] + 1).max().unwrap_or(0);
        level.push(at);
        if at == out.len() {
            out.push(Vec::new());
        }
        out[at].push(i);
    }
    out
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "ranges of bytes, one or more")]
mod tests {
    use super::*;

    fn arena(bytes: Range<usize>) -> Span {
        Span { space: Space::Arena, bytes }
    }

    fn step(reads: &[Range<usize>], writes: &[Range<usize>]) -> Touch {
        let spans = |r: &[Range<usize>]| r.iter().cloned().map(arena).collect();
        Touch { reads: spans(reads), writes: spans(writes) }
    }

    #[test]
    fn what_does_not_meet_shares_a_phase() {
        let q = step(&[0..10], &[10..20]);
        let k = step(&[0..10], &[20..30]);
        let rope = step(&[10..20], &[30..40]);
        let v = step(&[0..10], &[40..50]);
        let attend = step(&[30..40, 20..30, 40..50], &[50..60]);
        assert_eq!(phases(&[q, k, rope, v, attend]), [vec![0, 1, 3], vec![2], vec![4]]);
    }

    #[test]
    fn memory_that_is_used_again_keeps_its_order() {
        let first = step(&[0..10], &[10..20]);
        let overwrites_its_operand = step(&[20..30], &[0..10]);
        let overwrites_its_result = step(&[20..30], &[15..16]);
        assert_eq!(phases(&[first.clone(), overwrites_its_operand]), [[0], [1]]);
        assert_eq!(phases(&[first, overwrites_its_result]), [[0], [1]]);
    }

    #[test]
    fn spaces_are_apart_and_empty_ranges_meet_nothing() {
        let state = |s| Touch { reads: vec![], writes: vec![Span::whole(Space::State(s))] };
        let packed = Touch { reads: vec![Span::whole(Space::Packed(0))], writes: vec![] };
        let empty = step(&[5..5], &[5..5]);
        assert_eq!(phases(&[state(0), state(1), packed, empty, step(&[], &[0..9])]), [vec![0, 1, 2, 3, 4]]);
        assert_eq!(phases(&[state(0), state(0)]), [[0], [1]]);
    }
}
