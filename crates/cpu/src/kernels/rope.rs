//! Rope.

use firth_graph::{Op, RopePairs, SegOp};
use firth_simd::{LANES, Level, Simd, dispatch};

use crate::operand::{Cx, Operand};
use crate::program::CompileCx;
use crate::step::{Args, ByRows, Kernel, RowFn, Step, dense_rows};

/// One head: the halves of each pair are `x0` and `x1`.
struct Half<'a> {
    x: &'a [f32],
    cos: &'a [f32],
    sin: &'a [f32],
    y: &'a mut [f32],
}

impl firth_simd::Kernel for Half<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.cos.len();
        let (y0, y1) = self.y[..2 * n].split_at_mut(n);
        for i in (0..n).step_by(LANES) {
            let to = (i + LANES).min(n);
            let load = |v: &[f32]| s.load_partial(v, 0.0);
            let (x0, x1) = (load(&self.x[i..to]), load(&self.x[n + i..n + to]));
            let (c, sn) = (load(&self.cos[i..to]), load(&self.sin[i..to]));
            s.store_partial(&mut y0[i..to], s.fma(x0, c, s.neg(s.mul(x1, sn))));
            s.store_partial(&mut y1[i..to], s.fma(x0, sn, s.mul(x1, c)));
        }
    }
}

/// The same for adjacent pairs, which lie mixed: one pair at a time, vectorised by the compiler.
struct Adjacent<'a>(Half<'a>);

impl firth_simd::Kernel for Adjacent<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, _s: S) {
        let Half { x, cos, sin, y } = self.0;
        for (((x, y), c), s) in x.as_chunks::<2>().0.iter().zip(y.as_chunks_mut::<2>().0).zip(cos).zip(sin) {
            y[0] = x[0].mul_add(*c, -(x[1] * s));
            y[1] = x[0].mul_add(*s, x[1] * c);
        }
    }
}

struct Rope {
    level: Level,
    pairs: RopePairs,
    n_rot: usize,
    x: Operand,
    table: Operand,
    pos: Operand,
    y: Operand,
}

impl RowFn for Rope {
    fn row(&self, cx: &Cx, r: usize) {
        let (x, table, pos, out) =
            (cx.rows(&self.x), cx.rows(&self.table), cx.rows(&self.pos), cx.rows(&self.y));
        let i = out.split(r);
        // SAFETY: row `r` belongs to this chunk.
        let y = unsafe { out.f32_mut(r) };
        let x = x.f32_at(i);
        y[self.n_rot..].copy_from_slice(&x[self.n_rot..]);
        let (cos, sin) = table.f32(pos.i32(0)[i[1]] as usize).split_at(self.n_rot / 2);
        let half = Half { x, cos, sin, y };
        match self.pairs {
            RopePairs::Half => dispatch(self.level, half),
            RopePairs::Adjacent => dispatch(self.level, Adjacent(half)),
        }
    }
}

fn compile(cx: &mut CompileCx, op: &SegOp) -> Box<dyn Step> {
    let args: Args = cx.args(op);
    let Op::Rope(rope) = &op.op else { unreachable!("the table names the op") };
    let y = args.result(0);
    let f = Rope {
        level: args.level,
        pairs: rope.pairs,
        n_rot: rope.n_rot,
        x: args.input(0),
        table: args.input(1),
        pos: args.input(2),
        y: y.clone(),
    };
    ByRows::boxed(f, &y)
}

/// Rope.
pub const KERNELS: [Kernel; 1] = [Kernel { op: "rope", supports: |_, inputs| dense_rows(inputs), compile }];
