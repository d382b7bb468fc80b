//! Selective scans. Where each channel is a head of its own with its own decays (mamba) the columns of a block are
//! channels; else a block is columns of one head (mamba2).

use std::sync::Arc;

use firth_graph::op::{Scan, ScanDims};
use firth_graph::{RecurrentSpec, SegOp, StateSpec};
use firth_simd::Level;

use super::log;
use super::outer::{Decay, Token, run_block, scratch_floats};
use super::span::{Block, Blocks, Span, log_row};
use crate::operand::{Cx, Operand};
use crate::program::CompileCx;
use crate::states::Slots;
use crate::step::{Args, Kernel, Step, Worker, dense_rows};

struct ScanStep {
    level: Level,
    d: ScanDims,
    /// Whether columns are channels.
    by_channel: bool,
    blocks: Blocks,
    /// Decays: of a head one after the other, or by block `[rows][channels of the block]`.
    a: Vec<f32>,
    spec: RecurrentSpec,
    state: Arc<Slots>,
    x: Operand,
    dt: Operand,
    b: Operand,
    c: Operand,
    seqs: Operand,
    slots: Operand,
    y: Operand,
}

impl Step for ScanStep {
    fn chunks(&self, cx: &Cx) -> usize {
        cx.x.s * self.blocks.n()
    }

    fn scratch(&self) -> usize {
        scratch_floats(self.d.state)
    }

    fn run(&self, cx: &Cx, chunk: usize, worker: &mut Worker) {
        let (seqs, slots) = (cx.rows(&self.seqs), cx.rows(&self.slots));
        let Some(span) = Span::new(&seqs, &slots, chunk / self.blocks.n()) else { return };
        span.check(&self.spec);
        let block = self.blocks.get(chunk % self.blocks.n());
        match self.by_channel {
            true => self.channels(cx, &span, &block, worker),
            false => self.head(cx, &span, &block, worker),
        }
    }
}

impl ScanStep {
    fn logged(&self, span: &Span, t: usize) -> &[f32] {
        log_row(&self.state, &self.spec, span.read.expect("a log has a slot"), t)
    }

    fn head(&self, cx: &Cx, span: &Span, k: &Block, worker: &mut Worker) {
        let (x, dt, y) = (cx.rows(&self.x), cx.rows(&self.dt), cx.rows(&self.y));
        let (b, c) = (cx.rows(&self.b), cx.rows(&self.c));
        let (d, group, columns) = (&self.d, self.d.group(k.head), k.first..k.first + k.width);
        let token = |t: usize| {
            if t < span.n_log {
                let row = self.logged(span, t);
                let [at_dt, at_b] = d.log_parts();
                return Token {
                    b: &row[at_b + group * d.state..][..d.state],
                    c: &[],
                    x: &row[k.head * d.channels..][..d.channels][columns.clone()],
                    dt: &row[at_dt + k.head..][..1],
                    y: std::ptr::null_mut(),
                };
            }
            let row = span.first_row + t - span.n_log;
            Token {
                b: b.f32_at([group, row, 0]),
                c: c.f32_at([group, row, 0]),
                x: &x.f32_at([k.head, row, 0])[columns.clone()],
                dt: &dt.f32_at([row, 0, 0])[k.head..=k.head],
                y: y.element([k.first, k.head, row, 0]).cast(),
            }
        };
        let decay = Decay::Head(&self.a[k.head * d.decays..][..d.decays]);
        run_block(self.level, &self.state, span, k, d.state, decay, &mut worker.scratch, &token);
    }

    fn channels(&self, cx: &Cx, span: &Span, k: &Block, worker: &mut Worker) {
        let (x, dt, y) = (cx.rows(&self.x), cx.rows(&self.dt), cx.rows(&self.y));
        let (b, c) = (cx.rows(&self.b), cx.rows(&self.c));
        let (d, channels) = (&self.d, k.first..k.first + k.width);
        let token = |t: usize| {
            if t < span.n_log {
                let row = self.logged(span, t);
                let [at_dt, at_b] = d.log_parts();
                return Token {
                    b: &row[at_b..][..d.state],
                    c: &[],
                    x: &row[channels.clone()],
                    dt: &row[at_dt..][channels.clone()],
                    y: std::ptr::null_mut(),
                };
            }
            let row = span.first_row + t - span.n_log;
            Token {
                b: b.f32_at([0, row, 0]),
                c: c.f32_at([0, row, 0]),
                x: channel_row(&x, row, &channels),
                dt: &dt.f32_at([row, 0, 0])[channels.clone()],
                y: y.element([0, k.first, row, 0]).cast(),
            }
        };
        let decay = Decay::Columns(&self.a[k.first * d.state..][..k.width * d.state]);
        run_block(self.level, &self.state, span, k, d.state, decay, &mut worker.scratch, &token);
    }
}

/// Channels of row `row` of `x [1, channels, T]`, which lie one after the other.
fn channel_row<'a>(x: &'a crate::operand::Rows, row: usize, channels: &std::ops::Range<usize>) -> &'a [f32] {
    let last = x.element([0, channels.end - 1, row, 0]);
    let first = x.element([0, channels.start, row, 0]).cast::<f32>();
    assert!(std::ptr::eq(first.wrapping_add(channels.len() - 1).cast(), last), "channels follow one another");
    // SAFETY: the plan proved the reach of both ends, and nothing lies between them but these channels.
    unsafe { std::slice::from_raw_parts(first, channels.len()) }
}

/// Decays `a [n, heads]` by block of channels with channels fastest.
fn by_channel(a: &[f32], blocks: &Blocks) -> Vec<f32> {
    let mut out = Vec::with_capacity(a.len());
    for b in (0..blocks.n()).map(|i| blocks.get(i)) {
        for n in 0..blocks.rows {
            out.extend((b.first..b.first + b.width).map(|c| a[c * blocks.rows + n]));
        }
    }
    out
}

fn compile(cx: &mut CompileCx, op: &SegOp) -> Box<dyn Step> {
    let state = cx.slots(op.inputs[0]);
    let args: Args = cx.args(op);
    let StateSpec::Recurrent(spec) = state.spec else { unreachable!("the op's rule asks for a recurrence") };
    let shape = |i: usize| args.input(i).layout.shape;
    let d = Scan::dims(&shape(1), &shape(3), &shape(4));
    log::after(cx, &state, spec, &args, &[(1, false), (2, false), (4, false)], 6);
    let x = args.input(1);
    let joined = x.layout.strides[1] == 4;
    let channels = d.channels == 1 && d.groups == 1 && d.decays == d.state && joined;
    let heads = args.input(3).weight_rows().expect("decays are a weight");
    let a: Vec<f32> = (0..d.heads).flat_map(|h| heads.f32(h).to_vec()).collect();
    let blocks = match channels {
        true => Blocks { rows: d.state, columns: d.heads, heads: 1 },
        false => Blocks { rows: d.state, columns: d.channels, heads: d.heads },
    };
    Box::new(ScanStep {
        level: args.level,
        d,
        by_channel: channels,
        a: if channels { by_channel(&a, &blocks) } else { a },
        blocks,
        spec,
        state,
        x,
        dt: args.input(2),
        b: args.input(4),
        c: args.input(5),
        seqs: args.input(6),
        slots: args.input(7),
        y: args.result(0),
    })
}

/// The selective scan.
pub const KERNEL: Kernel = Kernel { op: "scan", supports: |_, inputs| dense_rows(inputs), compile };
