//! The choice of experts.

use firth_graph::op::{MIN_WEIGHT_SUM, RouteByTable, Router};
use firth_graph::{Gating, Op, SegOp};
use firth_simd::{LANES, Level, Simd, dispatch, math};

use crate::operand::{Cx, Operand};
use crate::program::CompileCx;
use crate::step::{Args, Kernel, Step, Worker, dense_rows};

/// Rows of a chunk.
const ROWS: usize = 16;

/// The experts' weights before any is chosen.
struct Weigh<'a> {
    gating: Gating,
    x: &'a [f32],
    p: &'a mut [f32],
}

impl firth_simd::Kernel for Weigh<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.gating {
            Gating::Softmax => softmax(s, self.x, self.p),
            Gating::SoftmaxOfChosen => self.p.copy_from_slice(self.x),
            Gating::Sigmoid => each(s, self.x, self.p, math::sigmoid),
            Gating::RootSoftplus => each(s, self.x, self.p, |s, x| s.sqrt(math::softplus(s, x))),
        }
    }
}

#[inline(always)]
fn each<S: Simd>(s: S, x: &[f32], y: &mut [f32], f: impl Fn(S, S::F) -> S::F) {
    for (y, x) in y.chunks_mut(LANES).zip(x.chunks(LANES)) {
        s.store_partial(y, f(s, s.load_partial(x, 0.0)));
    }
}

/// `e^(x - max)` over their sum, which runs ascending.
#[inline(always)]
fn softmax<S: Simd>(s: S, x: &[f32], p: &mut [f32]) {
    let mut max = f32::NEG_INFINITY;
    for &x in x {
        max = if max > x || max.is_nan() { max } else { x };
    }
    let m = s.splat(max);
    each(s, x, p, |s, x| math::exp(s, s.sub(x, m)));
    let sum: f32 = p.iter().sum();
    p.iter_mut().for_each(|p| *p /= sum);
}

struct RouterStep {
    level: Level,
    op: Router,
    logits: Operand,
    bias: Option<Operand>,
    ids: Operand,
    weights: Operand,
}

impl Step for RouterStep {
    fn chunks(&self, cx: &Cx) -> usize {
        cx.rows(&self.logits).n().div_ceil(ROWS)
    }

    fn scratch(&self) -> usize {
        let experts = self.logits.layout.shape.constant(0).unwrap_or(0);
        2 * experts + self.op.n_groups + self.op.n_used
    }

    fn run(&self, cx: &Cx, chunk: usize, worker: &mut Worker) {
        let (logits, ids, weights) = (cx.rows(&self.logits), cx.rows(&self.ids), cx.rows(&self.weights));
        let bias = self.bias.as_ref().map(|b| cx.rows(b));
        for t in chunk * ROWS..((chunk + 1) * ROWS).min(logits.n()) {
            let x = logits.f32(t);
            let (p, rest) = worker.scratch.split_at_mut(x.len());
            let (score, rest) = rest.split_at_mut(x.len());
            let (groups, chosen) = rest.split_at_mut(self.op.n_groups);
            dispatch(self.level, Weigh { gating: self.op.gating, x, p });
            score.copy_from_slice(if self.op.chooses_by_logit(bias.is_some()) { x } else { p });
            if let Some(bias) = &bias {
                score.iter_mut().zip(bias.f32(0)).for_each(|(s, b)| *s += b);
            }
            drop_groups(score, groups, self.op.n_groups_used);
            // SAFETY: row `t` of both results belongs to this chunk.
            let (ids, weights) = unsafe { (ids.i32_mut(t), weights.f32_mut(t)) };
            choose(score, p, ids, weights);
            finish(self.level, &self.op, weights, &mut chosen[..self.op.n_used]);
        }
    }
}

/// The weights of the chosen; `chosen` is scratch of as many places.
fn finish(level: Level, op: &Router, weights: &mut [f32], chosen: &mut [f32]) {
    if op.gating == Gating::SoftmaxOfChosen {
        chosen.copy_from_slice(weights);
        dispatch(level, Weigh { gating: Gating::Softmax, x: chosen, p: weights });
    }
    if op.normalise {
        let total: f32 = weights.iter().sum();
        let total = if total < MIN_WEIGHT_SUM { MIN_WEIGHT_SUM } else { total };
        weights.iter_mut().for_each(|w| *w /= total);
    }
    if op.scale != 1.0 {
        weights.iter_mut().for_each(|w| *w *= op.scale);
    }
}

