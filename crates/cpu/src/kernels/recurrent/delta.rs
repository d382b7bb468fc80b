//! The gated delta rule, in one pass over the state a token: the update of a token is done while the next reads.
//!
//! Per column `j`, with `g` the decay of the token and `q` times `1 / sqrt(S)`:
//!
//! ```text
//! M[i] = fma(k_prev[i], delta_prev, g_prev M[i])     the token before
//! p = sum M[i] k[i],  r = sum M[i] q[i]              chains of fma, i ascending
//! delta = fma(-g, p, v) beta,  o = fma(q.k, delta, g r)
//! ```
//!
//! With a decay per key, `k` and `q` are multiplied by it before the sums, and `g` is 1 after them.

use std::sync::Arc;

use firth_graph::op::{DeltaDims, GatedDelta};
use firth_graph::{Op, RecurrentSpec, SegOp, StateSpec};
use firth_simd::{LANES, Level, Simd, dispatch, math};

use super::span::{Block, Blocks, Span, block_words, log_row};
use super::{TINY, flushes, log};
use crate::operand::{Cx, Operand};
use crate::program::CompileCx;
use crate::states::{COLUMNS, Slots};
use crate::step::{Args, Kernel, Step, Worker, dense_rows};

/// What a token brings to one head.
#[derive(Clone, Copy)]
struct Token<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    /// Its decay, or the logarithm of it.
    g: &'a [f32],
    log: bool,
    beta: f32,
    /// Where its output goes; null for a logged row.
    o: *mut f32,
}

/// Some columns of a head, all tokens of a sequence.
struct Columns<'a, T> {
    token: T,
    span: Span,
    /// Where the state is read first, and where the base goes; rows are `stride` apart.
    src: *const f32,
    base: *mut f32,
    stride: usize,
    /// First of the columns in the head's values and outputs, and how many.
    first: usize,
    width: usize,
    /// Memory for a state after the base.
    spare: &'a mut [f32],
    vectors: &'a mut [f32],
    key: usize,
}

/// The update that a token leaves to the next pass.
struct Pending<'a, S: Simd, const N: usize> {
    k: &'a [f32],
    delta: [S::F; N],
    g: f32,
    index: usize,
}

impl<'t, T: Fn(usize) -> Token<'t>> firth_simd::Kernel for Columns<'_, T> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let per_key = (self.token)(0).g.len() > 1;
        match (self.width == COLUMNS, per_key) {
            (true, false) => self.tokens::<S, { COLUMNS / LANES }, false>(s),
            (true, true) => self.tokens::<S, { COLUMNS / LANES }, true>(s),
            (false, false) => self.tokens::<S, 1, false>(s),
            (false, true) => self.tokens::<S, 1, true>(s),
        }
    }
}

