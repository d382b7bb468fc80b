//! A dispatch as it comes together: the ops that it serves, and which others may join it.

use std::ops::Range;

use firth_graph::{Extent, Extents, HostValues, seq_table};

use crate::compile::{FOLDED, Groups, PARAM_BYTES, SCALARS};
use crate::module::{self, Fin, Source};

/// Whether one dispatch may serve several ops by the same kernel: their results must not depend on each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// The kernel has a dispatch of its own.
    Never,
    /// Where the other's operand 0 has as many rows: the kernel was chosen by that.
    SameRows,
    /// With any other.
    Any,
}

/// A dispatch on its way, with the ops it serves.
pub(crate) struct Draft {
    pub name: &'static str,
    /// Where its first op stands in the model.
    pub scope: String,
    pub members: Vec<Member>,
    pub parts: Vec<String>,
    pub values: Vec<(&'static str, String)>,
    pub sources: Vec<Source>,
    pub writable: Vec<bool>,
    /// Buffers of operands.
    pub first: usize,
    pub share: Share,
    pub rows: Option<[Extent; 3]>,
}

/// What one workgroup has to do, in rows of activations that it brings through a panel of a weight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weight {
    /// In any step.
    pub most: usize,
    /// Of attention, by what a step sees.
    pub keys: Option<Keys>,
}

/// Multiplications of an invocation's group that take as long as a row of activations through a panel.
const AS_A_PANEL: usize = 1 << 13;

/// Keys that a row goes through in a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys {
    /// The host slot that holds the table of sequences, dense from its start.
    pub seqs: usize,
    /// Those that it sees at most, as wide as sequences are.
    pub most: usize,
    /// Multiplications with each.
    pub products: usize,
}

impl Weight {
    pub const PANEL: Weight = Weight::panels(1);

    pub const fn panels(most: usize) -> Weight {
        Weight { most, keys: None }
    }

    /// Of attention to at most `keys`, each worth so many products; `seqs` is the slot of the table of sequences, where the
    /// host has it.
    pub fn keys(seqs: Option<usize>, most: usize, products: usize) -> Weight {
        let keys = seqs.map(|seqs| Keys { seqs, most, products });
        Weight { most: (most * products).div_ceil(AS_A_PANEL).max(1), keys }
    }

    /// In a step, at most: what the longest of its sequences sees.
    pub fn of(&self, step: &Extents, host: &HostValues) -> usize {
        let Some(k) = self.keys else { return self.most };
        let table = host.i32(k.seqs);
        let sequences = table.chunks_exact(seq_table::WIDTH).take(step.s);
        let end =
            |q: &[i32]| q[seq_table::FIRST_INDEX].max(0) as usize + q[seq_table::N_ROWS].max(0) as usize;
        let seen = sequences.map(end).max().unwrap_or(0).min(k.most);
        (seen * k.products).div_ceil(AS_A_PANEL).max(1)
    }
}

/// What one op has of its own in a dispatch.
pub(crate) struct Member {
    /// The kernel's, then those of ops folded into it.
    pub buffers: Vec<wgpu::Buffer>,
    pub fin: Fin,
    pub params: [u32; PARAM_BYTES / 4],
    pub groups: Groups,
    /// What one workgroup has to do.
    pub weight: Weight,
    /// Whether the workgroups of the member before it serve it as well, behind that.
    pub follows: bool,
    /// The op it is, and an op that it may follow in the same workgroups.
    pub op: usize,
    pub beside: Option<Beside>,
    /// Bytes of the arena that it reads and writes.
    pub reads: Vec<Range<usize>>,
    pub writes: Vec<Range<usize>>,
}

/// Storage buffers of a kernel that every adapter takes, the arena among them.
const MAX_STORAGE: usize = 8;
/// Ops of a dispatch at most: their number is an axis of its groups.
const MAX_MEMBERS: usize = 4;

/// An op whose result a kernel reads in the functions that end it alone, each element where it writes that element.
#[derive(Clone)]
pub(crate) struct Beside {
    pub op: usize,
    /// What else it reads.
    pub reads: Vec<Range<usize>>,
    /// Whether it writes where that result is, element for element.
    pub in_place: bool,
}

fn overlap(a: &[Range<usize>], b: &[Range<usize>]) -> bool {
    a.iter().any(|a| b.iter().any(|b| a.start < b.end && b.start < a.end))
}

impl Member {
    /// Whether the order of the two matters.
    pub fn depends(&self, other: &Member) -> bool {
        overlap(&self.writes, &other.reads)
            || overlap(&self.reads, &other.writes)
            || overlap(&self.writes, &other.writes)
    }

