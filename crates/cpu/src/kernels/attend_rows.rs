//! Attention of one token at a time, over any set of keys: chosen pools, and values that lie in their keys.
//!
//! The heads of a token that share a key head go through a block of keys together; the block is widened to f32 once
//! for all of them. The arithmetic of each head is that of `attend`, in the same order.

use std::marker::PhantomData;
use std::sync::Arc;

use firth_graph::op::{Attend, AttendChosen, AttendPools};
use firth_graph::{Op, PAGE, SegOp, seq_table};
use firth_quant::Dtype;
use firth_simd::{LANES, Level, Simd, dispatch, math};

use super::attend::{F16, F32, LOG2_E, Q8, Source, query_factor, soft_cap};
use super::kv_write::locate;
use crate::operand::{Cx, Operand};
use crate::program::CompileCx;
use crate::states::KvPages;
use crate::step::{Args, Kernel, Step, Worker, dense_rows};

/// Heads of a tile.
const HEADS: usize = 16;
/// Registers of keys in a block, and of values in a strip.
const REGISTERS: usize = PAGE / LANES;

/// The keys that a row sees.
#[derive(Clone, Copy)]
enum Visible<'a> {
    /// By index, from the first to the last.
    Run(usize, usize),
    /// Tokens of chosen pools, and of the tail.
    Pools(&'a [i32], &'a AttendChosen, usize),
    /// The last tokens of pools, all or those of a list.
    Ends(Option<&'a [i32]>, &'a AttendPools, usize),
}

impl Visible<'_> {
    /// Blocks that may hold a visible key.
    fn blocks(&self) -> std::ops::Range<usize> {
        match self {
            Visible::Run(first, last) => first / PAGE..last / PAGE + 1,
            Visible::Pools(_, _, index) | Visible::Ends(_, _, index) => 0..index / PAGE + 1,
        }
    }

    /// The visible keys of a block, a bit each.
    fn mask(&self, block: usize) -> u64 {
        let base = block * PAGE;
        match self {
            Visible::Run(first, last) => bits(*first, last + 1, base),
            Visible::Pools(pools, op, index) => {
                let from = pools.partition_point(|p| *p >= 0 && (*p as usize + 1) * op.ratio <= base);
                let mut mask = 0;
                for &p in pools[from..].iter().take_while(|p| **p >= 0) {
                    let first = p as usize * op.ratio;
                    if first >= base + PAGE {
                        break;
                    }
                    mask |= bits(first, first + op.ratio, base);
                }
                let tail = op.tail_of(*index);
                mask | bits(tail.start, tail.end, base)
            }
            Visible::Ends(pools, op, index) => {
                // The first pool that ends in the block.
                let first = base / op.ratio;
                let bit = |p: usize| bits(op.end(p), op.end(p) + 1, base);
                match pools {
                    None => (first..op.pools(*index)).map(bit).take_while(|b| *b != 0).fold(0, |m, b| m | b),
                    Some(list) => {
                        let from = list.partition_point(|p| *p >= 0 && (*p as usize) < first);
                        let ends = list[from..].iter().take_while(|p| **p >= 0).map(|p| bit(*p as usize));
                        ends.take_while(|b| *b != 0).fold(0, |m, b| m | b)
                    }
                }
            }
        }
    }
}

/// Bits of the indexes `from..to` in the block that starts at `base`.
fn bits(from: usize, to: usize, base: usize) -> u64 {
    let (from, to) = (from.clamp(base, base + PAGE) - base, to.clamp(base, base + PAGE) - base);
    if from >= to { 0 } else { (u64::MAX >> (PAGE - (to - from))) << from }
}

/// Positions of the bits of a mask, ascending.
fn positions(mask: u64) -> impl Iterator<Item = usize> {
    let mut left = mask;
    std::iter::from_fn(move || {
        (left != 0).then(|| {
            let at = left.trailing_zeros() as usize;
            left &= left - 1;
            at
        })
    })
}

