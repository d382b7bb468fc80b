//! Attention over pages.
//!
//! A tile is up to [`TILE`] (query, head) pairs that read the same key head of one sequence. Keys are visited
//! in blocks of [`PAGE`]; per block: scores (lanes along keys), the block's maximum, its weights and their sum,
//! its weighted values (lanes along the head); blocks are merged ascending. A tile computes each of its rows as
//! if it were alone, so its size never shows.

use std::sync::Arc;

use firth_graph::op::Attend;
use firth_graph::{Op, PAGE, SegOp, seq_table};
use firth_quant::Dtype;
use firth_simd::{LANES, Level, Simd, dispatch, math};

use crate::operand::{Cx, Operand, Rows};
use crate::program::CompileCx;
use crate::states::KvPages;
use crate::step::{Args, Kernel, Step, Worker, dense_rows};

/// Rows of a tile: with four registers of keys, 16 accumulators.
const TILE: usize = 4;
/// Registers of keys in a block.
const KEY_REGISTERS: usize = PAGE / LANES;
/// Registers of values in a strip.
const STRIP: usize = 4;

/// How one type of page is widened. Addresses are inside a page; a load may run up to 64 bytes past a row, which
/// the pool's padding covers.
pub trait Source: Copy {
    /// Sixteen keys from `16 * block`, element `d`.
    ///
    /// # Safety
    /// `keys` starts the keys of a head of `key_dim` elements, `d` is below it.
    unsafe fn keys<S: Simd>(s: S, keys: *const u8, key_dim: usize, d: usize, block: usize) -> S::F;

    /// Sixteen elements from `j` of the value at `pos`.
    ///
    /// # Safety
    /// `values` starts the values of a head of `value_dim` elements, `j` is below it.
    unsafe fn values<S: Simd>(s: S, values: *const u8, value_dim: usize, pos: usize, j: usize) -> S::F;
}

/// Pages of f32.
#[derive(Clone, Copy)]
pub struct F32;
/// Pages of f16.
#[derive(Clone, Copy)]
pub struct F16;
/// Pages of Q8_0.
#[derive(Clone, Copy)]
pub struct Q8;

impl Source for F32 {
    #[inline(always)]
    unsafe fn keys<S: Simd>(s: S, keys: *const u8, _key_dim: usize, d: usize, block: usize) -> S::F {
        // SAFETY: by the contract; keys lie as [key_dim][64].
        unsafe { s.load_ptr(keys.cast::<f32>().add(d * PAGE + block * LANES)) }
    }

    #[inline(always)]
    unsafe fn values<S: Simd>(s: S, values: *const u8, value_dim: usize, pos: usize, j: usize) -> S::F {
        // SAFETY: by the contract; values lie as [64][value_dim].
        unsafe { s.load_ptr(values.cast::<f32>().add(pos * value_dim + j)) }
    }
}

impl Source for F16 {
    #[inline(always)]
    unsafe fn keys<S: Simd>(s: S, keys: *const u8, _key_dim: usize, d: usize, block: usize) -> S::F {
        // SAFETY: as for F32.
        unsafe { s.load_f16_ptr(keys.cast::<u16>().add(d * PAGE + block * LANES)) }
    }

    #[inline(always)]
    unsafe fn values<S: Simd>(s: S, values: *const u8, value_dim: usize, pos: usize, j: usize) -> S::F {
        // SAFETY: as for F32.
        unsafe { s.load_f16_ptr(values.cast::<u16>().add(pos * value_dim + j)) }
    }
}

impl Source for Q8 {
    #[inline(always)]
    unsafe fn keys<S: Simd>(s: S, keys: *const u8, key_dim: usize, d: usize, block: usize) -> S::F {
        // SAFETY: by the contract; the scales [key_dim / 32][64] follow the integers.
        unsafe {
            let scales = keys.add(key_dim * PAGE).cast::<u16>();
            let scale = s.load_f16_ptr(scales.add(d / 32 * PAGE + block * LANES));
            let q = s.load_i8_ptr(keys.add(d * PAGE + block * LANES));
            s.mul(s.to_f(q), scale)
        }
    }

