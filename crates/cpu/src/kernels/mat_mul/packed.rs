//! Activations in the forms that weights ask for: buffers shared out at load, and the steps that fill them.
//!
//! What only products read is never stored as it is: the op that makes it fills the buffers row by row.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use firth_graph::{Extents, Layout, LoadError, Op, Place, SegOp, Segment};
use firth_simd::Level;

use crate::act::{ActLayout, Form, fill_row};
use crate::device::Shared;
use crate::kernels::{makes_rows, row_maker};
use crate::memory::Region;
use crate::operand::{Cx, Operand, Rows};
use crate::panel::PanelLayout;
use crate::pool::own_chunks;
use crate::program::CompileCx;
use crate::schedule::{Space, Span, Touch};
use crate::step::{RowMaker, Step, Worker};

/// Columns of a lone row that are worth another thread's while.
const PART: usize = 512;
/// Parts of a lone row at most.
const MAX_PARTS: usize = 8;

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
    /// Rows of each tile that hold a NaN or an infinity, a bit each; of a lone row its parts.
    bad: Vec<AtomicU8>,
}

impl ActBuffer {
    /// Rows of tile `tile` that hold a NaN or an infinity, a bit each, in a step of `rows` rows.
    pub fn bad(&self, tile: usize, rows: usize) -> u8 {
        let bad = self.bad[tile].load(Ordering::Relaxed);
        if rows == 1 { u8::from(bad != 0) } else { bad }
    }

    /// Says the same of one part of a lone row; the first clears what others do not say.
    fn note_part(&self, part: usize, parts: usize, bad: bool) {
        let unsaid = if part == 0 { u8::MAX << (parts - 1) << 1 } else { 0 };
        self.bad[0].fetch_and(!(unsaid | 1 << part), Ordering::Relaxed);
        self.bad[0].fetch_or(u8::from(bad) << part, Ordering::Relaxed);
    }
}

struct Entry {
    key: Key,
    /// The op that fills it, or before which it is filled, and the last that reads it.
    life: (usize, usize),
    slot: usize,
}