/// A tile's memory.
struct Space<'a> {
    /// Queries times the scale, `[key_dim]` a head.
    q: &'a mut [f32],
    /// The block's keys, `[key_dim][64]`.
    keys: &'a mut [f32],
    /// The block's values, `[64][value_dim]` and room for a register.
    values: &'a mut [f32],
    /// Scores, then weights of a block, `[64]` a head.
    p: &'a mut [f32],
    /// Weighted values of a block, `[value_dim]` and room for a register.
    ob: &'a mut [f32],
    /// Weighted values so far, `[value_dim]` a head.
    o: &'a mut [f32],
}

impl<'a> Space<'a> {
    fn floats(key: usize, value: usize) -> usize {
        HEADS * (key + PAGE + value) + PAGE * (key + value) + value + 2 * PAGE
    }

    fn new(floats: &'a mut [f32], key: usize, value: usize) -> Self {
        let (q, rest) = floats.split_at_mut(HEADS * key);
        let (p, rest) = rest.split_at_mut(HEADS * PAGE);
        let (o, rest) = rest.split_at_mut(HEADS * value);
        let (keys, rest) = rest.split_at_mut(PAGE * key);
        let (values, rest) = rest.split_at_mut(PAGE * value + PAGE);
        Space { q, keys, values, p, ob: &mut rest[..value + PAGE], o }
    }
}

struct Tile<'a, K> {
    state: &'a KvPages,
    pages: &'a [i32],
    /// Heads of the tile.
    heads: usize,
    /// Key heads, and the keys of each that are seen.
    visible: [Option<(usize, Visible<'a>)>; 2],
    softcap: f32,
    sinks: Option<&'a [f32]>,
    space: Space<'a>,
    source: PhantomData<K>,
}

impl<K: Source> firth_simd::Kernel for Tile<'_, K> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let (mut m, mut l) = ([f32::NEG_INFINITY; HEADS], [0.0f32; HEADS]);
        let value = self.state.spec.value_dim;
        let mut first = true;
        self.space.o.fill(0.0);
        let visible = self.visible;
        let blocks =
            visible.iter().flatten().flat_map(|(head, v)| v.blocks().map(move |b| (*head, b, v.mask(b))));
        for (head, block, mask) in blocks {
            if mask == 0 {
                continue;
            }
            self.widen(s, head, block, mask);
            for h in (0..self.heads).step_by(4) {
                match self.heads - h {
                    1 => self.scores::<S, 1>(s, h),
                    2 => self.scores::<S, 2>(s, h),
                    3 => self.scores::<S, 3>(s, h),
                    _ => self.scores::<S, 4>(s, h),
                }
            }
            for h in 0..self.heads {
                let (mb, lb) = weigh(s, &mut self.space.p[h * PAGE..(h + 1) * PAGE], mask);
                self.weighted(s, h, mask);
                self.merge(s, h, first, (&mut m[h], &mut l[h]), (mb, lb));
            }
            first = false;
        }
        for h in 0..self.heads {
            let o = &mut self.space.o[h * value..(h + 1) * value];
            let mut keep = 1.0;
            if let Some(sinks) = self.sinks {
                let (_, a, b) = factors(s, m[h], sinks[h] * LOG2_E);
                (keep, l[h]) = (a, b + l[h] * a);
            }
            if first {
                continue;
            }
            let by = s.splat(1.0 / l[h]);
            for o in o.chunks_mut(LANES) {
                let v = s.mul(s.load_partial(o, 0.0), s.splat(keep));
                s.store_partial(o, s.mul(v, by));
            }
        }
    }
}