    #[inline(always)]
    unsafe fn values<S: Simd>(s: S, values: *const u8, value_dim: usize, pos: usize, j: usize) -> S::F {
        // SAFETY: by the contract; the scales [64][value_dim / 32] follow the integers. Rows are whole blocks
        // of 32, so sixteen elements share a scale.
        unsafe {
            let scale = *values.add(value_dim * PAGE).cast::<u16>().add(pos * (value_dim / 32) + j / 32);
            let q = s.load_i8_ptr(values.add(pos * value_dim + j));
            s.mul(s.to_f(q), s.splat(firth_quant::f16_to_f32(scale)))
        }
    }
}

/// One row of a tile: the keys it sees are `first ..= last` by index in the sequence.
#[derive(Clone, Copy)]
struct Query {
    first: usize,
    last: usize,
}

/// A tile's memory, `TILE` of each.
struct Space<'a> {
    /// Queries times the scale, `[key_dim]` each.
    q: &'a mut [f32],
    /// Scores, then weights of a block, `[64]` each.
    p: &'a mut [f32],
    /// Weighted values of a block, `[value_dim]` each.
    ob: &'a mut [f32],
    /// Weighted values so far, `[value_dim]` each.
    o: &'a mut [f32],
}

struct Tile<'a, K: Source> {
    op: &'a Attend,
    state: &'a KvPages,
    head: usize,
    pages: &'a [i32],
    rows: &'a [Query],
    space: Space<'a>,
    /// Scores of the sinks, one a row.
    sinks: Option<[f32; TILE]>,
    source: std::marker::PhantomData<K>,
}

/// log2 e: scores are taken to base 2.
const LOG2_E: f32 = std::f32::consts::LOG2_E;

impl<K: Source> firth_simd::Kernel for Tile<'_, K> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let (mut m, mut l) = ([f32::NEG_INFINITY; TILE], [0.0f32; TILE]);
        let mut seen = [false; TILE];
        let first = self.rows.iter().map(|r| r.first).min().unwrap_or(0);
        let last = self.rows.iter().map(|r| r.last).max().unwrap_or(0);
        for block in first / PAGE..=last / PAGE {
            let base = block * PAGE;
            let all = self.rows.iter().all(|r| r.first <= base && r.last >= base + PAGE - 1);
            self.scores(s, block);
            let mut lb = [0.0f32; TILE];
            let mut mb = [0.0f32; TILE];
            for (r, row) in self.rows.iter().enumerate() {
                let (lo, hi) =
                    (row.first.max(base) - base, (row.last + 1).min(base + PAGE).saturating_sub(base));
                (mb[r], lb[r]) = weigh(s, &mut self.space.p[r * PAGE..(r + 1) * PAGE], lo, hi);
                if !all && lo < hi {
                    self.values::<S, 1>(s, block, r, lo, hi);
                }
            }
            if all {
                match self.rows.len() {
                    1 => self.values::<S, 1>(s, block, 0, 0, PAGE),
                    2 => self.values::<S, 2>(s, block, 0, 0, PAGE),
                    3 => self.values::<S, 3>(s, block, 0, 0, PAGE),
                    _ => self.values::<S, 4>(s, block, 0, 0, PAGE),
                }
            }
            for (r, row) in self.rows.iter().enumerate() {
                if row.first < base + PAGE && row.last >= base {
                    self.merge(s, r, !seen[r], &mut m[r], &mut l[r], mb[r], lb[r]);
                    seen[r] = true;
                }
            }
        }
        self.finish(s, &mut m, &mut l);
    }
}

