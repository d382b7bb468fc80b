//! Attention over pages.
//!
//! A tile is up to [`TILE`] (query, head) pairs that read the same key head of one sequence. Keys are visited in
//! blocks of [`PAGE`]; per block: scores (lanes along keys), the block's maximum, its weights and their sum, its
//! weighted values (lanes along the head); blocks are merged ascending. A tile that is so large a part of the step
//! that threads would wait for it has its blocks shared out, and who finishes last merges them.

mod source;
mod tile;

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use firth_graph::op::Attend;
use firth_graph::{LoadError, Op, PAGE, Place, SegOp, Segment, seq_table};
use firth_quant::Dtype;
use firth_simd::{LANES, Level, Simd, dispatch};

use crate::device::Shared;
use crate::memory::Region;
use crate::operand::{Cx, Operand, Rows};
use crate::program::CompileCx;
use crate::states::{CpuState, KvPages};
use crate::step::{Args, Kernel, Step, Worker, dense_rows};
pub use source::{F16, F32, Q8, Source};
pub(super) use tile::{LOG2_E, query_factor, soft_cap};
use tile::{Page, Query, Shape, Space, Sums, TILE};

/// Products that make a chunk of a divided tile: some microseconds.
const CHUNK_PRODUCTS: usize = 1 << 16;

/// What divided tiles leave for whoever merges them: per tile and block the sums and weighted values of its rows.
pub struct Partials {
    /// Floats; reached by disjoint ranges.
    floats: Region,
    /// Spans of each tile that are done.
    done: Vec<AtomicU32>,
}

impl Partials {
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.floats.len() as u64
    }
}

/// Rows of a divided tile at most, for `group` query heads to a key head: two rows of a sequence, or a few.
fn divided_rows(group: usize) -> usize {
    (2 * group).clamp(4, TILE)
}

/// Floats of a block of a divided tile.
fn partial_floats(group: usize, value_dim: usize) -> usize {
    2 * LANES + divided_rows(group) * value_dim
}

/// Tiles of a divided step at most.
fn most_divided(threads: usize) -> usize {
    2 * threads
}

/// Memory for the divided tiles of every op of a segment: one op at a time uses it.
pub fn plan_partials(segment: &Segment, shared: &Shared) -> Result<Arc<Partials>, LoadError> {
    let tiles = most_divided(shared.pool.threads());
    let floats = |op: &SegOp| {
        let constant = |v: usize, axis| segment.values[v].ty.layout().and_then(|l| l.shape.constant(axis));
        let (Op::Attend(_), Place::State(s)) = (&op.op, segment.values[op.inputs[0]].place) else { return 0 };
        let CpuState::Kv(state) = shared.state(segment.states[s]) else { return 0 };
        let group = constant(op.inputs[1], 1).unwrap_or(0) / state.spec.n_heads;
        tiles * constant(op.inputs[3], 0).unwrap_or(0) * partial_floats(group, state.spec.value_dim)
    };
    let floats = segment.ops.iter().map(floats).max().unwrap_or(0);
    let floats = shared.region(floats * 4, "parts of attention")?;
    Ok(Arc::new(Partials { floats, done: (0..tiles).map(|_| AtomicU32::new(0)).collect() }))
}

struct AttendStep {
    level: Level,
    threads: usize,
    op: Attend,
    /// What a score loses per key of distance, in units of log2 e, of each query head.
    slopes: Vec<f32>,
    state: Arc<KvPages>,
    partials: Arc<Partials>,
    q: Operand,
    seqs: Operand,
    pages: Operand,
    sinks: Option<Operand>,
    near: Option<Operand>,
    y: Operand,
}

/// A part of the step: a tile by its sequence, key head and first (row, head) pair, and blocks of it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Work {
    seq: usize,
    head: usize,
    first: usize,
    /// Number of the tile among those that are divided.
    tile: usize,
    /// Which of `spans` equal parts of its blocks.
    span: usize,
    spans: usize,
    group: usize,
}

impl AttendStep {
    /// Query heads that share a key head.
    fn group(&self, q: &Rows) -> usize {
        q.dims[1] / self.state.spec.n_heads
    }