/// Experts that a table names.
struct TableStep {
    level: Level,
    op: Router,
    logits: Operand,
    keys: Operand,
    table: Operand,
    ids: Operand,
    weights: Operand,
}

impl Step for TableStep {
    fn chunks(&self, cx: &Cx) -> usize {
        cx.rows(&self.logits).n().div_ceil(ROWS)
    }

    fn scratch(&self) -> usize {
        let width = |x: &Operand| x.layout.shape.constant(0).unwrap_or(0);
        width(&self.logits) + width(&self.ids)
    }

    fn run(&self, cx: &Cx, chunk: usize, worker: &mut Worker) {
        let (logits, keys, table) = (cx.rows(&self.logits), cx.rows(&self.keys), cx.rows(&self.table));
        let (ids, weights) = (cx.rows(&self.ids), cx.rows(&self.weights));
        for t in chunk * ROWS..((chunk + 1) * ROWS).min(logits.n()) {
            let x = logits.f32(t);
            let (p, chosen) = worker.scratch.split_at_mut(x.len());
            dispatch(self.level, Weigh { gating: self.op.gating, x, p });
            // SAFETY: row `t` of both results belongs to this chunk.
            let (ids, weights) = unsafe { (ids.i32_mut(t), weights.f32_mut(t)) };
            let named = keys.i32(t).iter().flat_map(|k| table.f32(RouteByTable::row(*k)));
            for ((id, weight), named) in ids.iter_mut().zip(weights.iter_mut()).zip(named) {
                *id = *named as i32;
                *weight = p[*named as usize];
            }
            let used = weights.len();
            finish(self.level, &self.op, weights, &mut chosen[..used]);
        }
    }
}

fn by_table(cx: &mut CompileCx, op: &SegOp) -> Box<dyn Step> {
    let args: Args = cx.args(op);
    let Op::RouteByTable(by) = &op.op else { unreachable!("the table names the op") };
    Box::new(TableStep {
        level: args.level,
        op: by.weights_of(),
        logits: args.input(0),
        keys: args.input(1),
        table: args.input(2),
        ids: args.result(0),
        weights: args.result(1),
    })
}

/// Whether `a` is chosen before `b`, which has a lower number: a NaN is the least.
fn beats(a: f32, b: f32) -> bool {
    a > b || b.is_nan() && !a.is_nan()
}

/// The best by score, ties to the lowest number. A NaN's weight stays NaN.
fn choose(score: &mut [f32], p: &[f32], ids: &mut [i32], weights: &mut [f32]) {
    for u in 0..ids.len() {
        let mut best: Option<usize> = None;
        for i in 0..score.len() {
            let better = best.is_none_or(|b| beats(score[i], score[b]));
            if better && !ids[..u].contains(&(i as i32)) {
                best = Some(i);
            }
        }
        let best = best.expect("fewer are used than there are");
        ids[u] = best as i32;
        weights[u] = p[best];
    }
}

/// Takes the scores of all but the best `used` groups to -infinity; a group counts as the sum of its two best.
fn drop_groups(score: &mut [f32], sums: &mut [f32], used: usize) {
    if sums.len() == used {
        return;
    }
    let width = score.len() / sums.len();
    for (sum, group) in sums.iter_mut().zip(score.chunks(width)) {
        let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
        for &s in group {
            if beats(s, first) {
                (first, second) = (s, first);
            } else if beats(s, second) {
                second = s;
            }
        }
        *sum = if width == 1 { first } else { first + second };
    }
    for (g, group) in score.chunks_mut(width).enumerate() {
        let before = |&o: &usize| if o < g { !beats(sums[g], sums[o]) } else { beats(sums[o], sums[g]) };
        if (0..sums.len()).filter(|o| *o != g && before(o)).count() >= used {
            group.fill(f32::NEG_INFINITY);
        }
    }
}

fn compile(cx: &mut CompileCx, op: &SegOp) -> Box<dyn Step> {
    let args: Args = cx.args(op);
    let Op::Router(router) = &op.op else { unreachable!("the table names the op") };
    Box::new(RouterStep {
        level: args.level,
        op: *router,
        logits: args.input(0),
        bias: (args.inputs.len() == 2).then(|| args.input(1)),
        ids: args.result(0),
        weights: args.result(1),
    })
}

/// The router, and experts that a table names.
pub const KERNELS: [Kernel; 2] = [
    Kernel { op: "router", supports: |_, inputs| dense_rows(inputs), compile },
    Kernel { op: "route_by_table", supports: |_, inputs| dense_rows(inputs), compile: by_table },
];