/// The buffers of a program: a value's activations live from the op that makes them, or the first product that reads them, to
/// the last.
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
        for e in &mut entries {
            if let Some(maker) = maker_of(segment, e.key.value, shared) {
                e.life.0 = maker;
            }
        }
        for i in 0..entries.len() {
            let (key, life) = (entries[i].key, entries[i].life);
            let meets = |e: &Entry| e.life.1 >= life.0 && e.life.0 <= life.1;
            let busy = |s: usize| entries[..i].iter().any(|e| e.slot == s && meets(e));
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

    /// The memory of the buffer that `op` reads.
    pub fn span(&self, cx: &CompileCx, op: &SegOp) -> Option<Span> {
        Some(Span::whole(Space::Packed(self.entry(cx, op)?.slot)))
    }

    /// The step that fills the buffer that `op` reads, where `op` is the first to read it and nobody has filled it.
    pub fn quantiser(&self, cx: &CompileCx, op: &SegOp) -> Option<Box<dyn Step>> {
        let entry = self.entry(cx, op)?;
        (entry.life.0 == cx.op).then(|| self.pack(cx, cx.args(op).input(1), None, &[entry]))
    }

    /// The step of an op whose result only products read, and the memory of what it fills.
    pub fn maker(&self, cx: &CompileCx, op: &SegOp) -> Option<(Box<dyn Step>, Vec<Span>)> {
        let result = *op.results.last()?;
        let filled = |e: &&Entry| e.key.value == result && e.life.0 == cx.op;
        let entries: Vec<&Entry> = self.entries.iter().filter(filled).collect();
        if entries.is_empty() {
            return None;
        }
        let spans = entries.iter().map(|e| Span::whole(Space::Packed(e.slot))).collect();
        let x = cx.args(op).result(op.results.len() - 1);
        Some((self.pack(cx, x, row_maker(cx, op), &entries), spans))
    }

    fn pack(
        &self,
        cx: &CompileCx,
        x: Operand,
        maker: Option<Box<dyn RowMaker>>,
        entries: &[&Entry],
    ) -> Box<dyn Step> {
        let k = x.layout.shape.constant(0).unwrap_or(0);
        let targets = entries.iter().map(|e| (e.key, self.buffers[e.slot].clone())).collect();
        Box::new(Pack { level: cx.level(), threads: cx.threads(), k, x, maker, targets })
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

/// The op that makes a value and can fill buffers with it: nothing but products reads the value, itself or through a view.
fn maker_of(segment: &Segment, value: usize, shared: &Shared) -> Option<usize> {
    let made = |op: &SegOp| op.results.last() == Some(&value) && makes_rows(&op.op);
    let maker = segment.ops.iter().position(made)?;
    let Place::Arena(_) = segment.values[value].place else { return None };
    let own = Span::of(&segment.values[value], &segment.bounds)?;
    for op in &segment.ops[maker + 1..] {
        let product = key_of(segment, op, shared).is_some_and(|(key, _)| key.value == value);
        let is_rows = |i: usize| product && i == 1;
        let touch = Touch::of(segment, op);
        let reads = |(i, v): (usize, &usize)| {
            let meets = Span::of(&segment.values[*v], &segment.bounds).is_some_and(|s| s.meets(&own));
            meets && !(*v == value && is_rows(i))
        };
        if op.inputs.iter().enumerate().any(reads) {
            return None;
        }
        // From here on its memory is another's.
        if touch.writes.iter().any(|s| s.meets(&own)) {
            break;
        }
    }
    Some(maker)
}

/// A step that fills buffers: with the rows of a value, or with rows as they are made.
struct Pack {
    level: Level,
    threads: usize,
    k: usize,
    /// The value; where its rows are made here, only its shape counts.
    x: Operand,
    maker: Option<Box<dyn RowMaker>>,
    targets: Vec<(Key, Arc<ActBuffer>)>,
}

impl Pack {
    /// How rows stand in tiles, whatever the form.
    fn tiles(&self, rows: usize) -> ActLayout {
        ActLayout { form: Form::F32, k: self.k, rows }
    }

    /// Tiles to a chunk.
    fn tiles_per_chunk(&self, tiles: &ActLayout) -> usize {
        (4096 / (self.k * tiles.height()).max(1)).max(1)
    }

    /// Parts of a lone row.
    fn parts(&self) -> usize {
        let divides = self.maker.as_ref().is_none_or(|m| m.divides());
        if divides { (self.k / PART).clamp(1, self.threads.min(MAX_PARTS)) } else { 1 }
    }

    /// Columns of a part: whole blocks of every form.
    fn columns(&self, part: usize) -> Range<usize> {
        let block = self.targets.iter().map(|(key, _)| key.form.block()).max().unwrap_or(1);
        let blocks = own_chunks(self.k.div_ceil(block), part, self.parts());
        blocks.start * block..(blocks.end * block).min(self.k)
    }

    /// Packs columns of a row; returns whether they hold a NaN or an infinity.
    ///
    /// # Safety
    /// Nobody else packs these columns of the row.
    unsafe fn row(&self, cx: &Cx, x: &Rows, row: usize, columns: Range<usize>, made: &mut [f32]) -> bool {
        let values = match &self.maker {
            None => &x.f32(row)[columns.clone()],
            Some(maker) => {
                let made = &mut made[..columns.len()];
                // SAFETY: the row is made once, each of its columns by one caller.
                unsafe { maker.make(cx, x.split(row), columns.clone(), made) };
                &*made
            }
        };
        let tiles = self.tiles(x.n());
        let mut bad = false;
        for (key, buffer) in &self.targets {
            let (layout, tile, at, rows, r) = match key.grouping {
                Grouping::Tiles => {
                    let layout = ActLayout { form: key.form, ..tiles };
                    let (tile, r) = (row / tiles.height(), row % tiles.height());
                    (layout, tile, 0, layout.tile_rows(tile), r)
                }
                Grouping::Singles => (ActLayout { form: key.form, rows: 1, ..tiles }, 0, row, 1, 0),
            };
            let range = layout.tile_range(tile);
            let range = range.start + at * range.len()..range.end + at * range.len();
            assert!(range.end <= buffer.region.len(), "a tile lies in the buffer");
            // SAFETY: the tile lies in the buffer; the columns are the caller's.
            bad |= unsafe {
                let dst = buffer.region.ptr().add(range.start);
                fill_row(self.level, &layout, rows, r, columns.start, values, dst)
            };
        }
        bad
    }

    /// Packs a tile.
    fn tile(&self, cx: &Cx, x: &Rows, tile: usize, made: &mut [f32]) {
        let tiles = self.tiles(x.n());
        let mut all = 0;
        for r in 0..tiles.tile_rows(tile) {
            let row = tile * tiles.height() + r;
            // SAFETY: the tile belongs to one chunk.
            let bad = u8::from(unsafe { self.row(cx, x, row, 0..self.k, made) });
            all |= bad << r;
            for (_, buffer) in self.targets.iter().filter(|(key, _)| key.grouping == Grouping::Singles) {
                buffer.bad[row].store(bad, Ordering::Relaxed);
            }
        }
        for (_, buffer) in self.targets.iter().filter(|(key, _)| key.grouping == Grouping::Tiles) {
            buffer.bad[tile].store(all, Ordering::Relaxed);
        }
    }
}

impl Step for Pack {
    fn chunks(&self, cx: &Cx) -> usize {
        let tiles = self.tiles(n_rows(&self.x.layout, &cx.x));
        if tiles.rows == 1 { self.parts() } else { tiles.tiles().div_ceil(self.tiles_per_chunk(&tiles)) }
    }

    fn scratch(&self) -> usize {
        self.maker.as_ref().map_or(0, |_| self.k)
    }

    fn run(&self, cx: &Cx, chunk: usize, worker: &mut Worker) {
        let x = cx.rows(&self.x);
        let tiles = self.tiles(x.n());
        if tiles.rows == 1 {
            // SAFETY: parts have no column in common.
            let bad = unsafe { self.row(cx, &x, 0, self.columns(chunk), &mut worker.scratch) };
            self.targets.iter().for_each(|(_, buffer)| buffer.note_part(chunk, self.parts(), bad));
            return;
        }
        let per = self.tiles_per_chunk(&tiles);
        for tile in chunk * per..((chunk + 1) * per).min(tiles.tiles()) {
            self.tile(cx, &x, tile, &mut worker.scratch);
        }
    }
}
