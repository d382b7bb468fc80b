//! Products with weights in panels.
//!
//! Activations are brought into the form that the weight's type asks for by a step of its own, once per value
//! and form, whatever the number of weights that meet it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use firth_graph::{Extents, Layout, LoadError, Op, Place, SegOp, Segment, Type};
use firth_simd::Level;

use crate::act::{Act, ActLayout, Form, RowSource, TILE_ROWS, fill_tile};
use crate::device::Shared;
use crate::memory::Region;
use crate::operand::{Cx, Operand, Rows};
use crate::panel::{self, OutRows, PanelLayout};
use crate::program::CompileCx;
use crate::step::{Args, Kernel, Step, Worker};
use crate::store::StoredWeight;

/// How the rows of a value are grouped in a buffer: tiles of six for a matrix, single rows for experts, whose
/// rows go to different weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grouping {
    Tiles,
    Singles,
}

/// Activations of one value in one form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    value: usize,
    form: Form,
    grouping: Grouping,
}

/// A buffer of packed activations.
pub struct ActBuffer {
    region: Region,
    /// Rows of each tile that hold a NaN or an infinity, a bit each.
    bad: Vec<AtomicU8>,
}

struct Entry {
    key: Key,
    /// First and last op that reads it.
    life: (usize, usize),
    slot: usize,
}

/// The buffers of a program: a value's activations live from the first product that reads them to the last.
pub struct ActSlots {
    entries: Vec<Entry>,
    buffers: Vec<Arc<ActBuffer>>,
}

fn key_of(segment: &Segment, op: &SegOp, shared: &Shared) -> Option<(Key, PanelLayout)> {
    let grouping = match op.op {
        Op::MatMul(_) => Grouping::Tiles,
        Op::MatMulExperts(_) => Grouping::Singles,
        _ => return None,
    };
    let Place::Weight(w) = segment.values[op.inputs[0]].place else { return None };
    let weight = shared.weight(segment.weights[w]);
    let layout = *weight.panels(0).0;
    Some((Key { value: op.inputs[1], form: layout.form(), grouping }, layout))
}

fn tensor(segment: &Segment, value: usize) -> Layout {
    *segment.values[value].ty.layout().expect("an operand of a product is a tensor")
}

fn n_rows(l: &Layout, x: &Extents) -> usize {
    l.shape.dims(x)[1..].iter().product()
}

impl ActSlots {
    /// Gives each value and form a buffer; buffers are shared by lives that do not meet.
    pub fn plan(segment: &Segment, shared: &Shared) -> Result<Self, LoadError> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut bytes: Vec<(usize, usize)> = Vec::new();
        for (i, op) in segment.ops.iter().enumerate() {
            let Some((key, _)) = key_of(segment, op, shared) else { continue };
            match entries.iter_mut().find(|e| e.key == key) {
                Some(e) => e.life.1 = i,
                None => entries.push(Entry { key, life: (i, i), slot: usize::MAX }),
            }
        }
        for i in 0..entries.len() {
            let (key, life) = (entries[i].key, entries[i].life);
            let busy = |s: usize| entries[..i].iter().any(|e| e.slot == s && e.life.1 >= life.0);
            let slot = (0..bytes.len()).find(|s| !busy(*s)).unwrap_or(bytes.len());
            let l = tensor(segment, key.value);
            let (rows, k) = (n_rows(&l, &segment.bounds), l.shape.constant(0).unwrap_or(0));
            let need = (ActLayout::bytes(key.form, k, rows), rows);
            match bytes.get_mut(slot) {
                Some(b) => *b = (b.0.max(need.0), b.1.max(need.1)),
                None => bytes.push(need),
            }
            entries[i].slot = slot;
        }
        let buffer = |&(len, rows): &(usize, usize)| {
            let region = shared.region(len + 64, "packed activations")?;
            Ok(Arc::new(ActBuffer { region, bad: (0..rows).map(|_| AtomicU8::new(0)).collect() }))
        };
        Ok(ActSlots { buffers: bytes.iter().map(buffer).collect::<Result<_, LoadError>>()?, entries })
    }

    /// Bytes of all buffers.
    pub fn bytes(&self) -> u64 {
        self.buffers.iter().map(|b| b.region.len() as u64).sum()
    }

    /// The buffer that `op` reads, by number.
    pub fn slot(&self, cx: &CompileCx, op: &SegOp) -> Option<usize> {
        Some(self.entry(cx, op)?.slot)
    }

    /// The step that fills the buffer that `op` reads, where `op` is the first to read it.
    pub fn quantiser(&self, cx: &CompileCx, op: &SegOp) -> Option<Box<dyn Step>> {
        let entry = self.entry(cx, op)?;
        if entry.life.0 != cx.op {
            return None;
        }
        let x = cx.args(op).input(1);
        let k = x.layout.shape.constant(0).unwrap_or(0);
        let buffer = self.buffers[entry.slot].clone();
        Some(Box::new(Quantise { level: cx.level(), key: entry.key, k, x, buffer }))
    }

    fn entry(&self, cx: &CompileCx, op: &SegOp) -> Option<&Entry> {
        let (value, experts) = match op.op {
            Op::MatMul(_) => (op.inputs[1], Grouping::Tiles),
            Op::MatMulExperts(_) => (op.inputs[1], Grouping::Singles),
            _ => return None,
        };
        let weight = cx.weight(op.inputs[0]);
        let key = Key { value, form: weight.panels(0).0.form(), grouping: experts };
        self.entries.iter().find(|e| e.key == key)
    }

    fn buffer(&self, cx: &CompileCx, op: &SegOp) -> Arc<ActBuffer> {
        let entry = self.entry(cx, op).expect("every product's activations were planned");
        self.buffers[entry.slot].clone()
    }
}

