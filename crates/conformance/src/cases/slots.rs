//! Sequence and slot tables of a schedule, as sequence memory would make them.

use firth_graph::{Extents, Sym};

use super::shape;
use crate::data::Rng;
use crate::harness::{Ask, Values};
use firth_graph::{Graph, Node};
use firth_quant::Dtype;

/// Sequences that a schedule may name.
pub const SEQS: usize = 4;
/// Slots of a state.
pub const SLOTS: usize = 9;
/// Token ids of a schedule, -1 (a row that comes ready) among them.
pub const TOKENS: usize = 7;
/// Longest draft of a schedule.
pub const DRAFT: usize = 5;

/// What one sequence does in a step.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// Which sequence.
    pub seq: usize,
    /// Rows that are certain.
    pub certain: usize,
    /// Rows guessed after them.
    pub drafted: usize,
    /// Guesses that turn out right.
    pub accepted: usize,
    /// Whether the slot read is kept for another holder, so that another is written.
    pub shared: bool,
}

impl Turn {
    /// A sequence that runs certain rows alone.
    pub fn rows(seq: usize, certain: usize) -> Turn {
        Turn { seq, certain, drafted: 0, accepted: 0, shared: false }
    }

    /// One certain row, `drafted` guesses, of which the first `accepted` are right.
    pub fn draft(seq: usize, drafted: usize, accepted: usize) -> Turn {
        Turn { seq, certain: 1, drafted, accepted, shared: false }
    }

    /// The same, into a fresh slot.
    pub fn shared(self) -> Turn {
        Turn { shared: true, ..self }
    }

    fn n_rows(&self) -> usize {
        self.certain + self.drafted
    }
}

/// A turn with its place in the step and in memory.
#[derive(Clone, Copy, Debug)]
pub struct Placed {
    /// The turn.
    pub turn: Turn,
    /// First row in the step.
    pub first_row: usize,
    /// Index of that row in the sequence.
    pub first_index: usize,
    /// Slot read, -1 for none.
    pub read: i32,
    /// Slot written.
    pub write: i32,
    /// Logged rows that count.
    pub n_log: usize,
}

/// Extents of a step.
pub fn extents(step: &[Turn]) -> Extents {
    Extents { t: step.iter().map(Turn::n_rows).sum(), s: step.len(), o: 0, p: 0 }
}

/// Every step of a schedule, placed.
pub fn place(schedule: &[Vec<Turn>]) -> Vec<Vec<Placed>> {
    let mut slots = [-1i32; SEQS];
    let (mut len, mut log) = ([0; SEQS], [0; SEQS]);
    let mut next = 0;
    let mut out = Vec::new();
    for step in schedule {
        let mut row = 0;
        let mut placed = Vec::new();
        for turn in step {
            let s = turn.seq;
            let read = slots[s];
            if turn.n_rows() > 0 && (read < 0 || turn.shared) {
                // Any slot that no sequence stands in.
                while slots.contains(&next) {
                    next = (next + 1) % SLOTS as i32;
                }
                slots[s] = next;
                next = (next + 1) % SLOTS as i32;
            }
            let write = slots[s];
            placed.push(Placed {
                turn: *turn,
                first_row: row,
                first_index: len[s],
                read,
                write,
                n_log: log[s],
            });
            row += turn.n_rows();
            if turn.n_rows() > 0 {
                len[s] += turn.certain + turn.accepted;
                log[s] = turn.accepted;
            }
        }
        out.push(placed);
    }
    out
}

/// The inputs `seqs` and `slots`.
pub fn tables(g: &mut Graph) -> [Node; 2] {
    ["seqs", "slots"].map(|name| g.input(name, Dtype::I32, shape(&[4.into(), Sym::S.into()])))
}

/// Values of a step's inputs: the tables, and rows that depend on sequence and index alone where they are right.
/// `adjust(input, x)` brings a value of -2 .. 2 into an input's range.
pub fn fill(step: &[Placed], ask: &Ask, adjust: &dyn Fn(&str, f32) -> f32) -> Values {
    match ask.input {
        "seqs" => {
            let row =
                |p: &Placed| [p.first_row, p.turn.n_rows(), p.first_index, p.turn.certain].map(|v| v as i32);
            Values::I(step.iter().flat_map(row).collect())
        }
        "slots" => {
            let row = |p: &Placed| [p.read, p.write, p.n_log as i32, 0];
            Values::I(step.iter().flat_map(row).collect())
        }
        "tokens" => {
            let mut ids = Vec::new();
            each_row(step, ask, |seed| {
                let mut rng = Rng::new(seed);
                ids.push(rng.below(TOKENS) as i32 - 1);
            });
            Values::I(ids)
        }
        _ => {
            let width = ask.n() / ask.x.t.max(1);
            let mut f = Vec::new();
            each_row(step, ask, |seed| {
                f.extend(Rng::new(seed).values(width).iter().map(|v| adjust(ask.input, *v)));
            });
            Values::F(f)
        }
    }
}

/// The seed of every row of a step: what is right depends on sequence and index alone.
fn each_row(step: &[Placed], ask: &Ask, mut row: impl FnMut(&str)) {
    for p in step {
        for r in 0..p.turn.n_rows() {
            let right = r < p.turn.certain + p.turn.accepted;
            let wrong = if right { String::new() } else { format!("/wrong {}", ask.step) };
            row(&format!("{}/{}/{}/{}{wrong}", ask.input, ask.round, p.turn.seq, p.first_index + r));
        }
    }
}