impl<'t, T: Fn(usize) -> Token<'t>> Columns<'_, T> {
    #[inline(always)]
    fn tokens<S: Simd, const N: usize, const PER_KEY: bool>(self, s: S) {
        let Columns { token, span, stride, first, width, key, .. } = self;
        let (qs, rest) = self.vectors.split_at_mut(key);
        let (ks, rest) = rest.split_at_mut(key);
        let (g_now, g_prev) = rest.split_at_mut(if PER_KEY { key } else { 0 });
        let (mut g_now, mut g_prev) = (g_now, g_prev);
        let by = s.splat(1.0 / (key as f32).sqrt());
        // The state: where it is, and where the next pass puts it.
        let (mut at, mut to) = (self.src, self.base);
        let mut pending: Option<Pending<S, N>> = None;
        for t in 0..span.n_log + span.n_rows {
            let x = token(t);
            let qk = prepare(s, &x, by, qs);
            let g = decay::<S, PER_KEY>(s, &x, g_now);
            let (mut k, mut q) = (x.k, &*qs);
            if PER_KEY {
                scale_by(s, x.k, g_now, ks);
                scale_in_place(s, qs, g_now);
                (k, q) = (&*ks, &*qs);
            }
            let keep = Shape { key, stride, width };
            let due = pending.as_ref().is_some_and(|p| flushes(p.index));
            if due {
                let p = pending.take().expect("an update is due");
                complete::<S, N, PER_KEY>(s, keep, at, to, &p, g_prev);
                at = to.cast_const();
            }
            let (p, r) = match pending.take() {
                Some(u) => {
                    let sums = pass::<S, N, PER_KEY>(s, keep, at, to, &u, g_prev, k, q);
                    at = to.cast_const();
                    sums
                }
                None => sums::<S, N>(s, keep, at, k, q),
            };
            let mut delta = [s.zero(); N];
            for n in 0..N {
                let lanes = keep.lanes::<N>(n);
                let v = s.load_partial(&x.v[first + n * LANES..][..lanes], 0.0);
                let error = if PER_KEY { s.sub(v, p[n]) } else { s.fma(s.splat(-g), p[n], v) };
                delta[n] = s.mul(error, s.splat(x.beta));
                if !x.o.is_null() {
                    let r = if PER_KEY { r[n] } else { s.mul(s.splat(g), r[n]) };
                    let o = s.fma(s.splat(qk), delta[n], r);
                    // SAFETY: these columns of the token's output are this chunk's.
                    let out = unsafe { std::slice::from_raw_parts_mut(x.o.add(first + n * LANES), lanes) };
                    s.store_partial(out, o);
                }
            }
            let update = Pending { k: x.k, delta, g, index: span.index(t) };
            (g_now, g_prev) = (g_prev, g_now);
            if t + 1 == span.n_log + span.n_certain {
                complete::<S, N, PER_KEY>(s, keep, at, self.base, &update, g_prev);
                (at, to) = (self.base.cast_const(), self.spare.as_mut_ptr());
            } else {
                pending = Some(update);
            }
        }
    }
}

/// Shape of the columns in memory.
#[derive(Clone, Copy)]
struct Shape {
    key: usize,
    stride: usize,
    width: usize,
}

impl Shape {
    /// Lanes of register `n` of `N`: all of them where the block is whole, which the compiler then knows.
    #[inline(always)]
    fn lanes<const N: usize>(&self, n: usize) -> usize {
        if N == COLUMNS / LANES { LANES } else { LANES.min(self.width - n * LANES) }
    }
}

/// `q` times `by`, and its product with `k` by sixteen strided sums.
#[inline(always)]
fn prepare<S: Simd>(s: S, x: &Token, by: S::F, qs: &mut [f32]) -> f32 {
    let mut acc = s.zero();
    for ((to, q), k) in qs.chunks_mut(LANES).zip(x.q.chunks(LANES)).zip(x.k.chunks(LANES)) {
        let q = s.mul(s.load_partial(q, 0.0), by);
        s.store_partial(to, q);
        acc = s.fma(q, s.load_partial(k, 0.0), acc);
    }
    s.sum_tree(acc)
}

/// The token's decay: returned, or one per key in `out`.
#[inline(always)]
fn decay<S: Simd, const PER_KEY: bool>(s: S, x: &Token, out: &mut [f32]) -> f32 {
    if !PER_KEY {
        return if x.log { s.to_array(math::exp(s, s.splat(x.g[0])))[0] } else { x.g[0] };
    }
    for (to, g) in out.chunks_mut(LANES).zip(x.g.chunks(LANES)) {
        let g = s.load_partial(g, 0.0);
        s.store_partial(to, if x.log { math::exp(s, g) } else { g });
    }
    1.0
}

#[inline(always)]
fn scale_by<S: Simd>(s: S, x: &[f32], by: &[f32], y: &mut [f32]) {
    for ((y, x), by) in y.chunks_mut(LANES).zip(x.chunks(LANES)).zip(by.chunks(LANES)) {
        s.store_partial(y, s.mul(s.load_partial(x, 0.0), s.load_partial(by, 0.0)));
    }
}

#[inline(always)]
fn scale_in_place<S: Simd>(s: S, x: &mut [f32], by: &[f32]) {
    for (x, by) in x.chunks_mut(LANES).zip(by.chunks(LANES)) {
        s.store_partial(x, s.mul(s.load_partial(x, 0.0), s.load_partial(by, 0.0)));
    }
}

