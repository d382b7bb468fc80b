//! Keys pooled over the tokens of a pool: lanes along the key.

use std::sync::Arc;

use firth_graph::op::PoolKeys;
use firth_graph::{Op, RingSpec, SegOp, StateSpec};
use firth_simd::{LANES, Level, Simd, dispatch, math};

use super::ring::{Past, write_rows};
use super::span::Span;
use crate::operand::{Cx, Operand};
use crate::program::CompileCx;
use crate::states::Slots;
use crate::step::{Args, Kernel, Step, Worker, dense_rows};

/// Numbers of a key to a chunk.
const COLUMNS: usize = 64;

/// Rows of a pool that ends at row `r`, the oldest first.
struct Pool<'a> {
    ratio: usize,
    r: usize,
    /// Rows before the pool itself, which are read from the first of the halves.
    before: usize,
    /// One half, or two where pools overlap.
    halves: &'a [Half<'a>],
    y: &'a mut [f32],
}

/// The columns of keys, their gates, and what their place in the pool adds: `[columns]` per place.
struct Half<'a> {
    keys: Past<'a>,
    gates: Option<(Past<'a>, &'a dyn Fn(usize) -> &'a [f32])>,
}

impl firth_simd::Kernel for Pool<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Pool { ratio, r, before, halves, y } = self;
        let (n, own) = (before + ratio, halves.len() - 1);
        let half = |j: usize| &halves[if j < before { 0 } else { own }];
        let row = |past: &Past, j: usize, lanes: &std::ops::Range<usize>| {
            let x = past.get(r, n - 1 - j).expect("a row of the pool");
            s.load_partial(&x[lanes.clone()], 0.0)
        };
        for (i, y) in y.chunks_mut(LANES).enumerate() {
            let lanes = i * LANES..i * LANES + y.len();
            let key = |j: usize| row(&half(j).keys, j, &lanes);
            let pooled = if halves[0].gates.is_none() {
                let mut sum = key(0);
                for j in 1..n {
                    sum = s.add(sum, key(j));
                }
                s.div(sum, s.splat(n as f32))
            } else {
                let gate = |j: usize| {
                    let (gates, place) = half(j).gates.as_ref().expect("all halves have gates");
                    let place = s.load_partial(&place(j % ratio)[lanes.clone()], 0.0);
                    s.add(row(gates, j, &lanes), place)
                };
                let mut max = gate(0);
                for j in 1..n {
                    max = s.max(max, gate(j));
                }
                let (mut sum, mut acc) = (s.zero(), s.zero());
                for j in 0..n {
                    let e = math::exp(s, s.sub(gate(j), max));
                    sum = s.add(sum, e);
                    acc = s.fma(e, key(j), acc);
                }
                s.div(acc, sum)
            };
            s.store_partial(y, pooled);
        }
    }
}

struct PoolStep {
    level: Level,
    op: PoolKeys,
    spec: RingSpec,
    state: Arc<Slots>,
    x: Operand,
    place: Option<Operand>,
    seqs: Operand,
    slots: Operand,
    y: Operand,
    first: Operand,
}

impl PoolStep {
    /// Numbers of a key.
    fn key(&self) -> usize {
        self.spec.width / self.op.parts()
    }
}

impl Step for PoolStep {
    fn chunks(&self, cx: &Cx) -> usize {
        cx.x.s * self.key().div_ceil(COLUMNS)
    }

    fn run(&self, cx: &Cx, chunk: usize, _worker: &mut Worker) {
        let blocks = self.key().div_ceil(COLUMNS);
        let Some(span) = Span::new(&cx.rows(&self.seqs), &cx.rows(&self.slots), chunk / blocks) else {
            return;
        };
        let first = chunk % blocks * COLUMNS;
        let n = COLUMNS.min(self.key() - first);
        let x = cx.rows(&self.x);
        for r in 0..span.n_rows {
            self.row(cx, &x, &span, r, first, n);
        }
        for part in 0..self.op.parts() {
            // SAFETY: these columns of a sequence are one chunk's, keys and gates, and all rows have been read.
            unsafe { write_rows(&self.state, &self.spec, &span, part * self.key() + first, n, &x) };
        }
    }
}

impl PoolStep {
    fn row(&self, cx: &Cx, x: &crate::operand::Rows, span: &Span, r: usize, first: usize, n: usize) {
        let (row, index) = (span.first_row + r, span.first_index + r);
        let ends = (index + 1) % self.op.ratio == 0;
        if first == 0 {
            let at = if ends { index + 1 - self.op.ratio } else { 0 };
            let to = cx.rows(&self.first).element([row, 0, 0, 0]).cast::<i32>();
            // SAFETY: the first block of a sequence writes its rows' places.
            unsafe { to.write(at as i32) };
        }
        let to = cx.rows(&self.y).element([first, row, 0, 0]).cast::<f32>();
        // SAFETY: these columns of the row are this chunk's.
        let y = unsafe { std::slice::from_raw_parts_mut(to, n) };
        if !ends {
            return y.fill(0.0);
        }
        // SAFETY: columns of this chunk, written only after all rows.
        let past = |first| unsafe { Past::new(x, span, &self.state, &self.spec, first, n) };
        let (key, parts) = (self.key(), self.op.parts());
        let place = self.place.as_ref().map(|p| cx.rows(p));
        let place = |half: usize| {
            let (place, from) = (&place, half * key + first);
            move |j: usize| &place.as_ref().expect("gated").f32(j)[from..from + n]
        };
        let places = [place(0), place(1)];
        let half = |i: usize| Half {
            keys: past(i * key + first),
            gates: self.op.gated.then(|| (past(parts / 2 * key + i * key + first), &places[i] as _)),
        };
        let halves = [half(0), half(usize::from(self.op.overlap))];
        let pool = Pool {
            ratio: self.op.ratio,
            r,
            // The first pool has none before it.
            before: if self.op.overlap { (index + 1 - self.op.ratio).min(self.op.ratio) } else { 0 },
            halves: &halves[..1 + usize::from(self.op.overlap)],
            y,
        };
        dispatch(self.level, pool);
    }
}

fn compile(cx: &mut CompileCx, op: &SegOp) -> Box<dyn Step> {
    let args: Args = cx.args(op);
    let state = cx.slots(op.inputs[0]);
    let Op::PoolKeys(pool) = &op.op else { unreachable!("the table names the op") };
    let StateSpec::Ring(spec) = state.spec else { unreachable!("the op's rule asks for a ring") };
    let tables = args.inputs.len() - 2;
    Box::new(PoolStep {
        level: args.level,
        op: *pool,
        spec,
        state,
        x: args.input(1),
        place: pool.gated.then(|| args.input(2)),
        seqs: args.input(tables),
        slots: args.input(tables + 1),
        y: args.result(0),
        first: args.result(1),
    })
}

/// Pooled keys.
pub const KERNEL: Kernel = Kernel { op: "pool_keys", supports: |_, inputs| dense_rows(inputs), compile };