/// Turns the scores of one row into weights in place; keys outside `lo..hi` weigh nothing. Returns the block's
/// maximum and the sum of its weights.
#[inline(always)]
fn weigh<S: Simd>(s: S, p: &mut [f32], lo: usize, hi: usize) -> (f32, f32) {
    if lo > 0 || hi < PAGE {
        p[..lo.min(PAGE)].fill(f32::NEG_INFINITY);
        p[hi..].fill(f32::NEG_INFINITY);
    }
    let mut v = [s.zero(); KEY_REGISTERS];
    for (i, v) in v.iter_mut().enumerate() {
        *v = s.load_first(&p[i * LANES..]);
    }
    let max = s.reduce_max(s.max(s.max(v[0], v[1]), s.max(v[2], v[3])));
    let mb = s.splat(max);
    for (i, v) in v.iter_mut().enumerate() {
        *v = math::exp2(s, s.sub(*v, mb));
        s.store_first(&mut p[i * LANES..], *v);
    }
    p[..lo.min(PAGE)].fill(0.0);
    p[hi..].fill(0.0);
    for (i, v) in v.iter_mut().enumerate() {
        *v = s.load_first(&p[i * LANES..]);
    }
    // The tree over 64: i + 32, + 16, then the sixteen lanes.
    let sum = s.add(s.add(v[0], v[2]), s.add(v[1], v[3]));
    (max, s.sum_tree(sum))
}

impl<K: Source> Tile<'_, K> {
    #[inline(always)]
    fn head(&self, block: usize) -> *const u8 {
        self.state.page(self.pages[block] as usize).wrapping_add(self.head * self.state.head_bytes())
    }

    #[inline(always)]
    fn scores<S: Simd>(&mut self, s: S, block: usize) {
        match self.rows.len() {
            1 => self.score_rows::<S, 1>(s, block),
            2 => self.score_rows::<S, 2>(s, block),
            3 => self.score_rows::<S, 3>(s, block),
            _ => self.score_rows::<S, 4>(s, block),
        }
    }

    /// Scores of `R` rows with the 64 keys of a block: chains of fma over the head, ascending.
    #[inline(always)]
    fn score_rows<S: Simd, const R: usize>(&mut self, s: S, block: usize) {
        let keys = self.head(block);
        let dim = self.state.spec.key_dim;
        let mut acc = [[s.zero(); KEY_REGISTERS]; R];
        for d in 0..dim {
            let mut k = [s.zero(); KEY_REGISTERS];
            for (i, k) in k.iter_mut().enumerate() {
                // SAFETY: `d` is below the head's width and the page exists.
                *k = unsafe { K::keys(s, keys, dim, d, i) };
            }
            for (r, acc) in acc.iter_mut().enumerate() {
                let q = s.splat(self.space.q[r * dim + d]);
                for (acc, k) in acc.iter_mut().zip(&k) {
                    *acc = s.fma(q, *k, *acc);
                }
            }
        }
        for (r, acc) in acc.iter().enumerate() {
            for (i, v) in acc.iter().enumerate() {
                let v = match self.op.softcap {
                    0.0 => *v,
                    cap => {
                        let cap = s.splat(cap);
                        s.mul(s.mul(cap, math::tanh(s, s.div(*v, cap))), s.splat(LOG2_E))
                    }
                };
                s.store_first(&mut self.space.p[r * PAGE + i * LANES..], v);
            }
        }
    }

    /// Weighted values of rows `from .. from + R` over keys `lo..hi` of a block: chains of fma over the keys.
    #[inline(always)]
    fn values<S: Simd, const R: usize>(&mut self, s: S, block: usize, from: usize, lo: usize, hi: usize) {
        let values = self.head(block).wrapping_add(self.state.key_bytes());
        let dim = self.state.spec.value_dim;
        for j in (0..dim).step_by(STRIP * LANES) {
            let n = (dim - j).div_ceil(LANES).min(STRIP);
            let mut acc = [[s.zero(); STRIP]; R];
            for key in lo..hi {
                let mut v = [s.zero(); STRIP];
                for (i, v) in v.iter_mut().enumerate().take(n) {
                    // SAFETY: the key is in the page and the element below the width; lanes past the row are
                    // never stored.
                    *v = unsafe { K::values(s, values, dim, key, j + i * LANES) };
                }
                for (r, acc) in acc.iter_mut().enumerate() {
                    let p = s.splat(self.space.p[(from + r) * PAGE + key]);
                    for (acc, v) in acc.iter_mut().zip(&v) {
                        *acc = s.fma(p, *v, *acc);
                    }
                }
            }
            for (r, acc) in acc.iter().enumerate() {
                for (i, acc) in acc.iter().enumerate().take(n) {
                    let at = (from + r) * dim + j + i * LANES;
                    let len = (dim - j - i * LANES).min(LANES);
                    s.store_partial(&mut self.space.ob[at..at + len], *acc);
                }
            }
        }
    }

    /// Joins a block to what row `r` has so far.
    #[inline(always)]
    fn merge<S: Simd>(&mut self, s: S, r: usize, first: bool, m: &mut f32, l: &mut f32, mb: f32, lb: f32) {
        let dim = self.state.spec.value_dim;
        let (o, ob) = (&mut self.space.o[r * dim..(r + 1) * dim], &self.space.ob[r * dim..(r + 1) * dim]);
        if first {
            o.copy_from_slice(ob);
            (*m, *l) = (mb, lb);
            return;
        }
        let (new, a, b) = factors(s, *m, mb);
        for (o, ob) in o.chunks_mut(LANES).zip(ob.chunks(LANES)) {
            let v = s.load_partial(o, 0.0);
            s.store_partial(o, s.fma(s.load_partial(ob, 0.0), s.splat(b), s.mul(v, s.splat(a))));
        }
        *l = lb.mul_add(b, *l * a);
        *m = new;
    }

    /// Sinks, then the one division.
    #[inline(always)]
    fn finish<S: Simd>(&mut self, s: S, m: &mut [f32; TILE], l: &mut [f32; TILE]) {
        let dim = self.state.spec.value_dim;
        for r in 0..self.rows.len() {
            let o = &mut self.space.o[r * dim..(r + 1) * dim];
            let mut a = 1.0;
            if let Some(sinks) = self.sinks {
                let (_, keep, b) = factors(s, m[r], sinks[r] * LOG2_E);
                (a, l[r]) = (keep, b + l[r] * keep);
            }
            let by = s.splat(1.0 / l[r]);
            for o in o.chunks_mut(LANES) {
                let v = s.mul(s.load_partial(o, 0.0), s.splat(a));
                s.store_partial(o, s.mul(v, by));
            }
        }
    }
}