/// Registers of row `i`.
#[inline(always)]
fn load<S: Simd, const N: usize>(s: S, shape: Shape, at: *const f32, i: usize) -> [S::F; N] {
    let mut m = [s.zero(); N];
    for (n, m) in m.iter_mut().enumerate() {
        let lanes = shape.lanes::<N>(n);
        // SAFETY: the row's columns lie in the block that the chunk has to itself.
        *m = unsafe {
            let row = at.add(i * shape.stride + n * LANES);
            if lanes == LANES {
                s.load_ptr(row)
            } else {
                s.load_partial(std::slice::from_raw_parts(row, lanes), 0.0)
            }
        };
    }
    m
}

#[inline(always)]
fn store<S: Simd, const N: usize>(s: S, shape: Shape, to: *mut f32, i: usize, m: [S::F; N]) {
    for (n, m) in m.iter().enumerate() {
        let lanes = shape.lanes::<N>(n);
        // SAFETY: as in `load`.
        unsafe {
            let row = to.add(i * shape.stride + n * LANES);
            if lanes == LANES {
                s.store_ptr(row, *m);
            } else {
                s.store_partial(std::slice::from_raw_parts_mut(row, lanes), *m);
            }
        }
    }
}

/// Row `i` after the pending update.
#[inline(always)]
fn updated<S: Simd, const N: usize, const PER_KEY: bool>(
    s: S,
    m: [S::F; N],
    i: usize,
    u: &Pending<S, N>,
    g: &[f32],
) -> [S::F; N] {
    let decay = s.splat(if PER_KEY { g[i] } else { u.g });
    let k = s.splat(u.k[i]);
    let mut m = m;
    for (m, delta) in m.iter_mut().zip(&u.delta) {
        *m = s.fma(k, *delta, s.mul(decay, *m));
    }
    m
}

/// Applies the pending update, and the flush where it is due.
#[inline(always)]
fn complete<S: Simd, const N: usize, const PER_KEY: bool>(
    s: S,
    shape: Shape,
    at: *const f32,
    to: *mut f32,
    u: &Pending<S, N>,
    g: &[f32],
) {
    let flush = flushes(u.index);
    for i in 0..shape.key {
        let mut m = updated::<S, N, PER_KEY>(s, load(s, shape, at, i), i, u, g);
        if flush {
            for m in &mut m {
                *m = s.select(s.lt(s.abs(*m), s.splat(TINY)), s.zero(), *m);
            }
        }
        store(s, shape, to, i, m);
    }
}

/// Applies the pending update and reads the result.
#[allow(clippy::too_many_arguments, reason = "one loop's operands")]
#[inline(always)]
fn pass<S: Simd, const N: usize, const PER_KEY: bool>(
    s: S,
    shape: Shape,
    at: *const f32,
    to: *mut f32,
    u: &Pending<S, N>,
    g: &[f32],
    k: &[f32],
    q: &[f32],
) -> ([S::F; N], [S::F; N]) {
    let (mut p, mut r) = ([s.zero(); N], [s.zero(); N]);
    for i in 0..shape.key {
        let m = updated::<S, N, PER_KEY>(s, load(s, shape, at, i), i, u, g);
        store(s, shape, to, i, m);
        let (k, q) = (s.splat(k[i]), s.splat(q[i]));
        for n in 0..N {
            p[n] = s.fma(m[n], k, p[n]);
            r[n] = s.fma(m[n], q, r[n]);
        }
    }
    (p, r)
}

/// Reads a complete state.
#[inline(always)]
fn sums<S: Simd, const N: usize>(
    s: S,
    shape: Shape,
    at: *const f32,
    k: &[f32],
    q: &[f32],
) -> ([S::F; N], [S::F; N]) {
    let (mut p, mut r) = ([s.zero(); N], [s.zero(); N]);
    for i in 0..shape.key {
        let m = load::<S, N>(s, shape, at, i);
        let (k, q) = (s.splat(k[i]), s.splat(q[i]));
        for n in 0..N {
            p[n] = s.fma(m[n], k, p[n]);
            r[n] = s.fma(m[n], q, r[n]);
        }
    }
    (p, r)
}

