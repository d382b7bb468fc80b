//! Causal convolution: lanes along channels. A chunk is a sequence and a block of channels, so it alone reads and
//! writes those columns of the ring.

use std::sync::Arc;

use firth_graph::op::Conv;
use firth_graph::{Op, RingSpec, SegOp, StateSpec};
use firth_simd::{LANES, Level, Simd, dispatch, math};

use super::ring::{Past, write_rows};
use super::span::Span;
use crate::operand::{Cx, Operand};
use crate::program::CompileCx;
use crate::states::Slots;
use crate::step::{Args, Kernel, Step, Worker, dense_rows};

/// Channels of a chunk.
const CHANNELS: usize = 64;

/// One row of a block of channels: `y = act(sum taps w x + bias)`.
struct Row<'a> {
    /// Inputs by tap; `None` before the sequence.
    taps: &'a [Option<&'a [f32]>],
    /// `[kernel][channels]`.
    w: &'a [f32],
    bias: Option<&'a [f32]>,
    silu: bool,
    y: &'a mut [f32],
}

impl firth_simd::Kernel for Row<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.y.len();
        for (i, y) in self.y.chunks_mut(LANES).enumerate() {
            let at = i * LANES..i * LANES + y.len();
            let mut acc = s.zero();
            for (j, x) in self.taps.iter().enumerate() {
                let w = s.load_partial(&self.w[j * n..(j + 1) * n][at.clone()], 0.0);
                let x = x.map_or(s.zero(), |x| s.load_partial(&x[at.clone()], 0.0));
                acc = s.fma(w, x, acc);
            }
            if let Some(bias) = self.bias {
                acc = s.add(acc, s.load_partial(&bias[at], 0.0));
            }
            s.store_partial(y, if self.silu { math::silu(s, acc) } else { acc });
        }
    }
}

struct ConvStep {
    level: Level,
    op: Conv,
    spec: RingSpec,
    state: Arc<Slots>,
    x: Operand,
    /// For each block of channels its taps, `[kernel][channels of the block]`.
    w: Vec<f32>,
    bias: Option<Operand>,
    seqs: Operand,
    slots: Operand,
    y: Operand,
}

/// Taps that a row of the kernel's table holds at most.
const MAX_TAPS: usize = 16;

impl Step for ConvStep {
    fn chunks(&self, cx: &Cx) -> usize {
        cx.x.s * self.spec.width.div_ceil(CHANNELS)
    }

    fn run(&self, cx: &Cx, chunk: usize, _worker: &mut Worker) {
        let blocks = self.spec.width.div_ceil(CHANNELS);
        let (seqs, slots) = (cx.rows(&self.seqs), cx.rows(&self.slots));
        let Some(span) = Span::new(&seqs, &slots, chunk / blocks) else { return };
        let first = chunk % blocks * CHANNELS;
        let n = CHANNELS.min(self.spec.width - first);
        let x = cx.rows(&self.x);
        // SAFETY: a block of channels of a sequence is one chunk's; it is written below, after all rows.
        let past = unsafe { Past::new(&x, &span, &self.state, &self.spec, first, n) };
        for r in 0..span.n_rows {
            self.row(cx, &past, &span, r, first, n);
        }
        // SAFETY: as above.
        unsafe { write_rows(&self.state, &self.spec, &span, first, n, &x) };
    }
}

impl ConvStep {
    fn row(&self, cx: &Cx, past: &Past, span: &Span, r: usize, first: usize, n: usize) {
        let mut taps = [None; MAX_TAPS];
        for (j, tap) in taps[..self.op.kernel].iter_mut().enumerate() {
            *tap = past.get(r, (self.op.kernel - 1 - j) * self.op.dilation);
        }
        let bias = self.bias.as_ref().map(|b| cx.rows(b));
        let row = cx.rows(&self.y).element([first, span.first_row + r, 0, 0]);
        dispatch(
            self.level,
            Row {
                taps: &taps[..self.op.kernel],
                w: &self.w[first * self.op.kernel..][..n * self.op.kernel],
                bias: bias.as_ref().map(|b| &b.f32(0)[first..first + n]),
                silu: self.op.silu,
                // SAFETY: these channels of the row are this chunk's.
                y: unsafe { std::slice::from_raw_parts_mut(row.cast(), n) },
            },
        );
    }
}

/// The taps of `w [kernel, channels]`, by blocks of channels with channels fastest.
fn blocked(w: &Operand, kernel: usize, channels: usize) -> Vec<f32> {
    let w = w.weight_rows().expect("taps are a weight");
    let mut out = Vec::with_capacity(kernel * channels);
    for first in (0..channels).step_by(CHANNELS) {
        for j in 0..kernel {
            out.extend((first..channels.min(first + CHANNELS)).map(|c| w.f32(c)[j]));
        }
    }
    out
}

fn compile(cx: &mut CompileCx, op: &SegOp) -> Box<dyn Step> {
    let state = cx.slots(op.inputs[0]);
    let args: Args = cx.args(op);
    let Op::Conv(conv) = &op.op else { unreachable!("the table names the op") };
    let StateSpec::Ring(spec) = state.spec else { unreachable!("the op's rule asks for a ring") };
    let tables = args.inputs.len() - 2;
    Box::new(ConvStep {
        level: args.level,
        op: *conv,
        spec,
        state,
        x: args.input(1),
        w: blocked(&args.input(2), conv.kernel, spec.width),
        bias: (tables == 4).then(|| args.input(3)),
        seqs: args.input(tables),
        slots: args.input(tables + 1),
        y: args.result(0),
    })
}

/// Convolution.
pub const KERNEL: Kernel = Kernel {
    op: "conv",
    supports: |op, inputs| matches!(op, Op::Conv(c) if c.kernel <= MAX_TAPS) && dense_rows(inputs),
    compile,
};
