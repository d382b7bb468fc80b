//! Causal convolution: lanes along channels. A chunk is a sequence and a block of channels, so it alone reads and
//! writes those columns of the ring.

use std::sync::Arc;

use firth_graph::op::Conv;
use firth_graph::{Op, RingSpec, SegOp, StateSpec};
use firth_simd::{LANES, Level, Simd, dispatch, math};

use super::ring::{Past, write_rows};
use super::span::Span;
use crate::operand::{Cx, Operand, Rows};
use crate::program::CompileCx;
use crate::states::Slots;
use crate::step::{Args, Kernel, Step, Worker, dense_rows};

/// Channels of a chunk.
const CHANNELS: usize = 64;

/// The rows of a sequence, a block of channels: `y = act(sum taps w x + bias)`.
struct Rows64<'a> {
    past: &'a Past<'a>,
    span: &'a Span,
    op: &'a Conv,
    /// `[kernel][channels]`.
    w: &'a [f32],
    bias: Option<&'a [f32]>,
    y: &'a Rows,
    first: usize,
    n: usize,
}

impl firth_simd::Kernel for Rows64<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // `None` before the sequence: zeros.
        let mut taps = [None; MAX_TAPS];
        let taps = &mut taps[..self.op.kernel];
        for r in 0..self.span.n_rows {
            let mut back = self.op.kernel * self.op.dilation;
            for tap in taps.iter_mut() {
                back -= self.op.dilation;
                *tap = self.past.get(r, back);
            }
            let row = self.y.element([self.first, self.span.first_row + r, 0, 0]);
            // SAFETY: these channels of the row are this chunk's.
            let y = unsafe { std::slice::from_raw_parts_mut(row.cast(), self.n) };
            self.row(s, taps, y);
        }
    }
}

impl Rows64<'_> {
    #[inline(always)]
    fn row<S: Simd>(&self, s: S, taps: &[Option<&[f32]>], y: &mut [f32]) {
        let n = y.len();
        for (i, y) in y.chunks_mut(LANES).enumerate() {
            let at = i * LANES..i * LANES + y.len();
            let mut acc = s.zero();
            for (tap, w) in taps.iter().zip(self.w.chunks_exact(n)) {
                let w = s.load_partial(&w[at.clone()], 0.0);
                let x = match tap {
                    Some(x) => s.load_partial(&x[at.clone()], 0.0),
                    None => s.zero(),
                };
                acc = s.fma(w, x, acc);
            }
            if let Some(bias) = self.bias {
                acc = s.add(acc, s.load_partial(&bias[at], 0.0));
            }
            s.store_partial(y, if self.op.silu { math::silu(s, acc) } else { acc });
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

impl ConvStep {
    /// Blocks of channels, and how many of them make a chunk: with few rows a block is too little work.
    fn blocks(&self, cx: &Cx) -> (usize, usize) {
        let per = if cx.x.t < 8 * cx.x.s { 6 } else { 1 };
        (self.spec.width.div_ceil(CHANNELS), per)
    }
}

impl Step for ConvStep {
    fn chunks(&self, cx: &Cx) -> usize {
        let (blocks, per) = self.blocks(cx);
        cx.x.s * blocks.div_ceil(per)
    }

    fn run(&self, cx: &Cx, chunk: usize, _worker: &mut Worker) {
        let (blocks, per) = self.blocks(cx);
        let chunks = blocks.div_ceil(per);
        let (seqs, slots) = (cx.rows(&self.seqs), cx.rows(&self.slots));
        let Some(span) = Span::new(&seqs, &slots, chunk / chunks) else { return };
        let (x, y) = (cx.rows(&self.x), cx.rows(&self.y));
        let bias = self.bias.as_ref().map(|b| cx.rows(b));
        let first = chunk % chunks * per;
        for first in (first..blocks.min(first + per)).map(|block| block * CHANNELS) {
            let n = CHANNELS.min(self.spec.width - first);
            // SAFETY: a block of channels of a sequence is one chunk's; it is written below, after all rows.
            let past = unsafe { Past::new(&x, &span, &self.state, &self.spec, first, n) };
            let rows = Rows64 {
                past: &past,
                span: &span,
                op: &self.op,
                w: &self.w[first * self.op.kernel..][..n * self.op.kernel],
                bias: bias.as_ref().map(|b| &b.f32(0)[first..first + n]),
                y: &y,
                first,
                n,
            };
            dispatch(self.level, rows);
            // SAFETY: as above.
            unsafe { write_rows(&self.state, &self.spec, &span, first, n, &x) };
        }
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