/// `max(m, mb)` and the factors `exp2(m - max)`, `exp2(mb - max)`. NaN stays visible.
#[inline(always)]
fn factors<S: Simd>(s: S, m: f32, mb: f32) -> (f32, f32, f32) {
    let new = if m > mb || m.is_nan() { m } else { mb };
    let e = s.to_array(math::exp2(s, s.sub(s.load_partial(&[m, mb], new), s.splat(new))));
    (new, e[0], e[1])
}

struct AttendStep {
    level: Level,
    op: Attend,
    state: Arc<KvPages>,
    q: Operand,
    seqs: Operand,
    pages: Operand,
    sinks: Option<Operand>,
    y: Operand,
}

/// A tile of the step: its sequence, key head and first (row, head) pair.
struct Work {
    seq: usize,
    head: usize,
    first: usize,
}

impl AttendStep {
    /// Query heads that share a key head.
    fn group(&self, q: &Rows) -> usize {
        q.dims[1] / self.state.spec.n_heads
    }

    fn tiles(&self, seqs: &Rows, s: usize, group: usize) -> usize {
        (seqs.i32(s)[seq_table::N_ROWS] as usize * group).div_ceil(TILE)
    }

    /// Tiles of a sequence follow each other by key head, so that neighbours read the same pages.
    fn find(&self, seqs: &Rows, group: usize, mut chunk: usize) -> Option<Work> {
        for seq in 0..seqs.n() {
            let tiles = self.tiles(seqs, seq, group);
            if chunk < tiles * self.state.spec.n_heads {
                return Some(Work { seq, head: chunk / tiles, first: chunk % tiles * TILE });
            }
            chunk -= tiles * self.state.spec.n_heads;
        }
        None
    }

