//! Norms: sums along the row run as sixteen strided sums and a fixed tree, at every instruction set.

use std::ops::Range;

use firth_graph::{Op, SegOp};
use firth_simd::{LANES, Level, Simd, dispatch};

use crate::operand::{Cx, Operand, Rows};
use crate::program::CompileCx;
use crate::step::{Args, Kernel, LaneFn, RowMaker, Step, by_lanes, dense_rows};

/// Sixteen strided partial sums of fma squares of `x - shift`, then the tree; a short tail adds nothing.
#[inline(always)]
fn sum_squares<S: Simd>(s: S, x: &[f32], shift: f32) -> f32 {
    let (whole, tail) = x.as_chunks::<LANES>();
    let shift_lanes = s.splat(shift);
    let mut acc = s.zero();
    for c in whole {
        let d = s.sub(s.load(c), shift_lanes);
        acc = s.fma(d, d, acc);
    }
    if !tail.is_empty() {
        // Lanes beyond the row hold the shift itself: their difference is +0 and adds nothing.
        let d = s.sub(s.load_partial(tail, shift), shift_lanes);
        acc = s.fma(d, d, acc);
    }
    s.sum_tree(acc)
}

#[inline(always)]
fn sum<S: Simd>(s: S, x: &[f32]) -> f32 {
    let mut acc = s.zero();
    for c in x.chunks(LANES) {
        acc = s.add(acc, s.load_partial(c, 0.0));
    }
    s.sum_tree(acc)
}

/// `1 / sqrt(sum / n + eps)`, a root and two divisions.
fn reciprocal(sum: f32, n: usize, eps: f32) -> f32 {
    1.0 / (sum / n as f32 + eps).sqrt()
}

#[inline(always)]
fn l2<S: Simd>(s: S, x: &[f32], eps: f32, y: &mut [f32]) {
    let r = s.splat(reciprocal(sum_squares(s, x, 0.0), 1, eps));
    for (y, x) in y.chunks_mut(LANES).zip(x.chunks(LANES)) {
        s.store_partial(y, s.mul(s.load_partial(x, 0.0), r));
    }
}

/// `total = a + b`.
#[inline(always)]
fn add<S: Simd>(s: S, a: &[f32], b: &[f32], total: &mut [f32]) {
    for ((t, a), b) in total.chunks_mut(LANES).zip(a.chunks(LANES)).zip(b.chunks(LANES)) {
        s.store_partial(t, s.add(s.load_partial(a, 0.0), s.load_partial(b, 0.0)));
    }
}

/// The norm of `x`, times `w` where there is one.
#[inline(always)]
fn rms<S: Simd>(s: S, x: &[f32], w: Option<&[f32]>, eps: f32, y: &mut [f32]) {
    let r = s.splat(reciprocal(sum_squares(s, x, 0.0), x.len(), eps));
    let Some(w) = w else {
        for (y, x) in y.chunks_mut(LANES).zip(x.chunks(LANES)) {
            s.store_partial(y, s.mul(s.load_partial(x, 0.0), r));
        }
        return;
    };
    for ((y, x), w) in y.chunks_mut(LANES).zip(x.chunks(LANES)).zip(w.chunks(LANES)) {
        s.store_partial(y, s.mul(s.mul(s.load_partial(x, 0.0), r), s.load_partial(w, 0.0)));
    }
}

#[inline(always)]
fn layer<S: Simd>(s: S, x: &[f32], eps: f32, y: &mut [f32]) {
    let mean = sum(s, x) / x.len() as f32;
    let r = s.splat(reciprocal(sum_squares(s, x, mean), x.len(), eps));
    let mean = s.splat(mean);
    for (y, x) in y.chunks_mut(LANES).zip(x.chunks(LANES)) {
        s.store_partial(y, s.mul(s.sub(s.load_partial(x, 0.0), mean), r));
    }
}

struct Norm {
    kind: Kind,
    eps: f32,
    x: Operand,
    /// What is added before the norm, and where the sum goes.
    add: Option<(Operand, Operand)>,
    w: Option<Operand>,
    y: Operand,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Rms,
    Layer,
    L2,
}

/// The tensors of a norm in a step.
struct Tensors {
    x: Rows,
    add: Option<(Rows, Rows)>,
    w: Option<Rows>,
    y: Rows,
}

impl LaneFn for Norm {
    type Tensors = Tensors;

    fn tensors(&self, cx: &Cx) -> Tensors {
        Tensors {
            x: cx.rows(&self.x),
            add: self.add.as_ref().map(|(b, total)| (cx.rows(b), cx.rows(total))),
            w: self.w.as_ref().map(|w| cx.rows(w)),
            y: cx.rows(&self.y),
        }
    }

