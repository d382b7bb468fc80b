//! Activations in the forms that weights ask for: buffers shared out at load, and the steps that fill them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use firth_graph::{Extents, Layout, LoadError, Op, Place, SegOp, Segment};
use firth_simd::Level;

use crate::act::{ActLayout, Form, RowSource, fill_tile};
use crate::device::Shared;
use crate::memory::Region;
use crate::operand::{Cx, Operand, Rows};
use crate::panel::PanelLayout;
use crate::program::CompileCx;
use crate::step::{Step, Worker};

/// How the rows of a value are grouped in a buffer: tiles for a matrix, single rows for experts, whose
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
    /// The tiles.
    pub region: Region,
    /// Rows of each tile that hold a NaN or an infinity, a bit each.
    pub bad: Vec<AtomicU8>,
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
    let layout = *weight.layout();
    Some((Key { value: op.inputs[1], form: layout.form(), grouping }, layout))
}

fn tensor(segment: &Segment, value: usize) -> Layout {
    *segment.values[value].ty.layout().expect("an operand of a product is a tensor")
}

/// Rows of a tensor in a step.
pub fn n_rows(l: &Layout, x: &Extents) -> usize {
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
        let key = Key { value, form: weight.layout().form(), grouping: experts };
        self.entries.iter().find(|e| e.key == key)
    }

    /// The buffer that `op` reads.
    pub fn buffer(&self, cx: &CompileCx, op: &SegOp) -> Arc<ActBuffer> {
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
    /// Rows of a piece (a tile, or a single row) of `n` rows, and pieces to a chunk.
    fn piece(&self, n: usize) -> (usize, usize) {
        let rows = match self.key.grouping {
            Grouping::Tiles => self.all(n).height(),
            Grouping::Singles => 1,
        };
        (rows, (4096 / (self.k * rows).max(1)).max(1))
    }

    fn all(&self, rows: usize) -> ActLayout {
        ActLayout { form: self.key.form, k: self.k, rows }
    }
}

impl Step for Quantise {
    fn chunks(&self, cx: &Cx) -> usize {
        let n = cx.rows(&self.x).n();
        let (rows, pieces) = self.piece(n);
        n.div_ceil(rows).div_ceil(pieces)
    }

    fn run(&self, cx: &Cx, chunk: usize, _worker: &mut Worker) {
        let x = cx.rows(&self.x);
        let n = x.n();
        let (rows, pieces) = self.piece(n);
        for piece in chunk * pieces..((chunk + 1) * pieces).min(n.div_ceil(rows)) {
            let all = self.all(n);
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