    fn tile<K: Source>(&self, cx: &Cx, w: &Work, worker: &mut Worker) {
        let (q, seqs, pages, y) =
            (cx.rows(&self.q), cx.rows(&self.seqs), cx.rows(&self.pages), cx.rows(&self.y));
        let group = self.group(&q);
        let table = seqs.i32(w.seq);
        let n = (table[seq_table::N_ROWS] as usize * group - w.first).min(TILE);
        let (kd, vd) = (self.state.spec.key_dim, self.state.spec.value_dim);
        let (qs, rest) = worker.scratch.split_at_mut(TILE * kd);
        let (p, rest) = rest.split_at_mut(TILE * PAGE);
        let (ob, rest) = rest.split_at_mut(TILE * vd);
        let o = &mut rest[..TILE * vd];
        let by = if self.op.softcap == 0.0 { self.op.scale * LOG2_E } else { self.op.scale };
        let mut rows = [Query { first: 0, last: 0 }; TILE];
        let mut sinks = [0.0; TILE];
        let sink_row = self.sinks.as_ref().map(|o| cx.rows(o));
        let place = |i: usize| {
            let pair = w.first + i;
            (table[seq_table::FIRST_ROW] as usize + pair / group, w.head * group + pair % group, pair / group)
        };
        for i in 0..n {
            let (row, head, offset) = place(i);
            for (to, from) in qs[i * kd..(i + 1) * kd].iter_mut().zip(q.f32_at([head, row, 0])) {
                *to = from * by;
            }
            let last = table[seq_table::FIRST_INDEX] as usize + offset;
            rows[i] = Query { first: self.op.window.map_or(0, |w| (last + 1).saturating_sub(w)), last };
            sinks[i] = sink_row.as_ref().map_or(0.0, |s| s.f32(0)[head]);
        }
        let tile = Tile::<K> {
            op: &self.op,
            state: &self.state,
            head: w.head,
            pages: pages.i32(w.seq),
            rows: &rows[..n],
            space: Space { q: qs, p, ob, o: &mut *o },
            sinks: self.sinks.is_some().then_some(sinks),
            source: std::marker::PhantomData,
        };
        dispatch(self.level, tile);
        for i in 0..n {
            let (row, head, _) = place(i);
            // SAFETY: a (row, head) pair belongs to one tile.
            unsafe { y.f32_mut(row * q.dims[1] + head) }.copy_from_slice(&o[i * vd..(i + 1) * vd]);
        }
    }
}

impl Step for AttendStep {
    fn chunks(&self, cx: &Cx) -> usize {
        let (q, seqs) = (cx.rows(&self.q), cx.rows(&self.seqs));
        let group = self.group(&q);
        (0..seqs.n()).map(|s| self.tiles(&seqs, s, group)).sum::<usize>() * self.state.spec.n_heads
    }

    fn scratch(&self) -> usize {
        TILE * (self.state.spec.key_dim + PAGE + 2 * self.state.spec.value_dim)
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

fn compile(cx: &mut CompileCx, op: &SegOp) -> Box<dyn Step> {
    let state = cx.pages(op.inputs[0]);
    if state.spec.value_in_key {
        return super::attend_rows::compile(cx, op);
    }
    let args: Args = cx.args(op);
    let Op::Attend(attend) = &op.op else { unreachable!("the table names the op") };
    Box::new(AttendStep {
        level: args.level,
        op: *attend,
        state,
        q: args.input(1),
        seqs: args.input(2),
        pages: args.input(3),
        sinks: (args.inputs.len() == 5).then(|| args.input(4)),
        y: args.result(0),
    })
}

/// Attention.
pub const KERNELS: [Kernel; 1] = [Kernel { op: "attend", supports: |_, inputs| dense_rows(inputs), compile }];
