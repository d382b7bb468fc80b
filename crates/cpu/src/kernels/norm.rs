//! Norms: sums along the row run as sixteen strided sums and a fixed tree, at every instruction set.

use firth_graph::{Op, SegOp};
use firth_simd::{LANES, Level, Simd, dispatch};

use crate::operand::{Cx, Operand};
use crate::program::CompileCx;
use crate::step::{Args, ByRows, Kernel, RowFn, Step, dense_rows};

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

struct L2<'a> {
    x: &'a [f32],
    eps: f32,
    y: &'a mut [f32],
}

impl firth_simd::Kernel for L2<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let r = s.splat(reciprocal(sum_squares(s, self.x, 0.0), 1, self.eps));
        for (y, x) in self.y.chunks_mut(LANES).zip(self.x.chunks(LANES)) {
            s.store_partial(y, s.mul(s.load_partial(x, 0.0), r));
        }
    }
}

struct Rms<'a> {
    /// `x`, or `a` of the sum that is normalised.
    x: &'a [f32],
    /// `b` of the sum and where the sum goes.
    add: Option<(&'a [f32], &'a mut [f32])>,
    w: Option<&'a [f32]>,
    eps: f32,
    y: &'a mut [f32],
}

impl firth_simd::Kernel for Rms<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let x = match self.add {
            None => self.x,
            Some((b, total)) => {
                for ((t, a), b) in total.chunks_mut(LANES).zip(self.x.chunks(LANES)).zip(b.chunks(LANES)) {
                    s.store_partial(t, s.add(s.load_partial(a, 0.0), s.load_partial(b, 0.0)));
                }
                &*total
            }
        };
        let r = s.splat(reciprocal(sum_squares(s, x, 0.0), x.len(), self.eps));
        for (i, (y, x)) in self.y.chunks_mut(LANES).zip(x.chunks(LANES)).enumerate() {
            let mut v = s.mul(s.load_partial(x, 0.0), r);
            if let Some(w) = self.w {
                v = s.mul(v, s.load_partial(&w[i * LANES..i * LANES + y.len()], 0.0));
            }
            s.store_partial(y, v);
        }
    }
}

struct Layer<'a> {
    x: &'a [f32],
    eps: f32,
    y: &'a mut [f32],
}

impl firth_simd::Kernel for Layer<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mean = sum(s, self.x) / self.x.len() as f32;
        let r = s.splat(reciprocal(sum_squares(s, self.x, mean), self.x.len(), self.eps));
        let mean = s.splat(mean);
        for (y, x) in self.y.chunks_mut(LANES).zip(self.x.chunks(LANES)) {
            s.store_partial(y, s.mul(s.sub(s.load_partial(x, 0.0), mean), r));
        }
    }
}

struct Norm {
    level: Level,
    kind: Kind,
    eps: f32,
    x: Operand,
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

impl RowFn for Norm {
    fn row(&self, cx: &Cx, r: usize) {
        let (x, out) = (cx.rows(&self.x), cx.rows(&self.y));
        let i = out.split(r);
        // SAFETY: row `r` of both results belongs to this chunk.
        let y = unsafe { out.f32_mut(r) };
        match self.kind {
            Kind::Layer => return dispatch(self.level, Layer { x: x.f32_at(i), eps: self.eps, y }),
            Kind::L2 => return dispatch(self.level, L2 { x: x.f32_at(i), eps: self.eps, y }),
            Kind::Rms => {}
        }
        let w = self.w.as_ref().map(|w| cx.rows(w));
        let w = w
            .as_ref()
            .map(|w| w.f32_at([i[0] % w.dims[1].max(1), i[1] % w.dims[2].max(1), i[2] % w.dims[3].max(1)]));
        let add = self.add.as_ref().map(|(b, total)| (cx.rows(b), cx.rows(total)));
        // SAFETY: as above.
        let add = add.as_ref().map(|(b, total)| (b.f32_at(i), unsafe { total.f32_mut(r) }));
        dispatch(self.level, Rms { x: x.f32_at(i), add, w, eps: self.eps, y });
    }
}

fn compile(cx: &mut CompileCx, op: &SegOp) -> Box<dyn Step> {
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
    ByRows::boxed(Norm { level: args.level, kind, eps, x, add, w, y: y.clone() }, &y)
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
