//! Element-wise ops: sums, products, activations, caps.

use std::ops::Range;

use firth_graph::{ActKind, Op, SegOp};
use firth_simd::{Level, Simd, dispatch, math};

use crate::operand::{Cx, Operand, Rows};
use crate::program::CompileCx;
use crate::step::{Args, Kernel, LaneFn, RowMaker, Step, by_lanes, dense_rows};

/// `y = f(a)` or `y = f(a, b)` on sixteen lanes.
#[derive(Clone, Copy)]
enum Function {
    Add,
    Mul,
    Scale(f32),
    Softcap(f32),
    Clamp(f32, f32),
    Act(ActKind),
    Gated(ActKind),
}

impl Function {
    fn of(op: &Op) -> Option<Function> {
        Some(match op {
            Op::Add(_) => Function::Add,
            Op::Mul(_) => Function::Mul,
            Op::Scale(s) => Function::Scale(s.by),
            Op::Softcap(s) => Function::Softcap(s.cap),
            Op::Clamp(c) => Function::Clamp(c.low, c.high),
            Op::Act(a) => Function::Act(a.kind),
            Op::GatedAct(a) => Function::Gated(a.kind),
            _ => return None,
        })
    }

    #[inline(always)]
    fn apply<S: Simd>(self, s: S, a: S::F, b: S::F) -> S::F {
        match self {
            Function::Add => s.add(a, b),
            Function::Mul => s.mul(a, b),
            Function::Scale(by) => s.mul(a, s.splat(by)),
            Function::Softcap(cap) => {
                let cap = s.splat(cap);
                s.mul(cap, math::tanh(s, s.div(a, cap)))
            }
            // NaN passes both: `max` and `min` keep it.
            Function::Clamp(low, high) => s.min(s.max(a, s.splat(low)), s.splat(high)),
            Function::Act(kind) => act(s, kind, a),
            Function::Gated(kind) => s.mul(act(s, kind, a), b),
        }
    }
}

#[inline(always)]
fn act<S: Simd>(s: S, kind: ActKind, x: S::F) -> S::F {
    match kind {
        ActKind::Silu => math::silu(s, x),
        ActKind::GeluTanh => math::gelu(s, x),
        ActKind::GeluErf => math::gelu_erf(s, x),
        ActKind::GeluQuick => math::gelu_quick(s, x),
        ActKind::Relu => math::relu(s, x),
        ActKind::ReluSquared => math::relu_squared(s, x),
        ActKind::Sigmoid => math::sigmoid(s, x),
        ActKind::Tanh => math::tanh(s, x),
        ActKind::Softplus => math::softplus(s, x),
        ActKind::Exp => math::exp(s, x),
        ActKind::SignedRoot => signed_root(s, x),
    }
}

/// `sign(x) sqrt(max(|x|, 1e-6))`; zeros and NaN stay.
#[inline(always)]
fn signed_root<S: Simd>(s: S, x: S::F) -> S::F {
    let root = s.sqrt(s.max(s.abs(x), s.splat(1e-6)));
    let y = s.select(s.eq(x, s.zero()), x, s.copysign(root, x));
    s.select(s.is_nan(x), x, y)
}

/// One row. The choice of the function is made once a row, so that each loop is a plain one.
#[inline(always)]
fn row<S: Simd>(s: S, f: Function, a: &[f32], b: &[f32], y: &mut [f32]) {
    match f {
        Function::Add => each(s, Function::Add, a, b, y),
        Function::Mul => each(s, Function::Mul, a, b, y),
        Function::Gated(ActKind::Silu) => each(s, Function::Gated(ActKind::Silu), a, b, y),
        Function::Gated(ActKind::GeluTanh) => each(s, Function::Gated(ActKind::GeluTanh), a, b, y),
        f => each(s, f, a, b, y),
    }
}

/// `b` has as many values as `a`, or one that repeats.
#[inline(always)]
fn each<S: Simd>(s: S, f: Function, a: &[f32], b: &[f32], y: &mut [f32]) {
    let single = (b.len() == 1).then(|| s.splat(b[0]));
    for (i, y) in y.chunks_mut(firth_simd::LANES).enumerate() {
        let at = i * firth_simd::LANES;
        let a = s.load_partial(&a[at..at + y.len()], 0.0);
        let b = match single {
            Some(b) => b,
            None => s.load_partial(&b[at..at + y.len()], 0.0),
        };
        s.store_partial(y, f.apply(s, a, b));
    }
}

struct Elementwise {
    f: Function,
    a: Operand,
    b: Option<Operand>,
    y: Operand,
}

impl LaneFn for Elementwise {
    type Tensors = (Rows, Option<Rows>, Rows);

    fn tensors(&self, cx: &Cx) -> Self::Tensors {
        (cx.rows(&self.a), self.b.as_ref().map(|b| cx.rows(b)), cx.rows(&self.y))
    }

    #[inline(always)]
    unsafe fn row<S: Simd>(&self, s: S, (a, b, y): &Self::Tensors, i: [usize; 3]) {
        // SAFETY: the row is the caller's.
        let out = unsafe { y.f32_mut_at(i) };
        row(s, self.f, a.f32_at(i), second(b, i), out);
    }
}

/// The row of the second operand that stands for row `i`, or what a function of one operand ignores.
#[inline(always)]
fn second(b: &Option<Rows>, i: [usize; 3]) -> &[f32] {
    b.as_ref().map_or(&[0.0], |b| b.f32_repeated(i))
}

/// The function of an op on its operands.
fn elementwise(cx: &CompileCx, op: &SegOp) -> Elementwise {
    let args: Args = cx.args(op);
    let f = Function::of(&op.op).expect("the table names the ops");
    let b = (args.inputs.len() > 1).then(|| args.input(1));
    Elementwise { f, a: args.input(0), b, y: args.result(0) }
}

fn compile(cx: &mut CompileCx, op: &SegOp) -> Box<dyn Step> {
    let e = elementwise(cx, op);
    let y = e.y.clone();
    by_lanes(e, cx.level(), &y)
}

/// Whether [`row_maker`] has the op.
pub fn makes_rows(op: &Op) -> bool {
    Function::of(op).is_some()
}

/// The op's rows, column by column.
pub fn row_maker(cx: &CompileCx, op: &SegOp) -> Box<dyn RowMaker> {
    Box::new(Made { level: cx.level(), e: elementwise(cx, op) })
}

struct Made {
    level: Level,
    e: Elementwise,
}

impl RowMaker for Made {
    unsafe fn make(&self, cx: &Cx, i: [usize; 3], columns: Range<usize>, into: &mut [f32]) {
        let (a, b, _) = self.e.tensors(cx);
        let b = second(&b, i);
        let b = if b.len() == 1 { b } else { &b[columns.clone()] };
        dispatch(self.level, RowOf { f: self.e.f, a: &a.f32_at(i)[columns], b, y: into });
    }

    fn divides(&self) -> bool {
        true
    }
}

/// One row, or columns of one.
struct RowOf<'a> {
    f: Function,
    a: &'a [f32],
    b: &'a [f32],
    y: &'a mut [f32],
}

impl firth_simd::Kernel for RowOf<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        row(s, self.f, self.a, self.b, self.y);
    }
}

const fn kernel(op: &'static str) -> Kernel {
    Kernel { op, supports: |_, inputs| dense_rows(inputs), compile }
}

/// Sums, products, factors, caps and activations.
pub const KERNELS: [Kernel; 7] = [
    kernel("add"),
    kernel("mul"),
    kernel("scale"),
    kernel("softcap"),
    kernel("clamp"),
    kernel("act"),
    kernel("gated_act"),
];