    /// Tiles of a key head in a sequence.
    fn tiles(&self, seqs: &Rows, s: usize, group: usize) -> usize {
        (seqs.i32(s)[seq_table::N_ROWS] as usize * group).div_ceil(TILE)
    }

    /// Blocks that the rows of a sequence see.
    fn blocks(&self, seqs: &Rows, s: usize) -> std::ops::Range<usize> {
        let table = seqs.i32(s);
        let index = table[seq_table::FIRST_INDEX] as usize;
        let index_end = index + table[seq_table::N_ROWS] as usize;
        let keys = |index| self.op.sight.keys(index, index_end);
        keys(index).start / PAGE..keys(index_end.saturating_sub(1)).end.div_ceil(PAGE)
    }

    /// Pairs of rows and blocks of a tile of a sequence.
    fn work(&self, seqs: &Rows, s: usize, group: usize) -> usize {
        (seqs.i32(s)[seq_table::N_ROWS] as usize * group).min(TILE) * self.blocks(seqs, s).len()
    }

    /// The work from which on a tile is divided: half of a thread's part of the step. So no more than
    /// [`most_divided`] are.
    fn large(&self, seqs: &Rows, group: usize) -> usize {
        let of = |s| self.tiles(seqs, s, group) * self.work(seqs, s, group);
        let all = (0..seqs.n()).map(of).sum::<usize>() * self.state.spec.n_heads;
        all.div_ceil(most_divided(self.threads))
    }

    /// Parts that the tiles of a sequence are divided into, where those of `large` work are.
    fn spans(&self, seqs: &Rows, s: usize, group: usize, large: usize) -> usize {
        let few = seqs.i32(s)[seq_table::N_ROWS] as usize * group <= divided_rows(group);
        let work = self.work(seqs, s, group);
        if self.threads == 1 || !few || work < large {
            return 1;
        }
        let products = PAGE * work * (self.state.spec.key_dim + self.state.spec.value_dim);
        products.div_ceil(CHUNK_PRODUCTS).clamp(1, self.blocks(seqs, s).len().max(1))
    }

    /// Tiles of a sequence follow each other by key head, so that neighbours read the same pages.
    fn find(&self, seqs: &Rows, group: usize, mut chunk: usize) -> Option<Work> {
        let large = self.large(seqs, group);
        let mut divided = 0;
        for seq in 0..seqs.n() {
            let (tiles, spans) = (self.tiles(seqs, seq, group), self.spans(seqs, seq, group, large));
            let all = tiles * self.state.spec.n_heads;
            if chunk < all * spans {
                let (tile, span) = (chunk / spans, chunk % spans);
                let (head, first) = (tile / tiles, tile % tiles * TILE);
                return Some(Work { seq, head, first, tile: divided + tile, span, spans, group });
            }
            chunk -= all * spans;
            divided += if spans > 1 { all } else { 0 };
        }
        None
    }

    fn tile<K: Source>(&self, cx: &Cx, w: &Work, worker: &mut Worker) {
        let (q, seqs, pages) = (cx.rows(&self.q), cx.rows(&self.seqs), cx.rows(&self.pages));
        let table = seqs.i32(w.seq);
        let len = (table[seq_table::FIRST_INDEX] + table[seq_table::N_ROWS]) as usize;
        let n = (table[seq_table::N_ROWS] as usize * w.group - w.first).min(TILE);
        let (kd, vd) = (self.state.spec.key_dim, self.state.spec.value_dim);
        let space = Space::new(&mut worker.scratch, kd, vd);
        let by = query_factor(self.op.scale, self.op.softcap);
        let mut rows = [Query::default(); TILE];
        let mut sinks = [0.0; LANES];
        let sink_row = self.sinks.as_ref().map(|o| cx.rows(o));
        let near = self.near.as_ref().map(|o| cx.rows(o));
        for i in 0..n {
            let (row, head, index) = place(table, w, i);
            for (d, from) in q.f32_at([head, row, 0]).iter().enumerate() {
                space.q[d * TILE + i] = from * by;
            }
            let keys = self.op.sight.keys(index, len);
            let (first, last) = (keys.start, keys.end - 1);
            let near = near.as_ref().map_or(&[][..], |n| n.f32(head));
            rows[i] = Query { first, last, index, slope: self.slopes[head], near };
            sinks[i] = sink_row.as_ref().map_or(0.0, |s| s.f32(0)[head]);
        }
        let tile = Tile::<K> {
            step: self,
            work: w,
            pages: pages.i32(w.seq),
            rows: &rows[..n],
            space,
            sinks: self.sinks.is_some().then_some(&sinks),
            source: PhantomData,
        };
        if !dispatch(self.level, tile) {
            return;
        }
        let (y, o) = (cx.rows(&self.y), Space::new(&mut worker.scratch, kd, vd).o);
        for i in 0..n {
            let (row, head, _) = place(table, w, i);
            // SAFETY: a (row, head) pair belongs to one tile, and one chunk finishes it.
            unsafe { y.f32_mut(row * q.dims[1] + head) }.copy_from_slice(&o[i * vd..(i + 1) * vd]);
        }
    }
}