impl<K: Source> Tile<'_, K> {
    /// Brings a block's keys, and the visible values, to f32.
    #[inline(always)]
    fn widen<S: Simd>(&mut self, s: S, head: usize, block: usize, mask: u64) {
        let spec = &self.state.spec;
        let page = self.state.page(self.pages[block] as usize);
        let keys = page.wrapping_add(head * self.state.head_bytes());
        let values = keys.wrapping_add(self.state.key_bytes());
        let (wide, out) = (&mut *self.space.keys, &mut *self.space.values);
        for d in 0..spec.key_dim {
            for i in 0..REGISTERS {
                // SAFETY: the page exists, and `d` is below the head's width.
                let v = unsafe { K::keys(s, keys, spec.key_dim, d, i) };
                s.store_first(&mut wide[d * PAGE + i * LANES..], v);
            }
        }
        for at in positions(mask) {
            let row = &mut out[at * spec.value_dim..];
            if spec.value_in_key {
                for (j, v) in row[..spec.value_dim].iter_mut().enumerate() {
                    *v = wide[j * PAGE + at];
                }
                continue;
            }
            for j in (0..spec.value_dim).step_by(LANES) {
                let n = LANES.min(spec.value_dim - j);
                // SAFETY: as above; what a load takes past the row is not stored.
                let v = unsafe { K::values(s, values, spec.value_dim, at, j) };
                s.store_partial(&mut row[j..j + n], v);
            }
        }
    }

    /// Scores of `R` heads from `h`: chains of fma over the key, ascending.
    #[inline(always)]
    fn scores<S: Simd, const R: usize>(&mut self, s: S, h: usize) {
        let dim = self.state.spec.key_dim;
        let mut acc = [[s.zero(); REGISTERS]; R];
        for (d, keys) in self.space.keys.chunks_exact(PAGE).enumerate() {
            let mut k = [s.zero(); REGISTERS];
            for (i, k) in k.iter_mut().enumerate() {
                *k = s.load_first(&keys[i * LANES..]);
            }
            for (r, acc) in acc.iter_mut().enumerate() {
                let q = s.splat(self.space.q[(h + r) * dim + d]);
                for (acc, k) in acc.iter_mut().zip(&k) {
                    *acc = s.fma(q, *k, *acc);
                }
            }
        }
        for (r, acc) in acc.iter().enumerate() {
            for (i, v) in acc.iter().enumerate() {
                let v = soft_cap(s, *v, self.softcap);
                s.store_first(&mut self.space.p[(h + r) * PAGE + i * LANES..], v);
            }
        }
    }

    /// Weighted values of head `h`: chains of fma over the visible keys, ascending.
    #[inline(always)]
    fn weighted<S: Simd>(&mut self, s: S, h: usize, mask: u64) {
        let dim = self.state.spec.value_dim;
        for j in (0..dim).step_by(REGISTERS * LANES) {
            let mut acc = [s.zero(); REGISTERS];
            for at in positions(mask) {
                let p = s.splat(self.space.p[h * PAGE + at]);
                for (i, acc) in acc.iter_mut().enumerate() {
                    // Past the row lie the next one's values: those lanes are cut off when the block is merged.
                    let from = (at * dim + j + i * LANES).min(self.space.values.len() - LANES);
                    *acc = s.fma(p, s.load_first(&self.space.values[from..]), *acc);
                }
            }
            for (i, acc) in acc.iter().enumerate() {
                if let Some(to) = self.space.ob.get_mut(j + i * LANES..j + (i + 1) * LANES) {
                    s.store_partial(to, *acc);
                }
            }
        }
    }

    /// Joins a block to what head `h` has so far.
    #[inline(always)]
    fn merge<S: Simd>(
        &mut self,
        s: S,
        h: usize,
        first: bool,
        so_far: (&mut f32, &mut f32),
        block: (f32, f32),
    ) {
        let dim = self.state.spec.value_dim;
        let (o, ob) = (&mut self.space.o[h * dim..(h + 1) * dim], &self.space.ob[..dim]);
        let ((m, l), (mb, lb)) = (so_far, block);
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
}

