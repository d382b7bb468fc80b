//! Products with weights in panels.
//!
//! Activations are brought into the form that the weight's type asks for by a step of its own, once per value
//! and form, whatever the number of weights that meet it.

mod experts;
mod packed;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use firth_graph::{Layout, SegOp, Type};
use firth_simd::Level;

use crate::act::{Act, ActLayout, TILE_ROWS};
use crate::operand::{Cx, Operand, Rows};
use crate::panel::{self, OutRows, PanelLayout};
use crate::program::CompileCx;
use crate::step::{Args, Kernel, Step, Worker};
use crate::store::StoredWeight;
use experts::experts;
pub use packed::ActSlots;
use packed::{ActBuffer, n_rows};

/// Bytes of panels that make a chunk in decode: some microseconds of memory traffic.
const CHUNK_BYTES: usize = 64 << 10;

/// Rows that wait for memory rather than for arithmetic.
const FEW_ROWS: usize = 2 * TILE_ROWS;

/// Panels to a chunk: few rows are bound by memory and want long runs, many rows are bound by arithmetic.
fn panels_per_chunk(l: &PanelLayout, rows: usize, threads: usize) -> usize {
    let by_bytes = if rows <= FEW_ROWS { CHUNK_BYTES / l.panel_bytes().max(1) } else { 1 };
    by_bytes.min(l.panels().div_ceil(4 * threads)).max(1)
}

struct MatMul {
    level: Level,
    threads: usize,
    weight: Arc<StoredWeight>,
    x: Operand,
    acts: Arc<ActBuffer>,
    y: Operand,
}

impl Step for MatMul {
    fn chunks(&self, cx: &Cx) -> usize {
        let l = self.weight.layout();
        let rows = n_rows(&self.x.layout, &cx.x);
        if rows == 0 { 0 } else { l.panels().div_ceil(panels_per_chunk(l, rows, self.threads)) }
    }

    fn scratch(&self) -> usize {
        self.weight.scratch_floats()
    }

    fn ahead(&self, cx: &Cx, chunk: usize) -> Option<&[u8]> {
        let rows = n_rows(&self.x.layout, &cx.x);
        let first = chunk * panels_per_chunk(self.weight.layout(), rows, self.threads);
        (rows <= FEW_ROWS).then(|| self.weight.ahead(first)).flatten()
    }

    fn run(&self, cx: &Cx, chunk: usize, worker: &mut Worker) {
        let l = self.weight.layout();
        let y = cx.rows(&self.y);
        let rows = y.n();
        let per = panels_per_chunk(l, rows, self.threads);
        let range = chunk * per..((chunk + 1) * per).min(l.panels());
        let layout = ActLayout { form: l.form(), k: l.k, rows };
        let act = Act { layout, data: self.acts.region.as_slice() };
        let (base, stride) = y.raw();
        // SAFETY: the result is dense, `rows` rows of `stride` bytes; this chunk alone writes these columns.
        let out = unsafe { OutRows::from_raw(base.cast(), (rows - 1) * stride / 4 + l.n, stride / 4) };
        self.weight.product(self.level, 0, range.clone(), &act, out, &mut worker.scratch);
        let columns = range.start * panel::PANEL..(range.end * panel::PANEL).min(l.n);
        for tile in 0..layout.tiles() {
            let bad = self.acts.bad[tile].load(Ordering::Relaxed);
            for r in (0..TILE_ROWS).filter(|r| bad >> r & 1 == 1) {
                // SAFETY: columns of this chunk.
                unsafe { poison(&y, tile * layout.height() + r, &columns) };
            }
        }
    }
}

/// Writes NaN where a row of activations had a value that is not finite: it must show, not vanish in a block.
///
/// # Safety
/// Nobody else writes these columns of the row.
unsafe fn poison(y: &Rows, row: usize, columns: &std::ops::Range<usize>) {
    let [a, b, c] = y.split(row);
    let first = y.element([columns.start, a, b, c]).cast::<f32>();
    for i in 0..columns.len() {
        // SAFETY: by the contract; the columns lie in the row.
        unsafe { first.add(i).write(f32::NAN) };
    }
}

fn mat_mul(cx: &mut CompileCx, op: &SegOp) -> Box<dyn Step> {
    let args: Args = cx.args(op);
    Box::new(MatMul {
        level: args.level,
        threads: cx.threads(),
        weight: cx.weight(op.inputs[0]),
        x: args.input(1),
        acts: cx.acts.buffer(cx, op),
        y: args.result(0),
    })
}

/// A weight that has panels, and activations whose rows are evenly spaced.
fn supports(inputs: &[Type]) -> bool {
    let (Some(w), Some(x)) = (inputs[0].layout(), inputs[1].layout()) else { return false };
    let sizes = w.shape.constant(0).zip(w.shape.constant(1));
    let has_panels = sizes.is_some_and(|(k, n)| PanelLayout::new(w.dtype, k, n).is_some());
    has_panels
        && w.offset == 0
        && evenly_spaced(x)
        && inputs[2..].iter().all(|t| t.layout().is_some_and(|l| l.has_dense_rows()))
}

/// Whether axes 1 to 3 walk memory at one stride.
fn evenly_spaced(l: &Layout) -> bool {
    let n = |i: usize| l.shape.constant(i);
    let joined = |i: usize| n(i + 1) == Some(1) || n(i).is_some_and(|n| l.strides[i + 1] == l.strides[i] * n);
    l.has_dense_rows() && l.strides[1].is_multiple_of(4) && joined(1) && joined(2)
}

/// Products.
pub const KERNELS: [Kernel; 2] = [
    Kernel { op: "mat_mul", supports: |_, inputs| supports(inputs), compile: mat_mul },
    Kernel { op: "mat_mul_experts", supports: |_, inputs| supports(inputs), compile: experts },
];
