//! The choice of experts and the sum of what they say.

use firth_graph::{Op, SegOp};
use firth_simd::{LANES, Level, Simd, dispatch, math};

use crate::operand::{Cx, Operand};
use crate::program::CompileCx;
use crate::step::{Args, ByRows, Kernel, RowFn, Step, dense_rows};

/// Softmax over the experts of one token, in place of `p`: `e^(x - max)` and their sum, ascending.
struct Softmax<'a> {
    x: &'a [f32],
    p: &'a mut [f32],
}

impl firth_simd::Kernel for Softmax<'_> {
    type Out = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let mut max = f32::NEG_INFINITY;
        for &x in self.x {
            max = if max > x || max.is_nan() { max } else { x };
        }
        let m = s.splat(max);
        for (p, x) in self.p.chunks_mut(LANES).zip(self.x.chunks(LANES)) {
            s.store_partial(p, math::exp(s, s.sub(s.load_partial(x, 0.0), m)));
        }
        self.p.iter().sum()
    }
}

struct Router {
    level: Level,
    n_used: usize,
    normalise: bool,
    logits: Operand,
    ids: Operand,
    weights: Operand,
}

impl Step for Router {
    fn chunks(&self, cx: &Cx) -> usize {
        cx.rows(&self.logits).n().div_ceil(16)
    }

    fn scratch(&self) -> usize {
        self.logits.layout.shape.constant(0).unwrap_or(0)
    }

    fn run(&self, cx: &Cx, chunk: usize, worker: &mut crate::step::Worker) {
        let (logits, ids, weights) = (cx.rows(&self.logits), cx.rows(&self.ids), cx.rows(&self.weights));
        for t in chunk * 16..((chunk + 1) * 16).min(logits.n()) {
            let x = logits.f32(t);
            let p = &mut worker.scratch[..x.len()];
            let sum = dispatch(self.level, Softmax { x, p });
            // SAFETY: row `t` of both results belongs to this chunk.
            let (ids, weights) = unsafe { (ids.i32_mut(t), weights.f32_mut(t)) };
            self.choose(x, p, sum, ids, weights);
        }
    }
}

impl Router {
    /// The best by logit, ties to the lowest number; a NaN logit counts as the least, its weight stays NaN.
    fn choose(&self, x: &[f32], p: &[f32], sum: f32, ids: &mut [i32], weights: &mut [f32]) {
        for u in 0..self.n_used {
            let mut best: Option<usize> = None;
            for i in 0..x.len() {
                let better = best.is_none_or(|b| x[i] > x[b] || x[b].is_nan() && !x[i].is_nan());
                if better && !ids[..u].contains(&(i as i32)) {
                    best = Some(i);
                }
            }
            let best = best.expect("fewer are used than there are");
            ids[u] = best as i32;
            weights[u] = p[best] / sum;
        }
        if self.normalise {
            let total: f32 = weights.iter().sum();
            let total =
                if total < firth_graph::op::MIN_WEIGHT_SUM { firth_graph::op::MIN_WEIGHT_SUM } else { total };
            weights.iter_mut().for_each(|w| *w /= total);
        }
    }
}

fn router(cx: &mut CompileCx, op: &SegOp) -> Box<dyn Step> {
    let args: Args = cx.args(op);
    let Op::Router(r) = &op.op else { unreachable!("the table names the op") };
    Box::new(Router {
        level: args.level,
        n_used: r.n_used,
        normalise: r.normalise,
        logits: args.input(0),
        ids: args.result(0),
        weights: args.result(1),
    })
}

/// One token's sum over its experts.
struct Sum<'a> {
    x: &'a [&'a [f32]],
    w: &'a [f32],
    y: &'a mut [f32],
}

impl firth_simd::Kernel for Sum<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (i, y) in self.y.chunks_mut(LANES).enumerate() {
            let at = i * LANES;
            let mut acc = s.load_partial(y, 0.0);
            for (x, w) in self.x.iter().zip(self.w) {
                acc = s.fma(s.splat(*w), s.load_partial(&x[at..at + y.len()], 0.0), acc);
            }
            s.store_partial(y, acc);
        }
    }
}

struct MoeSum {
    level: Level,
    x: Operand,
    w: Operand,
    y: Operand,
}

impl RowFn for MoeSum {
    fn row(&self, cx: &Cx, t: usize) {
        let (x, w, out) = (cx.rows(&self.x), cx.rows(&self.w), cx.rows(&self.y));
        // SAFETY: row `t` belongs to this chunk.
        let y = unsafe { out.f32_mut(t) };
        y.fill(0.0);
        // One fma an expert, in rank order: the running sum goes through `y`.
        for (u, w) in w.f32(t).iter().enumerate() {
            let rows = [x.f32_at([u, t, 0])];
            dispatch(self.level, Sum { x: &rows, w: std::slice::from_ref(w), y });
        }
    }
}

fn moe_sum(cx: &mut CompileCx, op: &SegOp) -> Box<dyn Step> {
    let args: Args = cx.args(op);
    let y = args.result(0);
    ByRows::boxed(MoeSum { level: args.level, x: args.input(0), w: args.input(1), y: y.clone() }, &y)
}

/// Router and weighted sum.
pub const KERNELS: [Kernel; 2] = [
    Kernel { op: "router", supports: |_, inputs| dense_rows(inputs), compile: router },
    Kernel { op: "moe_sum", supports: |_, inputs| dense_rows(inputs), compile: moe_sum },
];