/// Turns the scores of one head into weights in place; keys outside the mask weigh nothing. Returns the block's
/// maximum and the sum of its weights.
#[inline(always)]
fn weigh<S: Simd>(s: S, p: &mut [f32], mask: u64) -> (f32, f32) {
    let hide = |p: &mut [f32], with: f32| {
        if mask != u64::MAX {
            positions(!mask).for_each(|at| p[at] = with);
        }
    };
    hide(p, f32::NEG_INFINITY);
    let mut v = [s.zero(); REGISTERS];
    for (i, v) in v.iter_mut().enumerate() {
        *v = s.load_first(&p[i * LANES..]);
    }
    let max = s.reduce_max(s.max(s.max(v[0], v[1]), s.max(v[2], v[3])));
    for (i, v) in v.iter().enumerate() {
        s.store_first(&mut p[i * LANES..], math::exp2(s, s.sub(*v, s.splat(max))));
    }
    hide(p, 0.0);
    for (i, v) in v.iter_mut().enumerate() {
        *v = s.load_first(&p[i * LANES..]);
    }
    (max, s.sum_tree(s.add(s.add(v[0], v[2]), s.add(v[1], v[3]))))
}

/// `max(m, mb)` and the factors `exp2(m - max)`, `exp2(mb - max)`. NaN stays visible.
#[inline(always)]
fn factors<S: Simd>(s: S, m: f32, mb: f32) -> (f32, f32, f32) {
    let new = if m > mb || m.is_nan() { m } else { mb };
    let e = s.to_array(math::exp2(s, s.sub(s.load_partial(&[m, mb], new), s.splat(new))));
    (new, e[0], e[1])
}

/// Which keys the op lets a row see.
enum Rule {
    Plain(Attend),
    Chosen(AttendChosen, Operand),
    Pools(AttendPools, Option<Operand>),
}

impl Rule {
    /// Factor of the products, and the scores' cap.
    fn scale(&self) -> (f32, f32) {
        match self {
            Rule::Plain(op) => (op.scale, op.softcap),
            Rule::Chosen(op, _) => (op.scale, 0.0),
            Rule::Pools(op, _) => (op.scale, 0.0),
        }
    }
}

struct RowsStep {
    level: Level,
    rule: Rule,
    state: Arc<KvPages>,
    q: Operand,
    seqs: Operand,
    pages: Operand,
    sinks: Option<Operand>,
    y: Operand,
}

impl RowsStep {
    /// Key heads that query heads are divided among.
    fn kv_heads(&self) -> usize {
        if matches!(self.rule, Rule::Pools(..)) { 1 } else { self.state.spec.n_heads }
    }

    /// Query heads of a key head, and tiles of them.
    fn group(&self) -> (usize, usize) {
        let heads = self.q.layout.shape.constant(1).unwrap_or(0);
        let group = heads / self.kv_heads();
        (group, group.div_ceil(HEADS))
    }