/// All rows of an operand as one strided matrix.
fn matrix(x: &Rows) -> RowSource<'_> {
    let (base, stride) = x.raw();
    let (n, k) = (x.n(), x.width());
    if n == 0 {
        return RowSource { data: &[], stride: 0, index: None };
    }
    // SAFETY: rows are evenly spaced (`supports` asked for it), the plan proved the reach of the last, and no
    // step writes its operand.
    let data = unsafe { std::slice::from_raw_parts(base.cast::<f32>(), (n - 1) * stride / 4 + k) };
    RowSource { data, stride: stride / 4, index: None }
}

struct Quantise {
    level: Level,
    key: Key,
    k: usize,
    x: Operand,
    buffer: Arc<ActBuffer>,
}

impl Quantise {
    /// Rows that one piece (a tile, or a single row) may hold, and pieces to a chunk.
    fn piece(&self) -> (usize, usize) {
        match self.key.grouping {
            Grouping::Tiles => (TILE_ROWS, (4096 / (self.k * TILE_ROWS).max(1)).max(1)),
            Grouping::Singles => (1, (4096 / self.k.max(1)).max(1)),
        }
    }
}

impl Step for Quantise {
    fn chunks(&self, cx: &Cx) -> usize {
        let (rows, pieces) = self.piece();
        cx.rows(&self.x).n().div_ceil(rows).div_ceil(pieces)
    }

    fn run(&self, cx: &Cx, chunk: usize, _worker: &mut Worker) {
        let x = cx.rows(&self.x);
        let n = x.n();
        let (rows, pieces) = self.piece();
        for piece in chunk * pieces..((chunk + 1) * pieces).min(n.div_ceil(rows)) {
            let all = ActLayout { form: self.key.form, k: self.k, rows: n };
            let (layout, tile, range) = match self.key.grouping {
                Grouping::Tiles => (all, piece, all.tile_range(piece)),
                Grouping::Singles => {
                    let one = ActLayout { rows: 1, ..all };
                    let len = one.tile_range(0).len();
                    (one, 0, piece * len..(piece + 1) * len)
                }
            };
            assert!(range.end <= self.buffer.region.len(), "a tile lies in the buffer");
            // SAFETY: the range lies in the buffer, and pieces are disjoint.
            let dst = unsafe {
                std::slice::from_raw_parts_mut(self.buffer.region.ptr().add(range.start), range.len())
            };
            let mut src = matrix(&x);
            if self.key.grouping == Grouping::Singles {
                src.data = &src.data[piece * src.stride..];
            }
            let bad = fill_tile(self.level, &layout, tile, src, dst);
            self.buffer.bad[piece].store(bad, Ordering::Relaxed);
        }
    }
}

/// Bytes of panels that make a chunk in decode: some microseconds of memory traffic.
const CHUNK_BYTES: usize = 64 << 10;