struct DeltaStep {
    level: Level,
    op: GatedDelta,
    d: DeltaDims,
    blocks: Blocks,
    spec: RecurrentSpec,
    state: Arc<Slots>,
    q: Operand,
    k: Operand,
    v: Operand,
    g: Operand,
    beta: Operand,
    seqs: Operand,
    slots: Operand,
    o: Operand,
}

impl Step for DeltaStep {
    fn chunks(&self, cx: &Cx) -> usize {
        cx.x.s * self.blocks.n()
    }

    fn scratch(&self) -> usize {
        self.d.key * (COLUMNS + 4)
    }

    fn run(&self, cx: &Cx, chunk: usize, worker: &mut Worker) {
        let (seqs, slots) = (cx.rows(&self.seqs), cx.rows(&self.slots));
        let Some(span) = Span::new(&seqs, &slots, chunk / self.blocks.n()) else { return };
        span.check(&self.spec);
        let block = self.blocks.get(chunk % self.blocks.n());
        self.block(cx, &span, &block, worker);
    }
}

impl DeltaStep {
    fn block(&self, cx: &Cx, span: &Span, b: &Block, worker: &mut Worker) {
        let (q, k, v) = (cx.rows(&self.q), cx.rows(&self.k), cx.rows(&self.v));
        let (g, beta, o) = (cx.rows(&self.g), cx.rows(&self.beta), cx.rows(&self.o));
        let kh = self.op.key_head(&self.d, b.head);
        let d = &self.d;
        let token = |t: usize| {
            if t < span.n_log {
                let [at_v, at_g, at_beta] = d.log_parts();
                let row = log_row(&self.state, &self.spec, span.read.expect("a log has a slot"), t);
                let k = &row[kh * d.key..][..d.key];
                return Token {
                    q: k,
                    k,
                    v: &row[at_v + b.head * d.value..][..d.value],
                    g: &row[at_g + b.head * d.decay..][..d.decay],
                    log: false,
                    beta: row[at_beta + b.head],
                    o: std::ptr::null_mut(),
                };
            }
            let row = span.first_row + t - span.n_log;
            Token {
                q: q.f32_at([kh, row, 0]),
                k: k.f32_at([kh, row, 0]),
                v: v.f32_at([b.head, row, 0]),
                g: g.f32_at([b.head, row, 0]),
                log: true,
                beta: beta.f32_at([b.head, row, 0])[0],
                o: o.element([0, b.head, row, 0]).cast(),
            }
        };
        let (src, base) = block_words(&self.state, span, b, d.key);
        let (spare, vectors) = worker.scratch.split_at_mut(d.key * COLUMNS);
        let step = if b.width == COLUMNS { COLUMNS } else { LANES };
        for at in (0..b.width).step_by(step) {
            let width = step.min(b.width - at);
            let columns = Columns {
                token,
                span: *span,
                src: src.wrapping_add(at),
                base: base.wrapping_add(at),
                stride: b.width,
                first: b.first + at,
                width,
                spare: &mut *spare,
                vectors: &mut *vectors,
                key: d.key,
            };
            dispatch(self.level, columns);
        }
    }
}

fn compile(cx: &mut CompileCx, op: &SegOp) -> Box<dyn Step> {
    let state = cx.slots(op.inputs[0]);
    let args: Args = cx.args(op);
    let Op::GatedDelta(delta) = &op.op else { unreachable!("the table names the op") };
    let StateSpec::Recurrent(spec) = state.spec else { unreachable!("the op's rule asks for a recurrence") };
    let shape = |i: usize| args.input(i).layout.shape;
    let d = GatedDelta::dims(&shape(1), &shape(3), &shape(4));
    let parts = [(2, false), (3, false), (4, true), (5, false)];
    log::after(cx, &state, spec, &args, &parts, 6);
    Box::new(DeltaStep {
        level: args.level,
        op: *delta,
        d,
        blocks: Blocks { rows: d.key, columns: d.value, heads: d.heads },
        spec,
        state,
        q: args.input(1),
        k: args.input(2),
        v: args.input(3),
        g: args.input(4),
        beta: args.input(5),
        seqs: args.input(6),
        slots: args.input(7),
        o: args.result(0),
    })
}

/// The gated delta rule.
pub const KERNEL: Kernel = Kernel { op: "gated_delta", supports: |_, inputs| dense_rows(inputs), compile };
