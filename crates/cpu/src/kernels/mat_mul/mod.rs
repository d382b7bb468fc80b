//! Products with weights in panels.
//!
//! Activations are brought into the form that the weight's type asks for by a step of its own, once per value
//! and form, whatever the number of weights that meet it.

mod experts;
mod packed;

use std::ops::Range;
use std::sync::Arc;

use firth_graph::{Layout, SegOp, Type};
use firth_simd::{Level, prefetch_far};

use crate::act::{Act, ActLayout, TILE_ROWS};
use crate::operand::{Cx, Operand, Rows};
use crate::panel::{self, OutRows, PanelLayout, Product};
use crate::pool::own_chunks;
use crate::program::CompileCx;
use crate::step::{Args, Kernel, Step, Worker};
use crate::store::StoredWeight;
use experts::experts;
pub use packed::ActSlots;
use packed::{ActBuffer, n_rows};

/// Bytes of panels that make a chunk in decode at least: some microseconds of memory traffic.
const CHUNK_BYTES: usize = 64 << 10;
/// Bytes of panels that make a chunk in decode at most: what is left to share out when a thread falls behind.
const LONG_CHUNK_BYTES: usize = 1 << 20;

/// Rows that wait for memory rather than for arithmetic.
const FEW_ROWS: usize = 2 * TILE_ROWS;

/// Panels to a chunk: few rows are bound by memory and want long runs, many rows are bound by arithmetic.
fn panels_per_chunk(l: &PanelLayout, rows: usize, threads: usize) -> usize {
    let by_bytes = if rows <= FEW_ROWS { CHUNK_BYTES / l.panel_bytes().max(1) } else { 1 };
    by_bytes.min(l.panels().div_ceil(4 * threads)).max(1)
}

/// Rows of a block: so many that reading a panel once more for another block costs little.
const BLOCK_ROWS: usize = 192;

/// How a product is cut into chunks: blocks of rows, the rows of a thread as in the ops around it, so that it reads what
/// it wrote itself; of each block stretches of panels.
struct Cut {
    /// The rows of all blocks.
    layout: ActLayout,
    blocks: usize,
    /// Stretches of panels of a block.
    parts: usize,
    stretches: Stretches,
}

/// Stretches of panels that are chunks.
enum Stretches {
    /// Of equal length.
    Equal(usize),
    /// For each thread long ones first: a stretch begins slowly, for the hardware has to recognise it. The last ones are
    /// short and even out how fast threads are.
    Falling { threads: usize, long: usize, n_long: usize, n_falling: usize },
}

impl Stretches {
    fn falling(l: &PanelLayout, threads: usize) -> Self {
        let (share, bytes) = (l.panels() / threads, l.panel_bytes().max(1));
        let long = (LONG_CHUNK_BYTES / bytes).max(1);
        let n_long = (share / long).saturating_sub(2);
        let short = (CHUNK_BYTES / bytes).max(1);
        let n_falling = 1 + ((share - n_long * long) / short).max(1).ilog2() as usize / 2;
        Stretches::Falling { threads, long, n_long, n_falling }
    }

    fn count(&self, panels: usize) -> usize {
        match self {
            Self::Equal(n) => panels.div_ceil(*n),
            Self::Falling { threads, n_long, n_falling, .. } => threads * (n_long + n_falling),
        }
    }

    /// Stretch `i` of `panels`; may be empty where threads are more than panels.
    fn get(&self, i: usize, panels: usize) -> Range<usize> {
        match *self {
            Self::Equal(n) => i * n..((i + 1) * n).min(panels),
            Self::Falling { threads, long, n_long, n_falling } => {
                let own = own_chunks(panels, i / (n_long + n_falling), threads);
                let i = i % (n_long + n_falling);
                if i < n_long {
                    return own.start + i * long..own.start + (i + 1) * long;
                }
                // Each three quarters of what is left, the last all of it.
                let (i, left) = (i - n_long, own.len() - n_long * long);
                let end = if i + 1 == n_falling { own.end } else { own.end - (left >> (2 * (i + 1))) };
                own.end - (left >> (2 * i))..end
            }
        }
    }
}

impl Cut {
    fn new(l: &PanelLayout, rows: usize, threads: usize) -> Self {
        let blocks = (rows / BLOCK_ROWS).clamp(1, threads);
        let stretches = match rows <= FEW_ROWS {
            true => Stretches::falling(l, threads),
            false => Stretches::Equal(panels_per_chunk(l, rows, threads)),
        };
        let layout = ActLayout { form: l.form(), k: l.k, rows };
        Cut { layout, blocks, parts: stretches.count(l.panels()), stretches }
    }

