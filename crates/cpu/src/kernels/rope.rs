//! Rope.

use firth_graph::{Op, RopePairs, SegOp};
use firth_simd::{LANES, Simd};

use crate::operand::{Cx, Operand, Rows};
use crate::program::CompileCx;
use crate::step::{Args, Kernel, LaneFn, Step, by_lanes, dense_rows};

/// One head: the halves of each pair are `x0` and `x1`.
#[inline(always)]
fn halves<S: Simd>(s: S, x: &[f32], cos: &[f32], sin: &[f32], y: &mut [f32]) {
    let n = cos.len();
    let (y0, y1) = y[..2 * n].split_at_mut(n);
    for i in (0..n).step_by(LANES) {
        let to = (i + LANES).min(n);
        let (x0, x1) = (s.load_partial(&x[i..to], 0.0), s.load_partial(&x[n + i..n + to], 0.0));
        let (c, sn) = (s.load_partial(&cos[i..to], 0.0), s.load_partial(&sin[i..to], 0.0));
        s.store_partial(&mut y0[i..to], s.fma(x0, c, s.neg(s.mul(x1, sn))));
        s.store_partial(&mut y1[i..to], s.fma(x0, sn, s.mul(x1, c)));
    }
}

/// The same for adjacent pairs, which lie mixed: one pair at a time, vectorised by the compiler.
#[inline(always)]
fn adjacent(x: &[f32], cos: &[f32], sin: &[f32], y: &mut [f32]) {
    for (((x, y), c), s) in x.as_chunks::<2>().0.iter().zip(y.as_chunks_mut::<2>().0).zip(cos).zip(sin) {
        y[0] = x[0].mul_add(*c, -(x[1] * s));
        y[1] = x[0].mul_add(*s, x[1] * c);
    }
}

struct Rope {
    pairs: RopePairs,
    n_rot: usize,
    x: Operand,
    table: Operand,
    pos: Operand,
    y: Operand,
}

impl LaneFn for Rope {
    /// Rows, table, positions, results.
    type Tensors = [Rows; 4];

    fn tensors(&self, cx: &Cx) -> [Rows; 4] {
        [&self.x, &self.table, &self.pos, &self.y].map(|o| cx.rows(o))
    }

    #[inline(always)]
    unsafe fn row<S: Simd>(&self, s: S, [x, table, pos, y]: &[Rows; 4], i: [usize; 3]) {
        // SAFETY: the row is the caller's.
        let y = unsafe { y.f32_mut_at(i) };
        let x = x.f32_at(i);
        y[self.n_rot..].copy_from_slice(&x[self.n_rot..]);
        let (cos, sin) = table.f32(pos.i32(0)[i[1]] as usize).split_at(self.n_rot / 2);
        match self.pairs {
            RopePairs::Half => halves(s, x, cos, sin, y),
            RopePairs::Adjacent => adjacent(x, cos, sin, y),
        }
    }
}

fn compile(cx: &mut CompileCx, op: &SegOp) -> Box<dyn Step> {
    let args: Args = cx.args(op);
    let Op::Rope(rope) = &op.op else { unreachable!("the table names the op") };
    let y = args.result(0);
    let f = Rope {
        pairs: rope.pairs,
        n_rot: rope.n_rot,
        x: args.input(0),
        table: args.input(1),
        pos: args.input(2),
        y: y.clone(),
    };
    by_lanes(f, args.level, &y)
}

/// Rope.
pub const KERNELS: [Kernel; 1] = [Kernel { op: "rope", supports: |_, inputs| dense_rows(inputs), compile }];