    #[inline(always)]
    unsafe fn row<S: Simd>(&self, s: S, t: &Tensors, i: [usize; 3]) {
        // SAFETY: the row of both results is the caller's.
        unsafe { self.into(s, t, i, t.y.f32_mut_at(i)) };
    }
}

impl Norm {
    /// The norm of row `i` into `y`.
    ///
    /// # Safety
    /// The row of the sum is the caller's.
    #[inline(always)]
    unsafe fn into<S: Simd>(&self, s: S, t: &Tensors, i: [usize; 3], y: &mut [f32]) {
        let mut x = t.x.f32_at(i);
        match self.kind {
            Kind::Layer => return layer(s, x, self.eps, y),
            Kind::L2 => return l2(s, x, self.eps, y),
            Kind::Rms => {}
        }
        if let Some((b, total)) = &t.add {
            // SAFETY: by the contract.
            let total = unsafe { total.f32_mut_at(i) };
            add(s, x, b.f32_at(i), total);
            x = total;
        }
        let w = t.w.as_ref().map(|w| w.f32_repeated(i));
        rms(s, x, w, self.eps, y);
    }
}

/// The norm of an op on its operands.
fn norm(cx: &CompileCx, op: &SegOp) -> Norm {
    let args: Args = cx.args(op);
    let x = args.input(0);
    let (kind, eps, add, w, y) = match &op.op {
        Op::RmsNorm(o) => (Kind::Rms, o.eps, None, None, args.result(0)),
        Op::RmsNormMul(o) => (Kind::Rms, o.eps, None, Some(args.input(1)), args.result(0)),
        Op::AddRmsNormMul(o) => {
            (Kind::Rms, o.eps, Some((args.input(1), args.result(0))), Some(args.input(2)), args.result(1))
        }
        Op::L2Norm(o) => (Kind::L2, o.eps, None, None, args.result(0)),
        Op::LayerNorm(o) => (Kind::Layer, o.eps, None, None, args.result(0)),
        other => unreachable!("`{}` is no norm", other.name()),
    };
    Norm { kind, eps, x, add, w, y }
}

fn compile(cx: &mut CompileCx, op: &SegOp) -> Box<dyn Step> {
    let n = norm(cx, op);
    let y = n.y.clone();
    by_lanes(n, cx.level(), &y)
}

/// Whether [`row_maker`] has the op.
pub fn makes_rows(op: &Op) -> bool {
    KERNELS.iter().any(|k| k.op == op.name())
}

/// The op's rows, each whole.
pub fn row_maker(cx: &CompileCx, op: &SegOp) -> Box<dyn RowMaker> {
    Box::new(Made { level: cx.level(), norm: norm(cx, op) })
}

struct Made {
    level: Level,
    norm: Norm,
}

impl RowMaker for Made {
    unsafe fn make(&self, cx: &Cx, i: [usize; 3], columns: Range<usize>, into: &mut [f32]) {
        assert_eq!(columns, 0..self.norm.y.layout.shape.constant(0).unwrap_or(0), "a norm is of a whole row");
        let row = RowOf { norm: &self.norm, t: self.norm.tensors(cx), i, y: into };
        dispatch(self.level, row);
    }

    fn divides(&self) -> bool {
        false
    }
}

struct RowOf<'a> {
    norm: &'a Norm,
    t: Tensors,
    i: [usize; 3],
    y: &'a mut [f32],
}

impl firth_simd::Kernel for RowOf<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: the row of the sum is made with this one, by one caller.
        unsafe { self.norm.into(s, &self.t, self.i, self.y) };
    }
}

/// A weight as long as the row; a broadcast along the row is left to the expansion.
fn full_weight(weight: usize) -> impl Fn(&[firth_graph::Type]) -> bool {
    move |inputs| {
        let width = |i: usize| inputs[i].layout().and_then(|l| l.shape.constant(0));
        dense_rows(inputs) && width(weight) == width(0)
    }
}

/// Norms.
pub const KERNELS: [Kernel; 5] = [
    Kernel { op: "rms_norm", supports: |_, inputs| dense_rows(inputs), compile },
    Kernel { op: "rms_norm_mul", supports: |_, inputs| full_weight(1)(inputs), compile },
    Kernel { op: "add_rms_norm_mul", supports: |_, inputs| full_weight(2)(inputs), compile },
    Kernel { op: "l2_norm", supports: |_, inputs| dense_rows(inputs), compile },
    Kernel { op: "layer_norm", supports: |_, inputs| dense_rows(inputs), compile },
];
