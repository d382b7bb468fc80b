//! Ops that move rows: copies, rows by index, embedding rows.

use std::sync::Arc;

use firth_graph::{Op, SegOp};
use firth_simd::{LANES, Level, Simd, dispatch};

use crate::operand::{Cx, Operand};
use crate::program::CompileCx;
use crate::step::{Args, ByRows, Kernel, RowFn, Step, Worker, dense_rows};
use crate::store::StoredWeight;

/// The dense copy of any view, of any dtype.
struct Copy {
    x: Operand,
    y: Operand,
}

impl RowFn for Copy {
    fn row(&self, cx: &Cx, r: usize) {
        let (x, y) = (cx.rows(&self.x), cx.rows(&self.y));
        let i = y.split(r);
        let unit = self.x.layout.unit();
        let n = y.dims[0].div_ceil(self.x.layout.dtype.block_len());
        if n == 0 {
            return;
        }
        let (from, to) = (x.element([0, i[0], i[1], i[2]]), y.element([0, i[0], i[1], i[2]]));
        let stride = x.strides[0];
        for k in 0..n {
            // SAFETY: block `k` of a row of each operand: the plan proved the reach of both, the row of `y`
            // belongs to this chunk, and a result does not overlap an operand.
            unsafe {
                std::ptr::copy_nonoverlapping(from.wrapping_add(k * stride), to.wrapping_add(k * unit), unit)
            };
        }
    }
}

fn copy(cx: &mut CompileCx, op: &SegOp) -> Box<dyn Step> {
    let args: Args = cx.args(op);
    let y = args.result(0);
    ByRows::boxed(Copy { x: args.input(0), y: y.clone() }, &y)
}

/// Rows by index.
struct Select {
    x: Operand,
    idx: Operand,
    y: Operand,
}

impl RowFn for Select {
    fn row(&self, cx: &Cx, r: usize) {
        let (x, idx, y) = (cx.rows(&self.x), cx.rows(&self.idx), cx.rows(&self.y));
        // SAFETY: row `r` belongs to this chunk.
        let out = unsafe { y.f32_mut(r) };
        let list = idx.width();
        out.copy_from_slice(x.f32(idx.i32(r / list)[r % list] as usize));
    }
}

fn select(cx: &mut CompileCx, op: &SegOp) -> Box<dyn Step> {
    let args: Args = cx.args(op);
    let y = args.result(0);
    ByRows::boxed(Select { x: args.input(0), idx: args.input(1), y: y.clone() }, &y)
}

/// Rows replaced by index. Each row of the result looks for the last index that names it.
struct Write {
    base: Operand,
    rows: Operand,
    idx: Operand,
    y: Operand,
}

impl RowFn for Write {
    fn row(&self, cx: &Cx, r: usize) {
        let (base, rows, idx, y) =
            (cx.rows(&self.base), cx.rows(&self.rows), cx.rows(&self.idx), cx.rows(&self.y));
        // SAFETY: row `r` belongs to this chunk.
        let out = unsafe { y.f32_mut(r) };
        match idx.i32(0).iter().rposition(|i| *i as usize == r) {
            Some(b) => out.copy_from_slice(rows.f32(b)),
            None => out.copy_from_slice(base.f32(r)),
        }
    }
}

fn write(cx: &mut CompileCx, op: &SegOp) -> Box<dyn Step> {
    let args: Args = cx.args(op);
    let y = args.result(0);
    let f = Write { base: args.input(0), rows: args.input(1), idx: args.input(2), y: y.clone() };
    ByRows::boxed(f, &y)
}

/// Rows joined end to end.
struct Concat {
    parts: Vec<Operand>,
    y: Operand,
}

impl RowFn for Concat {
    fn row(&self, cx: &Cx, r: usize) {
        let y = cx.rows(&self.y);
        let i = y.split(r);
        // SAFETY: row `r` belongs to this chunk.
        let mut out = unsafe { y.f32_mut(r) };
        for part in &self.parts {
            let part = cx.rows(part);
            let (to, rest) = out.split_at_mut(part.width());
            to.copy_from_slice(part.f32_at(i));
            out = rest;
        }
    }
}

fn concat(cx: &mut CompileCx, op: &SegOp) -> Box<dyn Step> {
    let args: Args = cx.args(op);
    let y = args.result(0);
    let parts = (0..args.inputs.len()).map(|i| args.input(i)).collect();
    ByRows::boxed(Concat { parts, y: y.clone() }, &y)
}

/// Embedding rows, decoded from the weight's own layout.
struct Embed {
    level: Level,
    scale: f32,
    table: Arc<StoredWeight>,
    tokens: Operand,
    rows: Operand,
    y: Operand,
}

struct ScaleRow<'a> {
    by: f32,
    y: &'a mut [f32],
}

impl firth_simd::Kernel for ScaleRow<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let by = s.splat(self.by);
        for y in self.y.chunks_mut(LANES) {
            let v = s.load_partial(y, 0.0);
            s.store_partial(y, s.mul(v, by));
        }
    }
}

impl Step for Embed {
    fn chunks(&self, cx: &Cx) -> usize {
        cx.rows(&self.y).n().div_ceil(8)
    }

    fn run(&self, cx: &Cx, chunk: usize, _worker: &mut Worker) {
        let (tokens, rows, y) = (cx.rows(&self.tokens), cx.rows(&self.rows), cx.rows(&self.y));
        let ids = tokens.i32(0);
        for t in chunk * 8..((chunk + 1) * 8).min(y.n()) {
            // SAFETY: row `t` belongs to this chunk.
            let out = unsafe { y.f32_mut(t) };
            match usize::try_from(ids[t]) {
                Ok(id) => {
                    self.table.row(id, out);
                    if self.scale != 1.0 {
                        dispatch(self.level, ScaleRow { by: self.scale, y: out });
                    }
                }
                Err(_) => out.copy_from_slice(rows.f32(t)),
            }
        }
    }
}

fn embed(cx: &mut CompileCx, op: &SegOp) -> Box<dyn Step> {
    let table = cx.weight(op.inputs[0]);
    let args: Args = cx.args(op);
    let Op::Embed(e) = &op.op else { unreachable!("the table names the op") };
    let (tokens, rows, y) = (args.input(1), args.input(2), args.result(0));
    Box::new(Embed { level: args.level, scale: e.scale, table, tokens, rows, y })
}

/// Copies and rows by index.
pub const KERNELS: [Kernel; 5] = [
    Kernel { op: "copy", supports: |_, _| true, compile: copy },
    Kernel { op: "concat", supports: |_, inputs| dense_rows(inputs), compile: concat },
    Kernel { op: "row_select", supports: |_, inputs| dense_rows(inputs), compile: select },
    Kernel { op: "row_write", supports: |_, inputs| dense_rows(inputs), compile: write },
    Kernel { op: "embed", supports: |_, inputs| dense_rows(inputs), compile: embed },
];
