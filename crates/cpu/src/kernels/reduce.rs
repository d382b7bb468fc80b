//! Ops that reduce a row, or mix rows of a token: products of rows, softmax, hyper-connections.

use firth_graph::op::HyperWeights;
use firth_graph::{Op, SegOp};
use firth_simd::{LANES, Level, Simd, dispatch, math};

use crate::operand::{Cx, Operand};
use crate::program::CompileCx;
use crate::step::{Args, ByRows, Kernel, RowFn, Step, dense_rows};

/// `sum a b` by sixteen strided sums of fma.
struct Dot<'a> {
    a: &'a [f32],
    b: &'a [f32],
}

impl firth_simd::Kernel for Dot<'_> {
    type Out = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let mut acc = s.zero();
        for (a, b) in self.a.chunks(LANES).zip(self.b.chunks(LANES)) {
            acc = s.fma(s.load_partial(a, 0.0), s.load_partial(b, 0.0), acc);
        }
        s.sum_tree(acc)
    }
}

struct RowDot {
    level: Level,
    a: Operand,
    b: Operand,
    y: Operand,
}

impl RowFn for RowDot {
    fn row(&self, cx: &Cx, r: usize) {
        let (a, b, y) = (cx.rows(&self.a), cx.rows(&self.b), cx.rows(&self.y));
        let i = y.split(r);
        let j = [i[0] % b.dims[1].max(1), i[1] % b.dims[2].max(1), i[2] % b.dims[3].max(1)];
        let dot = dispatch(self.level, Dot { a: a.f32_at(i), b: b.f32_at(j) });
        // SAFETY: row `r` belongs to this chunk.
        let out = unsafe { y.f32_mut(r) };
        out[0] = dot;
    }
}

/// `e^(x - max) / sum` of a row; the sum ascends.
#[inline(always)]
fn softmax<S: Simd>(s: S, x: &[f32], y: &mut [f32]) {
    let mut max = f32::NEG_INFINITY;
    for &x in x {
        max = if max > x || max.is_nan() { max } else { x };
    }
    for (y, x) in y.chunks_mut(LANES).zip(x.chunks(LANES)) {
        s.store_partial(y, math::exp(s, s.sub(s.load_partial(x, 0.0), s.splat(max))));
    }
    let sum: f32 = y.iter().sum();
    y.iter_mut().for_each(|y| *y /= sum);
}

struct SoftmaxRow<'a> {
    x: &'a [f32],
    y: &'a mut [f32],
}

impl firth_simd::Kernel for SoftmaxRow<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        softmax(s, self.x, self.y);
    }
}

struct Softmax {
    level: Level,
    x: Operand,
    y: Operand,
}

impl RowFn for Softmax {
    fn row(&self, cx: &Cx, r: usize) {
        let (x, out) = (cx.rows(&self.x), cx.rows(&self.y));
        // SAFETY: row `r` belongs to this chunk.
        let y = unsafe { out.f32_mut(r) };
        dispatch(self.level, SoftmaxRow { x: x.f32_at(out.split(r)), y });
    }
}

/// The weights of one token.
struct HyperRow<'a> {
    op: HyperWeights,
    m: &'a [f32],
    scale: &'a [f32],
    base: &'a [f32],
    y: &'a mut [f32],
}

impl firth_simd::Kernel for HyperRow<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let HyperRow { op, m, scale, base, y } = self;
        let n = op.streams;
        for (i, ((y, m), base)) in y.iter_mut().zip(m).zip(base).enumerate() {
            *y = scale[(i / n).min(2)].mul_add(*m, *base);
        }
        let (gates, comb) = y.split_at_mut(2 * n);
        for y in gates.chunks_mut(LANES) {
            let v = s.load_partial(y, 0.0);
            s.store_partial(y, math::sigmoid(s, v));
        }
        gates[..n].iter_mut().for_each(|v| *v += op.eps);
        gates[n..].iter_mut().for_each(|v| *v *= 2.0);
        balance(s, &op, comb);
    }
}

