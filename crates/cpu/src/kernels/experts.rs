//! The sum of what the chosen experts say.

use firth_graph::SegOp;
use firth_simd::{LANES, Level, Simd, dispatch};

use crate::operand::{Cx, Operand};
use crate::program::CompileCx;
use crate::step::{Args, ByRows, Kernel, RowFn, Step, dense_rows};

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

/// The weighted sum.
pub const KERNELS: [Kernel; 1] =
    [Kernel { op: "moe_sum", supports: |_, inputs| dense_rows(inputs), compile: moe_sum }];