    /// Whether an invocation may take its element of this op behind its element of `first`: the same invocation does, since
    /// text and sizes are the same.
    pub fn may_follow(&self, first: &Member) -> bool {
        let shape = |m: &Member| m.params[SCALARS..SCALARS + FOLDED].to_vec();
        self.beside.as_ref().is_some_and(|b| {
            b.op == first.op
                && shape(self) == shape(first)
                && !overlap(&self.writes, &first.reads)
                && !overlap(&b.reads, &first.writes)
                && (b.in_place || !overlap(&self.writes, &first.writes))
        })
    }
}

impl Draft {
    /// Whether another op can join: the same text, and room for its buffers.
    pub fn takes(&self, other: &Draft) -> bool {
        self.share != Share::Never
            && self.name == other.name
            && self.rows == other.rows
            && self.sources == other.sources
            && self.writable == other.writable
            && !self.writable.contains(&true)
            && self.members.len() < MAX_MEMBERS
            && self.members.iter().chain(&other.members).map(|m| m.buffers.len()).sum::<usize>() < MAX_STORAGE
            && self.values == other.values
            && self.parts == other.parts
    }

    /// The text for as many members as there are.
    pub fn text(&self, compact: bool) -> String {
        let shape = module::Shape {
            compact,
            members: &self.members.iter().map(|m| &m.fin).collect::<Vec<_>>(),
            follows: &self.members.iter().map(|m| m.follows).collect::<Vec<_>>(),
            operands: &self.sources,
            writable: &self.writable,
            own: self.first,
        };
        module::text(&shape, &self.parts, &self.values)
    }

    /// Access of all members' buffers.
    pub fn access(&self) -> Vec<bool> {
        let one = |m: &Member| {
            let read_only = m.buffers.len() - self.writable.len();
            self.writable.iter().copied().chain(std::iter::repeat_n(false, read_only))
        };
        self.members.iter().flat_map(one).collect()
    }

    /// Workgroups of a step; the third axis numbers the members where there are several.
    pub fn groups(&self, x: &Extents) -> [usize; 3] {
        groups(self.members.iter().map(|m| &m.groups), self.turns(), x)
    }

    /// Members that do not follow others.
    pub fn turns(&self) -> usize {
        self.members.iter().filter(|m| !m.follows).count()
    }

    /// What a workgroup has to do: what depends on the step has a dispatch of its own.
    pub fn weight(&self) -> Weight {
        if let [only] = &self.members[..] {
            return only.weight;
        }
        let one = |turn: &[Member]| turn.iter().map(|m| m.weight.most).sum();
        Weight::panels(self.members.chunk_by(|_, m| m.follows).map(one).max().unwrap_or(1))
    }
}

/// Workgroups that serve several ops in a step, `n` of them each by workgroups of its own.
pub(crate) fn groups<'a>(all: impl Iterator<Item = &'a Groups>, n: usize, x: &Extents) -> [usize; 3] {
    let largest = all.map(|g| g(x)).fold([0; 3], |a, b| [a[0].max(b[0]), a[1].max(b[1]), a[2].max(b[2])]);
    match n {
        1 => largest,
        _ if largest.contains(&0) => [0; 3],
        _ => [largest[0], largest[1], n],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What attention has to do follows the longest sequence of the step, not what there is room for.
    #[test]
    fn attention_counts_the_keys_of_the_step() {
        let mut host = HostValues::new(&[4 * seq_table::WIDTH * 3]);
        // Behind the step's two sequences stands what an earlier step left.
        host.i32_mut(0).copy_from_slice(&[0, 1, 99, 1, 1, 20, 4076, 20, 21, 1, 100_000, 1]);
        let step = |s| Extents { t: 21, o: 0, p: 0, s };
        let w = Weight::keys(Some(0), 1 << 17, 128);
        assert_eq!(w.of(&step(1), &host), (100 * 128usize).div_ceil(AS_A_PANEL));
        assert_eq!(w.of(&step(2), &host), 4096 * 128 / AS_A_PANEL);
        assert_eq!(w.of(&step(0), &host), 1);
        // Of a window no more than the window, of a table that the host has not all that there may be.
        assert_eq!(Weight::keys(Some(0), 1024, 128).of(&step(2), &host), 1024 * 128 / AS_A_PANEL);
        assert_eq!(Weight::keys(None, 1 << 17, 128).of(&step(1), &host), (1 << 17) * 128 / AS_A_PANEL);
    }
}