/// Sinkhorn's iteration on `[from][to]`.
#[inline(always)]
fn balance<S: Simd>(s: S, op: &HyperWeights, c: &mut [f32]) {
    let n = op.streams;
    for row in c.chunks_mut(n) {
        let mut max = f32::NEG_INFINITY;
        for &x in &*row {
            max = if max > x || max.is_nan() { max } else { x };
        }
        for x in row.chunks_mut(LANES) {
            let v = s.load_partial(x, 0.0);
            s.store_partial(x, math::exp(s, s.sub(v, s.splat(max))));
        }
        let sum: f32 = row.iter().sum();
        row.iter_mut().for_each(|x| *x = *x / sum + op.eps);
    }
    for i in 0..op.iterations {
        if i > 0 {
            for row in c.chunks_mut(n) {
                let sum = row.iter().sum::<f32>() + op.eps;
                row.iter_mut().for_each(|x| *x /= sum);
            }
        }
        for column in 0..n {
            let sum = c[column..].iter().step_by(n).sum::<f32>() + op.eps;
            c[column..].iter_mut().step_by(n).for_each(|x| *x /= sum);
        }
    }
}

struct Hyper {
    level: Level,
    op: HyperWeights,
    m: Operand,
    scale: Operand,
    base: Operand,
    y: Operand,
}

impl RowFn for Hyper {
    fn row(&self, cx: &Cx, r: usize) {
        let (m, scale, base) = (cx.rows(&self.m), cx.rows(&self.scale), cx.rows(&self.base));
        let out = cx.rows(&self.y);
        // SAFETY: row `r` belongs to this chunk.
        let y = unsafe { out.f32_mut(r) };
        let row = HyperRow { op: self.op, m: m.f32(r), scale: scale.f32(0), base: base.f32(0), y };
        dispatch(self.level, row);
    }
}

/// `y = fma(w, x, y)`, or `y = w x` first.
struct MulAdd<'a> {
    w: f32,
    x: &'a [f32],
    first: bool,
    y: &'a mut [f32],
}

impl firth_simd::Kernel for MulAdd<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let w = s.splat(self.w);
        for (y, x) in self.y.chunks_mut(LANES).zip(self.x.chunks(LANES)) {
            let x = s.load_partial(x, 0.0);
            let v = if self.first { s.mul(w, x) } else { s.fma(w, x, s.load_partial(y, 0.0)) };
            s.store_partial(y, v);
        }
    }
}

struct StreamMix {
    level: Level,
    r: Operand,
    comb: Operand,
    x: Operand,
    post: Operand,
    y: Operand,
}

impl RowFn for StreamMix {
    fn row(&self, cx: &Cx, row: usize) {
        let (r, comb, x, post) =
            (cx.rows(&self.r), cx.rows(&self.comb), cx.rows(&self.x), cx.rows(&self.post));
        let out = cx.rows(&self.y);
        let [d, t, _] = out.split(row);
        // SAFETY: this row belongs to this chunk.
        let y = unsafe { out.f32_mut(row) };
        let own = MulAdd { w: post.f32_at([t, 0, 0])[d], x: x.f32_at([t, 0, 0]), first: true, y: &mut *y };
        dispatch(self.level, own);
        for from in 0..r.dims[1] {
            let w = comb.f32_at([from, t, 0])[d];
            dispatch(self.level, MulAdd { w, x: r.f32_at([from, t, 0]), first: false, y: &mut *y });
        }
    }
}

fn compile(cx: &mut CompileCx, op: &SegOp) -> Box<dyn Step> {
    let args: Args = cx.args(op);
    let (level, y) = (args.level, args.result(0));
    let to = y.clone();
    match &op.op {
        Op::RowDot(_) => ByRows::boxed(RowDot { level, a: args.input(0), b: args.input(1), y }, &to),
        Op::Softmax(_) => ByRows::boxed(Softmax { level, x: args.input(0), y }, &to),
        Op::HyperWeights(op) => {
            let (m, scale, base) = (args.input(0), args.input(1), args.input(2));
            ByRows::boxed(Hyper { level, op: *op, m, scale, base, y }, &to)
        }
        Op::StreamMix(_) => {
            let (r, comb, x, post) = (args.input(0), args.input(1), args.input(2), args.input(3));
            ByRows::boxed(StreamMix { level, r, comb, x, post, y }, &to)
        }
        other => unreachable!("`{}` reduces nothing", other.name()),
    }
}

const fn kernel(op: &'static str) -> Kernel {
    Kernel { op, supports: |_, inputs| dense_rows(inputs), compile }
}

/// Products of rows, softmax, hyper-connections.
pub const KERNELS: [Kernel; 4] =
    [kernel("row_dot"), kernel("softmax"), kernel("hyper_weights"), kernel("stream_mix")];