    fn tile<K: Source>(&self, cx: &Cx, row: usize, kv_head: usize, first: usize, worker: &mut Worker) {
        let (q, pages, y) = (cx.rows(&self.q), cx.rows(&self.pages), cx.rows(&self.y));
        let (key, value) = (self.state.spec.key_dim, self.state.spec.value_dim);
        let heads = HEADS.min(self.group().0 - first);
        let head = kv_head * self.group().0 + first;
        let seqs = cx.rows(&self.seqs);
        let Some((seq, index)) = locate(&seqs, row) else { return };
        let table = seqs.i32(seq);
        let len = (table[seq_table::FIRST_INDEX] + table[seq_table::N_ROWS]) as usize;
        let (scale, softcap) = self.rule.scale();
        let list = match &self.rule {
            Rule::Chosen(_, chosen) | Rule::Pools(_, Some(chosen)) => Some(cx.rows(chosen)),
            Rule::Plain(_) | Rule::Pools(_, None) => None,
        };
        // One list, or one for each key head.
        let list = list.as_ref().map(|l| {
            let each = l.n() / cx.x.t;
            l.i32(row * each + kv_head.min(each - 1))
        });
        let visible = match &self.rule {
            Rule::Plain(op) => {
                let keys = op.sight.keys(index, len);
                [Some((kv_head, Visible::Run(keys.start, keys.end - 1))), None]
            }
            Rule::Chosen(op, _) => [Some((kv_head, Visible::Pools(list.unwrap_or(&[]), op, index))), None],
            Rule::Pools(op, _) => {
                let near = Visible::Run(op.near(index).start, index);
                [Some((0, near)), Some((1, Visible::Ends(list, op, index)))]
            }
        };
        let space = Space::new(&mut worker.scratch, key, value);
        let by = query_factor(scale, softcap);
        for h in 0..heads {
            for (to, from) in space.q[h * key..][..key].iter_mut().zip(q.f32_at([head + h, row, 0])) {
                *to = from * by;
            }
        }
        let sinks = self.sinks.as_ref().map(|s| cx.rows(s));
        let o = space.o.as_ptr();
        let tile = Tile::<K> {
            state: &self.state,
            pages: pages.i32(seq),
            heads,
            visible,
            softcap,
            sinks: sinks.as_ref().map(|s| &s.f32(0)[head..head + heads]),
            space,
            source: PhantomData,
        };
        dispatch(self.level, tile);
        for h in 0..heads {
            // SAFETY: a head of a row belongs to one tile; `o` lies in this thread's scratch, whose borrow by the
            // tile has ended.
            unsafe {
                let o = std::slice::from_raw_parts(o.add(h * value), value);
                y.f32_mut(row * q.dims[1] + head + h).copy_from_slice(o);
            }
        }
    }
}

impl Step for RowsStep {
    fn chunks(&self, cx: &Cx) -> usize {
        cx.x.t * self.kv_heads() * self.group().1
    }

    fn scratch(&self) -> usize {
        Space::floats(self.state.spec.key_dim, self.state.spec.value_dim)
    }

    fn run(&self, cx: &Cx, chunk: usize, worker: &mut Worker) {
        let tiles = self.group().1;
        let (row, kv_head) = (chunk / tiles / self.kv_heads(), chunk / tiles % self.kv_heads());
        let first = chunk % tiles * HEADS;
        match self.state.spec.dtype {
            Dtype::F32 => self.tile::<F32>(cx, row, kv_head, first, worker),
            Dtype::F16 => self.tile::<F16>(cx, row, kv_head, first, worker),
            _ => self.tile::<Q8>(cx, row, kv_head, first, worker),
        }
    }
}

/// The step of an attention, for any state.
pub(super) fn compile(cx: &mut CompileCx, op: &SegOp) -> Box<dyn Step> {
    let state = cx.pages(op.inputs[0]);
    let args: Args = cx.args(op);
    let (rule, tables) = match &op.op {
        Op::Attend(op) => (Rule::Plain(*op), 2),
        Op::AttendChosen(op) => (Rule::Chosen(*op, args.input(2)), 3),
        Op::AttendPools(op) => {
            (Rule::Pools(*op, op.chosen.then(|| args.input(2))), 2 + usize::from(op.chosen))
        }
        other => unreachable!("`{}` is no attention", other.name()),
    };
    Box::new(RowsStep {
        level: args.level,
        rule,
        state,
        q: args.input(1),
        seqs: args.input(tables),
        pages: args.input(tables + 1),
        sinks: args.inputs.get(tables + 2).map(|_| args.input(tables + 2)),
        y: args.result(0),
    })
}

/// Attention over chosen keys, and over pools.
pub const KERNELS: [Kernel; 2] = [
    Kernel { op: "attend_chosen", supports: |_, inputs| dense_rows(inputs), compile },
    Kernel { op: "attend_pools", supports: |_, inputs| dense_rows(inputs), compile },
];