/// Row, query head and index in the sequence of pair `i` of a tile.
fn place(table: &[i32], w: &Work, i: usize) -> (usize, usize, usize) {
    let pair = w.first + i;
    let row = pair / w.group;
    (
        table[seq_table::FIRST_ROW] as usize + row,
        w.head * w.group + pair % w.group,
        table[seq_table::FIRST_INDEX] as usize + row,
    )
}

/// A tile, or a part of its blocks, ready to run.
struct Tile<'a, K> {
    step: &'a AttendStep,
    work: &'a Work,
    pages: &'a [i32],
    rows: &'a [Query<'a>],
    space: Space<'a>,
    sinks: Option<&'a [f32; LANES]>,
    source: PhantomData<K>,
}

impl<K: Source> firth_simd::Kernel for Tile<'_, K> {
    /// Whether the tile's result stands in `space.o`.
    type Out = bool;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) -> bool {
        let spec = &self.step.state.spec;
        let shape = Shape::<K> {
            key_dim: spec.key_dim,
            value_dim: spec.value_dim,
            softcap: self.step.op.softcap,
            biased: self.step.op.alibi != 0.0 || self.step.near.is_some(),
            source: PhantomData,
        };
        let first = self.rows.iter().map(|r| r.first).min().unwrap_or(0) / PAGE;
        let end = self.rows.iter().map(|r| r.last).max().unwrap_or(0) / PAGE + 1;
        let (n, spans) = (end - first, self.work.spans);
        let mine = first + n * self.work.span / spans..first + n * (self.work.span + 1) / spans;
        let mut so_far = Sums::NONE;
        for block in mine.clone() {
            let next = (self.rows.len() <= 4 && block + 1 < end).then(|| self.page(block + 1));
            // SAFETY: the sequence has the page, and wrote every position up to its last row.
            let sums = unsafe { shape.block(s, self.rows, block, self.page(block), next, &mut self.space) };
            if spans == 1 {
                let Space { ob, o, .. } = &mut self.space;
                shape.merge(s, self.rows, block, &sums, ob, &mut so_far, o);
            } else {
                self.leave(block - first, &sums);
            }
        }
        if spans > 1 {
            let done = &self.step.partials.done[self.work.tile];
            if done.fetch_add(1, Ordering::AcqRel) + 1 < spans as u32 {
                return false;
            }
            done.store(0, Ordering::Relaxed);
            for block in first..end {
                let (sums, ob) = self.left(block - first);
                shape.merge(s, self.rows, block, &sums, ob, &mut so_far, self.space.o);
            }
        }
        shape.finish(s, self.rows.len(), &mut so_far, self.sinks, self.space.o);
        true
    }
}

impl<'a, K> Tile<'a, K> {
    #[inline(always)]
    fn page(&self, block: usize) -> Page {
        let state = &self.step.state;
        let keys = state
            .page(self.pages[block] as usize)
            .wrapping_add(self.work.head * state.head_bytes())
            .cast_const();
        Page { keys, values: keys.wrapping_add(state.key_bytes()) }
    }

