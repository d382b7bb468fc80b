//! Functions of elements that are folded into the kernel which makes their operand: the value never goes to memory.
//!
//! A chain `y = f(x); z = g(y, a)` becomes one kernel that writes `z`. So `g` runs where `f` did, before the ops that
//! stood between them; whether that is the same is read from the bytes that all of them reach.

use std::ops::Range;

use firth_graph::{Layout, Place, SegOp};

use crate::compile::CompileCx;
use crate::kernels::elementwise;

/// Ops whose kernels call `fin(value, index in the row, row)` on what they write.
const MAKERS: &[&str] = &[
    "mat_mul",
    "rms_norm",
    "rms_norm_mul",
    "layer_norm",
    "l2_norm",
    "attend",
    "attend_chosen",
    "attend_pools",
    "moe_sum",
    "act",
    "add",
    "clamp",
    "gated_act",
    "mul",
    "scale",
    "softcap",
];

/// Operands besides the value that a chain may read: as many as parameters have room for beside any maker's.
pub const MAX_OPERANDS: usize = 3;
/// Numbers of a chain's functions.
pub const MAX_SCALARS: usize = 7;

/// Which ops are folded into which.
pub(crate) struct Folds {
    /// Of each op the ops that follow it in its kernel.
    pub chains: Vec<Vec<Link>>,
    /// The op in whose kernel an op is: its own, or that of one before it.
    pub maker: Vec<usize>,
}

impl Folds {
    /// Whether an op is in the kernel of another.
    pub fn is_folded(&self, op: usize) -> bool {
        self.maker[op] != op
    }
}

/// An op folded into a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub op: usize,
    /// Which of its operands is the value at hand.
    pub at: usize,
}

/// Bytes of the arena that each op reads and writes.
struct Reaches {
    reads: Vec<Vec<Range<usize>>>,
    writes: Vec<Vec<Range<usize>>>,
}

fn meet(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

fn any_meets(all: &[Range<usize>], r: &Range<usize>) -> bool {
    all.iter().any(|a| meet(a, r))
}

/// Finds what can be folded in a segment.
pub(crate) fn find(cx: &CompileCx) -> Folds {
    let ops = &cx.segment.ops;
    let of = |values: &[usize]| values.iter().filter_map(|v| cx.reach(*v)).collect::<Vec<_>>();
    let reaches = Reaches {
        reads: ops.iter().map(|o| of(&o.inputs)).collect(),
        writes: ops.iter().map(|o| of(&o.results)).collect(),
    };
    let mut folds = Folds { chains: vec![Vec::new(); ops.len()], maker: (0..ops.len()).collect() };
    for i in 0..ops.len() {
        if folds.is_folded(i) || !MAKERS.contains(&ops[i].op.name()) || ops[i].results.len() != 1 {
            continue;
        }
        let mut chain: Vec<Link> = Vec::new();
        while let Some(link) = next(cx, &reaches, &folds, i, &chain) {
            folds.maker[link.op] = i;
            chain.push(link);
        }
        folds.chains[i] = chain;
    }
    folds
}

/// The op that can follow a chain which starts at op `i`.
fn next(cx: &CompileCx, r: &Reaches, folds: &Folds, i: usize, chain: &[Link]) -> Option<Link> {
    let ops = &cx.segment.ops;
    let last = chain.last().map_or(i, |l| l.op);
    let v = ops[last].results[0];
    let value = cx.segment.values[v];
    if !matches!(value.place, Place::Arena(_)) {
        return None;
    }
    let bytes = cx.reach(v)?;
    let user =
        (last + 1..ops.len()).find(|&j| any_meets(&r.reads[j], &bytes) || any_meets(&r.writes[j], &bytes))?;
    let op = &ops[user];
    let at = op.inputs.iter().position(|x| *x == v)?;
    let alone = op.inputs.iter().filter_map(|x| cx.reach(*x)).filter(|x| meet(x, &bytes)).count() == 1;
    let fits = elementwise::function_of(&op.op).is_some()
        && !folds.is_folded(user)
        && alone
        && same_elements(cx.layout(v), cx.layout(op.results[0]))
        && has_room(cx, i, chain, op);
    (fits && is_read_once(r, user, &bytes) && may_run_at(cx, r, folds, i, user, at))
        .then_some(Link { op: user, at })
}

/// Whether both are dense and of one shape: element `n` of one is element `n` of the other.
pub(crate) fn same_elements(a: &Layout, b: &Layout) -> bool {
    a.shape == b.shape && a.strides == b.strides
}

/// Whether parameters and buffers of a kernel have room for another op.
fn has_room(cx: &CompileCx, i: usize, chain: &[Link], op: &SegOp) -> bool {
    let ops = || chain.iter().map(|l| &cx.segment.ops[l.op]).chain([op]);
    let others: usize = ops().map(|o| o.inputs.len() - 1).sum();
    let scalars: usize = ops().filter_map(|o| elementwise::function_of(&o.op)).map(|f| f.scalars.len()).sum();
    // Pages may take all buffers that a kernel has.
    let paged = cx.segment.ops[i].op.name().starts_with("attend");
    let from_arena = op.inputs.iter().all(|v| cx.weight(*v).is_none());
    others <= MAX_OPERANDS && scalars <= MAX_SCALARS && (from_arena || !paged)
}

/// Whether no op behind `user` reads these bytes as they are.
fn is_read_once(r: &Reaches, user: usize, bytes: &Range<usize>) -> bool {
    if any_meets(&r.writes[user], bytes) {
        return true;
    }
    for j in user + 1..r.reads.len() {
        if any_meets(&r.reads[j], bytes) {
            return false;
        }
        if any_meets(&r.writes[j], bytes) {
            return true;
        }
    }
    true
}

/// Whether op `user`, whose operand `at` is made by the chain of op `i`, may run there.
fn may_run_at(cx: &CompileCx, r: &Reaches, folds: &Folds, i: usize, user: usize, at: usize) -> bool {
    let ops = &cx.segment.ops;
    let y = ops[user].results[0];
    let Some(to) = cx.reach(y) else { return false };
    let between = i + 1..user;
    let free = between.clone().all(|j| !any_meets(&r.reads[j], &to) && !any_meets(&r.writes[j], &to));
    // In place is safe where each element is read where it is written.
    let apart = |v: usize| {
        let whole = cx.arena_byte(v) + cx.layout(v).offset == cx.arena_byte(y) + cx.layout(y).offset;
        let in_place = whole && same_elements(cx.layout(v), cx.layout(y));
        in_place || cx.reach(v).is_none_or(|x| !meet(&x, &to))
    };
    let elements = elementwise::function_of(&ops[i].op).is_some();
    let makers = ops[i].inputs.iter().all(|&v| match cx.reach(v) {
        Some(x) if meet(&x, &to) => elements && apart(v),
        _ => true,
    });
    let others = ops[user].inputs.iter().enumerate().filter(|(n, _)| *n != at).all(|(_, &v)| {
        let there = match cx.reach(v) {
            // What was folded into an earlier kernel is there.
            Some(x) => (i..user).all(|j| folds.maker[j] < i || !any_meets(&r.writes[j], &x)),
            None => matches!(cx.segment.values[v].place, Place::Weight(_)),
        };
        there && apart(v)
    });
    free && makers && others
}
