//! Rows of a table by the last few tokens.

use std::sync::Arc;

use firth_graph::op::NgramRows;
use firth_graph::{Op, RingSpec, SegOp, StateSpec};

use super::ring::write_ring;
use super::span::Span;
use crate::kernels::kv_write::locate;
use crate::operand::{Cx, Operand};
use crate::program::CompileCx;
use crate::states::Slots;
use crate::step::{Args, Kernel, Step, Worker, dense_rows};
use crate::store::StoredWeight;

/// Rows of a chunk.
const ROWS: usize = 8;

/// The operands that both halves of the op read.
#[derive(Clone)]
struct Shared {
    op: NgramRows,
    spec: RingSpec,
    state: Arc<Slots>,
    tokens: Operand,
    seqs: Operand,
    slots: Operand,
}

struct RowsStep {
    shared: Shared,
    table: Arc<StoredWeight>,
    y: Operand,
}

impl Step for RowsStep {
    fn chunks(&self, cx: &Cx) -> usize {
        cx.x.t.div_ceil(ROWS)
    }

    fn run(&self, cx: &Cx, chunk: usize, _worker: &mut Worker) {
        let s = &self.shared;
        let (seqs, slots) = (cx.rows(&s.seqs), cx.rows(&s.slots));
        let (tokens, y) = (cx.rows(&s.tokens), cx.rows(&self.y));
        let ids = tokens.i32(0);
        for row in chunk * ROWS..((chunk + 1) * ROWS).min(cx.x.t) {
            let Some((seq, index)) = locate(&seqs, row) else { continue };
            let span = Span::new(&seqs, &slots, seq).expect("a sequence with a row");
            let before = |n: usize| {
                let at = index.checked_sub(n)?;
                if at >= span.first_index {
                    return Some(s.op.id(ids[row - n]));
                }
                let word = s.state.slot(span.read?).wrapping_add(at % s.spec.rows);
                assert!(at % s.spec.rows < s.state.words, "a row of the ring");
                // SAFETY: the word lies in the slot, and the ring is written by the step after this one.
                Some(unsafe { word.cast::<i32>().read() })
            };
            s.op.rows(ids[row], before, |h, r| {
                // SAFETY: row `row` of the step belongs to this chunk.
                self.table.row(r as usize, unsafe { y.f32_mut(row * s.op.sizes.len() + h) });
            });
        }
    }
}

/// Writes the ids, after every row has read the old ones.
struct RingStep(Shared);

impl Step for RingStep {
    fn chunks(&self, cx: &Cx) -> usize {
        cx.x.s
    }

    fn run(&self, cx: &Cx, chunk: usize, _worker: &mut Worker) {
        let s = &self.0;
        let Some(span) = Span::new(&cx.rows(&s.seqs), &cx.rows(&s.slots), chunk) else { return };
        let tokens = cx.rows(&s.tokens);
        let ids = tokens.i32(0);
        let put = |r: usize, to: &mut [f32]| to[0] = f32::from_bits(s.op.id(ids[span.first_row + r]) as u32);
        // SAFETY: a sequence's ring is this chunk's.
        unsafe { write_ring(&s.state, &s.spec, &span, 0, 1, put) };
    }
}

fn compile(cx: &mut CompileCx, op: &SegOp) -> Box<dyn Step> {
    let args: Args = cx.args(op);
    let state = cx.slots(op.inputs[0]);
    let Op::NgramRows(rows) = &op.op else { unreachable!("the table names the op") };
    let StateSpec::Ring(spec) = state.spec else { unreachable!("the op's rule asks for a ring") };
    let (tokens, seqs, slots) = (args.input(1), args.input(3), args.input(4));
    let shared = Shared { op: rows.clone(), spec, state, tokens, seqs, slots };
    cx.after.push(("ring", Box::new(RingStep(shared.clone()))));
    Box::new(RowsStep { shared, table: cx.weight(op.inputs[2]), y: args.result(0) })
}

/// Rows of a table by n-grams.
pub const KERNEL: Kernel = Kernel { op: "ngram_rows", supports: |_, inputs| dense_rows(inputs), compile };