/// Panels to a chunk: few rows are bound by memory and want long runs, many rows are bound by arithmetic.
fn panels_per_chunk(l: &PanelLayout, rows: usize, threads: usize) -> usize {
    let by_bytes = if rows <= TILE_ROWS { CHUNK_BYTES / l.panel_bytes().max(1) } else { 1 };
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
        let l = self.weight.panels(0).0;
        let rows = n_rows(&self.x.layout, &cx.x);
        if rows == 0 { 0 } else { l.panels().div_ceil(panels_per_chunk(l, rows, self.threads)) }
    }

    fn scratch(&self) -> usize {
        self.weight.panels(0).0.scratch_floats()
    }

    fn ahead(&self, cx: &Cx, chunk: usize) -> Option<&[u8]> {
        let (l, panels) = self.weight.panels(0);
        let rows = n_rows(&self.x.layout, &cx.x);
        let first = chunk * panels_per_chunk(l, rows, self.threads) * l.panel_bytes();
        (rows <= TILE_ROWS).then(|| panels.get(first..)).flatten()
    }

    fn run(&self, cx: &Cx, chunk: usize, worker: &mut Worker) {
        let (l, panels) = self.weight.panels(0);
        let y = cx.rows(&self.y);
        let rows = y.n();
        let per = panels_per_chunk(l, rows, self.threads);
        let range = chunk * per..((chunk + 1) * per).min(l.panels());
        let layout = ActLayout { form: l.form(), k: l.k, rows };
        let act = Act { layout, data: self.acts.region.as_slice() };
        let (base, stride) = y.raw();
        // SAFETY: the result is dense, `rows` rows of `stride` bytes; this chunk alone writes these columns.
        let out = unsafe { OutRows::from_raw(base.cast(), (rows - 1) * stride / 4 + l.n, stride / 4) };
        panel::matmul(self.level, l, panels, range.clone(), &act, out, &mut worker.scratch);
        let columns = range.start * panel::PANEL..(range.end * panel::PANEL).min(l.n);
        for tile in 0..layout.tiles() {
            let bad = self.acts.bad[tile].load(Ordering::Relaxed);
            for r in (0..TILE_ROWS).filter(|r| bad >> r & 1 == 1) {
                // SAFETY: columns of this chunk.
                unsafe { poison(&y, tile * TILE_ROWS + r, &columns) };
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

/// Products of single rows with the experts that they chose. Rows are taken expert by expert, so that an
/// expert's panels are read from memory once.
struct Experts {
    level: Level,
    threads: usize,
    weight: Arc<StoredWeight>,
    x: Operand,
    /// Without them a row meets the matrix of its place.
    ids: Option<Operand>,
    acts: Arc<ActBuffer>,
    y: Operand,
}

impl Step for Experts {
    fn chunks(&self, cx: &Cx) -> usize {
        let l = self.weight.panels(0).0;
        if cx.rows(&self.y).n() == 0 { 0 } else { l.panels().div_ceil(panels_per_chunk(l, 1, self.threads)) }
    }

    fn scratch(&self) -> usize {
        self.weight.panels(0).0.scratch_floats()
    }

    fn run(&self, cx: &Cx, chunk: usize, worker: &mut Worker) {
        let (y, ids) = (cx.rows(&self.y), self.ids.as_ref().map(|ids| cx.rows(ids)));
        let (used, shared) = (y.dims[1], self.x.layout.shape.constant(1) == Some(1));
        let l = *self.weight.panels(0).0;
        let per = panels_per_chunk(&l, 1, self.threads);
        let range = chunk * per..((chunk + 1) * per).min(l.panels());
        let layout = ActLayout { form: l.form(), k: l.k, rows: 1 };
        let len = layout.tile_range(0).len();
        let columns = range.start * panel::PANEL..(range.end * panel::PANEL).min(l.n);
        for e in 0..self.weight.n_matrices() {
            for r in 0..y.n() {
                let chosen = ids.as_ref().map_or(r % used, |ids| ids.i32(r / used)[r % used] as usize);
                if chosen != e {
                    continue;
                }
                let from = if shared && used > 1 { r / used } else { r };
                let act = Act { layout, data: &self.acts.region.as_slice()[from * len..(from + 1) * len] };
                let [a, b, c] = y.split(r);
                let base = y.element([0, a, b, c]).cast();
                // SAFETY: one row of the result; this chunk alone writes these columns of it.
                let out = unsafe { OutRows::from_raw(base, l.n, l.n) };
                panel::matmul(
                    self.level,
                    &l,
                    self.weight.panels(e).1,
                    range.clone(),
                    &act,
                    out,
                    &mut worker.scratch,
                );
                if self.acts.bad[from].load(Ordering::Relaxed) != 0 {
                    // SAFETY: as above.
                    unsafe { poison(&y, r, &columns) };
                }
            }
        }
    }
}

fn experts(cx: &mut CompileCx, op: &SegOp) -> Box<dyn Step> {
    let args: Args = cx.args(op);
    Box::new(Experts {
        level: args.level,
        threads: cx.threads(),
        weight: cx.weight(op.inputs[0]),
        x: args.input(1),
        ids: (op.inputs.len() > 2).then(|| args.input(2)),
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
