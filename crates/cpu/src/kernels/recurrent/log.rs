//! The log of a recurrence: inputs of the drafted rows, written after every chunk has read the old ones.

use std::sync::Arc;

use firth_graph::{Extent, RecurrentSpec, Sym};
use firth_simd::{LANES, Level, Simd, dispatch, math};

use super::span::Span;
use crate::operand::{Cx, Operand};
use crate::program::CompileCx;
use crate::states::Slots;
use crate::step::{Args, Step, Worker};

/// An operand that is logged, or its exponential.
struct Part {
    from: Operand,
    exp: bool,
    /// Whether rows of the step are axis 1 (and not axis 2, behind heads).
    flat: bool,
}

struct LogStep {
    level: Level,
    state: Arc<Slots>,
    spec: RecurrentSpec,
    parts: Vec<Part>,
    seqs: Operand,
    slots: Operand,
}

/// `y = e^x`.
struct Exp<'a> {
    x: &'a [f32],
    y: &'a mut [f32],
}

impl firth_simd::Kernel for Exp<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (y, x) in self.y.chunks_mut(LANES).zip(self.x.chunks(LANES)) {
            s.store_partial(y, math::exp(s, s.load_partial(x, 0.0)));
        }
    }
}

impl LogStep {
    /// The sequence and drafted row that chunk `chunk` is.
    fn find(&self, cx: &Cx, mut chunk: usize) -> Option<(Span, usize)> {
        let (seqs, slots) = (cx.rows(&self.seqs), cx.rows(&self.slots));
        for s in 0..cx.x.s {
            let Some(span) = Span::new(&seqs, &slots, s) else { continue };
            if chunk < span.n_drafted() {
                return Some((span, chunk));
            }
            chunk -= span.n_drafted();
        }
        None
    }
}

impl Step for LogStep {
    fn chunks(&self, cx: &Cx) -> usize {
        let (seqs, slots) = (cx.rows(&self.seqs), cx.rows(&self.slots));
        (0..cx.x.s).filter_map(|s| Span::new(&seqs, &slots, s)).map(|s| s.n_drafted()).sum()
    }

    fn varies(&self) -> bool {
        true
    }

    fn run(&self, cx: &Cx, chunk: usize, _worker: &mut Worker) {
        let Some((span, drafted)) = self.find(cx, chunk) else { return };
        span.check(&self.spec);
        let row = span.first_row + span.n_certain + drafted;
        let at = self.spec.base_len() + drafted * self.spec.log_row;
        assert!(at + self.spec.log_row <= self.state.words, "row {drafted} of a log");
        let to = self.state.slot(span.write).wrapping_add(at);
        // SAFETY: the row lies in the slot, belongs to this chunk, and nobody reads logs in this step.
        let mut to = unsafe { std::slice::from_raw_parts_mut(to, self.spec.log_row) };
        for part in &self.parts {
            let from = cx.rows(&part.from);
            let heads = if part.flat { 1 } else { from.dims[1] };
            for h in 0..heads {
                let x = from.f32_at(if part.flat { [row, 0, 0] } else { [h, row, 0] });
                let (y, rest) = to.split_at_mut(x.len());
                match part.exp {
                    true => dispatch(self.level, Exp { x, y }),
                    false => y.copy_from_slice(x),
                }
                to = rest;
            }
        }
        assert!(to.is_empty(), "a logged row is full");
    }
}

/// Puts the log step of a recurrence behind it: `parts` are operands, and whether their exponential is logged;
/// `tables` is the operand of the sequence table, the slot table follows.
pub fn after(
    cx: &mut CompileCx,
    state: &Arc<Slots>,
    spec: RecurrentSpec,
    args: &Args,
    parts: &[(usize, bool)],
    tables: usize,
) {
    if spec.log_rows == 0 {
        return;
    }
    let part = |&(i, exp): &(usize, bool)| {
        let from = args.input(i);
        let flat = from.layout.shape.axes()[1] == Extent::Sym(Sym::T);
        Part { from, exp, flat }
    };
    let parts = parts.iter().map(part).collect();
    let (seqs, slots) = (args.input(tables), args.input(tables + 1));
    let step = LogStep { level: args.level, state: state.clone(), spec, parts, seqs, slots };
    cx.after.push(("log", Box::new(step)));
}
