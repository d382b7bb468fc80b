//! The row before each row.

use std::sync::Arc;

use firth_graph::{RingSpec, SegOp, StateSpec};

use super::ring::{Past, write_rows};
use super::span::Span;
use crate::operand::{Cx, Operand};
use crate::program::CompileCx;
use crate::states::Slots;
use crate::step::{Args, Kernel, Step, Worker, dense_rows};

/// Columns of a chunk.
const COLUMNS: usize = 1024;

struct PrevRowStep {
    spec: RingSpec,
    state: Arc<Slots>,
    x: Operand,
    seqs: Operand,
    slots: Operand,
    y: Operand,
}

impl Step for PrevRowStep {
    fn chunks(&self, cx: &Cx) -> usize {
        cx.x.s * self.spec.width.div_ceil(COLUMNS)
    }

    fn run(&self, cx: &Cx, chunk: usize, _worker: &mut Worker) {
        let blocks = self.spec.width.div_ceil(COLUMNS);
        let (seqs, slots) = (cx.rows(&self.seqs), cx.rows(&self.slots));
        let Some(span) = Span::new(&seqs, &slots, chunk / blocks) else { return };
        let first = chunk % blocks * COLUMNS;
        let n = COLUMNS.min(self.spec.width - first);
        let (x, y) = (cx.rows(&self.x), cx.rows(&self.y));
        // SAFETY: a block of columns of a sequence is one chunk's; it is written below, after the old row was read.
        let past = unsafe { Past::new(&x, &span, &self.state, &self.spec, first, n) };
        for r in 0..span.n_rows {
            let to = y.element([first, span.first_row + r, 0, 0]).cast::<f32>();
            // SAFETY: these columns of the row are this chunk's.
            let to = unsafe { std::slice::from_raw_parts_mut(to, n) };
            match past.get(r, 1) {
                Some(before) => to.copy_from_slice(before),
                None => to.fill(0.0),
            }
        }
        // SAFETY: as above.
        unsafe { write_rows(&self.state, &self.spec, &span, first, n, &x) };
    }
}

fn compile(cx: &mut CompileCx, op: &SegOp) -> Box<dyn Step> {
    let state = cx.slots(op.inputs[0]);
    let args: Args = cx.args(op);
    let StateSpec::Ring(spec) = state.spec else { unreachable!("the op's rule asks for a ring") };
    Box::new(PrevRowStep {
        spec,
        state,
        x: args.input(1),
        seqs: args.input(2),
        slots: args.input(3),
        y: args.result(0),
    })
}

/// The row before.
pub const KERNEL: Kernel = Kernel { op: "prev_row", supports: |_, inputs| dense_rows(inputs), compile };