    fn chunks(&self) -> usize {
        if self.layout.rows == 0 { 0 } else { self.blocks * self.parts }
    }

    /// The tiles and the panels of a chunk.
    fn of(&self, chunk: usize, panels: usize) -> (Range<usize>, Range<usize>) {
        let (block, part) = (chunk / self.parts, chunk % self.parts);
        (own_chunks(self.layout.tiles(), block, self.blocks), self.stretches.get(part, panels))
    }

    /// Tiles of a block by themselves: as high as among all, since they are many or all.
    fn alone(&self, tiles: &Range<usize>) -> ActLayout {
        let (all, last) = (self.layout, tiles.end - 1);
        ActLayout { rows: (last - tiles.start) * all.height() + all.tile_rows(last), ..all }
    }
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
        Cut::new(self.weight.layout(), n_rows(&self.x.layout, &cx.x), self.threads).chunks()
    }

    fn scratch(&self) -> usize {
        self.weight.scratch_floats()
    }

    fn ahead(&self, cx: &Cx, chunk: usize) -> Option<&[u8]> {
        let (rows, l) = (n_rows(&self.x.layout, &cx.x), self.weight.layout());
        let panels = Cut::new(l, rows, self.threads).of(chunk, l.panels()).1;
        (rows <= FEW_ROWS && !panels.is_empty()).then(|| self.weight.ahead(panels.start)).flatten()
    }

    fn run(&self, cx: &Cx, chunk: usize, worker: &mut Worker) {
        let l = self.weight.layout();
        let y = cx.rows(&self.y);
        let cut = Cut::new(l, y.n(), self.threads);
        let (tiles, range) = cut.of(chunk, l.panels());
        if range.is_empty() {
            return;
        }
        let (all, layout, height) = (cut.layout, cut.alone(&tiles), cut.layout.height());
        let first = tiles.start * height;
        assert_eq!(layout.height(), height, "tiles of a block are those of all rows");
        let act = Act { layout, data: &self.acts.region.as_slice()[all.tile_range(tiles.start).start..] };
        if layout.rows == 1 {
            // Its lines are in another core's cache: all at once, not one by one beside the first panel.
            let lines = act.data[..all.tile_range(0).len()].chunks(64);
            lines.for_each(|line| prefetch_far(line.as_ptr()));
        }
        let (base, stride) = y.raw();
        // SAFETY: the result is dense, rows of `stride` bytes; this chunk alone writes these columns of these rows.
        let out = unsafe {
            let base = base.add(first * stride).cast();
            OutRows::from_raw(base, (layout.rows - 1) * stride / 4 + l.n, stride / 4)
        };
        let product = Product { level: self.level, range: range.clone(), act, out };
        self.weight.product(0, product, &mut worker.scratch);
        let columns = range.start * panel::PANEL..(range.end * panel::PANEL).min(l.n);
        for tile in tiles {
            let bad = self.acts.bad(tile, all.rows);
            for r in (0..TILE_ROWS).filter(|r| bad >> r & 1 == 1) {
                // SAFETY: columns of this chunk.
                unsafe { poison(&y, tile * height + r, &columns) };
            }
        }
    }
}

/// Writes NaN where a row of activations had a value that is not finite: it must show, not vanish in a block.
///
/// # Safety
/// Nobody else writes these columns of the row.
unsafe fn poison(y: &Rows, row: usize, columns: &Range<usize>) {
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

#[cfg(test)]
mod tests {
    use firth_quant::Dtype;

    use super::*;

    #[test]
    fn chunks_of_a_product_cover_it_once() {
        let shape = |n: usize| PanelLayout::new(Dtype::Q4_K, 512, n).unwrap();
        let all = [0, 1, 7, 12, 13, 191, 384, 385, 389, 512, 577, 1030, 5569].map(|rows| (1000, rows));
        for (n, rows) in all.into_iter().chain([(1, 1), (32, 2), (3000, 1), (12_345, 1), (40_000, 3)]) {
            let l = shape(n);
            for threads in [1, 2, 3, 16, 29] {
                let cut = Cut::new(&l, rows, threads);
                let mut seen = vec![0; cut.layout.tiles() * l.panels()];
                for chunk in 0..cut.chunks() {
                    let (tiles, panels) = cut.of(chunk, l.panels());
                    let heights = (cut.alone(&tiles).height(), cut.layout.height());
                    assert_eq!(heights.0, heights.1, "{rows} rows, {threads} threads");
                    for tile in tiles {
                        panels.clone().for_each(|p| seen[tile * l.panels() + p] += 1);
                    }
                }
                assert!(
                    rows == 0 || seen.iter().all(|n| *n == 1),
                    "{rows} rows, {threads} threads: {seen:?}"
                );
            }
        }
    }
}