    /// Where a block of this tile is left.
    fn partial(&self, block: usize) -> *mut f32 {
        let floats = partial_floats(self.work.group, self.step.state.spec.value_dim);
        let at = (self.work.tile * self.pages.len() + block) * floats;
        let region = &self.step.partials.floats;
        assert!((at + floats) * 4 <= region.len(), "block {block} of tile {}", self.work.tile);
        region.ptr().cast::<f32>().wrapping_add(at)
    }

    /// Leaves the block in `space.ob` for whoever merges.
    fn leave(&self, block: usize, sums: &Sums) {
        let to = self.partial(block);
        let n = self.rows.len() * self.step.state.spec.value_dim;
        // SAFETY: the range lies in the region; this chunk alone has the block.
        unsafe {
            to.cast::<[f32; LANES]>().write_unaligned(sums.m);
            to.add(LANES).cast::<[f32; LANES]>().write_unaligned(sums.l);
            std::ptr::copy_nonoverlapping(self.space.ob.as_ptr(), to.add(2 * LANES), n);
        }
    }

    /// What [`Tile::leave`] left, once every span of the tile is done.
    fn left(&self, block: usize) -> (Sums, &'a [f32]) {
        let from = self.partial(block);
        let n = self.rows.len() * self.step.state.spec.value_dim;
        // SAFETY: as above; the count of finished spans orders the writes before this read.
        unsafe {
            let sums = Sums {
                m: from.cast::<[f32; LANES]>().read_unaligned(),
                l: from.add(LANES).cast::<[f32; LANES]>().read_unaligned(),
            };
            (sums, std::slice::from_raw_parts(from.add(2 * LANES), n))
        }
    }
}

impl Step for AttendStep {
    fn chunks(&self, cx: &Cx) -> usize {
        let (q, seqs) = (cx.rows(&self.q), cx.rows(&self.seqs));
        let group = self.group(&q);
        let large = self.large(&seqs, group);
        let parts = |s| self.tiles(&seqs, s, group) * self.spans(&seqs, s, group, large);
        (0..seqs.n()).map(parts).sum::<usize>() * self.state.spec.n_heads
    }

    fn varies(&self) -> bool {
        true
    }

    fn scratch(&self) -> usize {
        tile::space(self.state.spec.key_dim, self.state.spec.value_dim)
    }

    fn run(&self, cx: &Cx, chunk: usize, worker: &mut Worker) {
        let (q, seqs) = (cx.rows(&self.q), cx.rows(&self.seqs));
        let Some(work) = self.find(&seqs, self.group(&q), chunk) else { return };
        match self.state.spec.dtype {
            Dtype::F32 => self.tile::<F32>(cx, &work, worker),
            Dtype::F16 => self.tile::<F16>(cx, &work, worker),
            _ => self.tile::<Q8>(cx, &work, worker),
        }
    }
}

fn slopes(op: &Attend, heads: usize) -> Vec<f32> {
    let slope = |h| (op.slope(h, heads) * std::f64::consts::LOG2_E) as f32;
    (0..heads).map(|h| if op.alibi == 0.0 { 0.0 } else { slope(h) }).collect()
}

fn compile(cx: &mut CompileCx, op: &SegOp) -> Box<dyn Step> {
    let state = cx.pages(op.inputs[0]);
    if state.spec.value_in_key {
        return super::attend_rows::compile(cx, op);
    }
    let args: Args = cx.args(op);
    let Op::Attend(attend) = &op.op else { unreachable!("the table names the op") };
    let near = usize::from(attend.reach > 0);
    Box::new(AttendStep {
        level: args.level,
        threads: cx.threads(),
        op: *attend,
        slopes: slopes(attend, args.input(1).layout.shape.constant(1).unwrap_or(0)),
        partials: cx.partials.clone(),
        state,
        q: args.input(1),
        seqs: args.input(2),
        pages: args.input(3),
        sinks: (args.inputs.len() - near == 5).then(|| args.input(4)),
        near: (near > 0).then(|| args.input(args.inputs.len() - 1)),
        y: args.result(0),
    })
}

/// Attention.
pub const KERNELS: [Kernel; 1] = [Kernel { op: "attend", supports: |_, inputs| dense_rows(inputs), compile }];
