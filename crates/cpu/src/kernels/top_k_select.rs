//! An indexer's choice: scores of all pools of a row, or of all blocks of a row's head, then the best.

use std::sync::Arc;

use firth_graph::op::{BlockSelect, TopKSelect};
use firth_graph::{Op, PAGE, SegOp};
use firth_simd::{LANES, Level, Simd, dispatch, math};

use super::kv_write::locate;
use crate::operand::{Cx, Operand, Rows};
use crate::program::CompileCx;
use crate::states::KvPages;
use crate::step::{Args, Kernel, Step, Worker, dense_rows};

/// Registers of keys in a block.
const KEYS: usize = PAGE / LANES;

/// Scores of the 64 positions of a page: per head a chain of fma over the key ascending, then relu; heads ascending.
struct Scores<'a> {
    /// `[key_dim][64]`.
    keys: &'a [f32],
    q: &'a Rows,
    row: usize,
    weights: Option<&'a [f32]>,
    y: &'a mut [f32; PAGE],
}

impl firth_simd::Kernel for Scores<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut sum = [s.zero(); KEYS];
        for h in 0..self.q.dims[1] {
            let mut acc = [s.zero(); KEYS];
            for (q, keys) in self.q.f32_at([h, self.row, 0]).iter().zip(self.keys.chunks_exact(PAGE)) {
                let q = s.splat(*q);
                for (i, acc) in acc.iter_mut().enumerate() {
                    *acc = s.fma(q, s.load_first(&keys[i * LANES..]), *acc);
                }
            }
            for (sum, acc) in sum.iter_mut().zip(acc) {
                let score = math::relu(s, acc);
                *sum = match self.weights {
                    Some(w) => s.fma(score, s.splat(w[h]), *sum),
                    None => s.add(score, *sum),
                };
            }
        }
        for (i, sum) in sum.iter().enumerate() {
            s.store_first(&mut self.y[i * LANES..], *sum);
        }
    }
}

/// Products of the 64 positions of a page with one query: a chain of fma over the key ascending.
struct Products<'a> {
    /// `[key_dim][64]`.
    keys: &'a [f32],
    q: &'a [f32],
    y: &'a mut [f32; PAGE],
}

impl firth_simd::Kernel for Products<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut acc = [s.zero(); KEYS];
        for (q, keys) in self.q.iter().zip(self.keys.chunks_exact(PAGE)) {
            let q = s.splat(*q);
            for (i, acc) in acc.iter_mut().enumerate() {
                *acc = s.fma(q, s.load_first(&keys[i * LANES..]), *acc);
            }
        }
        for (i, acc) in acc.iter().enumerate() {
            s.store_first(&mut self.y[i * LANES..], *acc);
        }
    }
}

/// The keys of a page of one head, `[key_dim][64]`.
fn keys(state: &KvPages, page: i32) -> &[f32] {
    let keys = state.page(page as usize).cast::<f32>();
    // SAFETY: the keys of a page of one head in f32, which no step writes while it selects.
    unsafe { std::slice::from_raw_parts(keys, state.spec.key_dim * PAGE) }
}

struct SelectStep {
    level: Level,
    op: TopKSelect,
    state: Arc<KvPages>,
    q: Operand,
    weights: Option<Operand>,
    seqs: Operand,
    pages: Operand,
    y: Operand,
}

impl Step for SelectStep {
    fn chunks(&self, cx: &Cx) -> usize {
        cx.x.t
    }

    fn scratch(&self) -> usize {
        // Scores of all pools, and their order.
        2 * self.pages.layout.shape.constant(0).unwrap_or(0) * PAGE / self.op.ratio
    }

    fn run(&self, cx: &Cx, chunk: usize, worker: &mut Worker) {
        let (seqs, pages) = (cx.rows(&self.seqs), cx.rows(&self.pages));
        let y = cx.rows(&self.y);
        // SAFETY: the row belongs to this chunk.
        let y = unsafe { y.i32_mut(chunk) };
        let Some((seq, index)) = locate(&seqs, chunk) else { return y.fill(-1) };
        let pools = self.op.pools(index);
        if pools <= self.op.n {
            for (p, y) in y.iter_mut().enumerate() {
                *y = if p < pools { p as i32 } else { -1 };
            }
            return;
        }
        let (scores, rest) = worker.scratch.split_at_mut(pools);
        self.scores(cx, chunk, pages.i32(seq), scores);
        choose(scores, &mut rest[..pools], y);
    }
}

impl SelectStep {
    fn scores(&self, cx: &Cx, row: usize, pages: &[i32], scores: &mut [f32]) {
        let (q, weights) = (cx.rows(&self.q), self.weights.as_ref().map(|w| cx.rows(w)));
        let ratio = self.op.ratio;
        let mut block = [0.0; PAGE];
        for page in 0..(scores.len() * ratio).div_ceil(PAGE) {
            let keys = keys(&self.state, pages[page]);
            let weights = weights.as_ref().map(|w| w.f32_at([row, 0, 0]));
            dispatch(self.level, Scores { keys, q: &q, row, weights, y: &mut block });
            for (at, score) in block.iter().enumerate() {
                let token = page * PAGE + at + 1;
                if token.is_multiple_of(ratio) && token / ratio <= scores.len() {
                    scores[token / ratio - 1] = *score;
                }
            }
        }
    }
}

/// Whether a score goes before another of a lower number; a NaN is the least.
fn beats(a: f32, b: f32) -> bool {
    a > b || b.is_nan() && !a.is_nan()
}

/// The best of `scores`, ties to the lowest number, written ascending. `order` has as many places as `scores`.
fn choose(scores: &[f32], order: &mut [f32], y: &mut [i32]) {
    // Pool numbers are kept as the bits of floats: the scratch is one of floats.
    let order: &mut [u32] = bytemuck::cast_slice_mut(order);
    order.iter_mut().enumerate().for_each(|(i, o)| *o = i as u32);
    let before = |a: &u32, b: &u32| {
        let (x, y) = (scores[*a as usize], scores[*b as usize]);
        match (beats(x, y), beats(y, x)) {
            (true, _) => std::cmp::Ordering::Less,
            (_, true) => std::cmp::Ordering::Greater,
            _ => a.cmp(b),
        }
    };
    order.select_nth_unstable_by(y.len() - 1, before);
    let chosen = &mut order[..y.len()];
    chosen.sort_unstable();
    y.iter_mut().zip(chosen).for_each(|(y, p)| *y = *p as i32);
}

/// The choice of blocks of one head of a row.
struct BlockStep {
    level: Level,
    op: BlockSelect,
    state: Arc<KvPages>,
    q: Operand,
    seqs: Operand,
    pages: Operand,
    y: Operand,
}

impl BlockStep {
    fn heads(&self) -> usize {
        self.q.layout.shape.constant(1).unwrap_or(0)
    }

    /// The largest product of each block's tokens; infinity for the last blocks, which are read whatever it is.
    fn scores(&self, q: &[f32], index: usize, pages: &[i32], scores: &mut [f32]) {
        let ratio = self.op.ratio;
        let asked = self.op.first_local(index).min(scores.len());
        let (asked, local) = scores.split_at_mut(asked);
        asked.fill(f32::NEG_INFINITY);
        local.fill(f32::INFINITY);
        let mut products = [0.0; PAGE];
        for page in 0..(asked.len() * ratio).div_ceil(PAGE) {
            let keys = keys(&self.state, pages[page]);
            dispatch(self.level, Products { keys, q, y: &mut products });
            for (at, product) in products.iter().enumerate() {
                if let Some(score) = asked.get_mut((page * PAGE + at) / ratio)
                    && *product > *score
                {
                    *score = *product;
                }
            }
        }
    }
}

impl Step for BlockStep {
    fn chunks(&self, cx: &Cx) -> usize {
        cx.x.t * self.heads()
    }

    fn scratch(&self) -> usize {
        // Scores of all blocks, and their order.
        2 * self.pages.layout.shape.constant(0).unwrap_or(0) * PAGE / self.op.ratio
    }

    fn run(&self, cx: &Cx, chunk: usize, worker: &mut Worker) {
        let (q, seqs, pages) = (cx.rows(&self.q), cx.rows(&self.seqs), cx.rows(&self.pages));
        let (row, head) = (chunk / self.heads(), chunk % self.heads());
        let y = cx.rows(&self.y);
        // SAFETY: the head of a row belongs to this chunk.
        let y = unsafe { y.i32_mut(chunk) };
        y.fill(-1);
        let Some((seq, index)) = locate(&seqs, row) else { return };
        let (blocks, room) = (self.op.complete(index), self.op.room(index));
        if blocks <= room {
            y.iter_mut().zip(0..blocks).for_each(|(y, b)| *y = b as i32);
        } else if room > 0 {
            let (scores, rest) = worker.scratch.split_at_mut(blocks);
            self.scores(q.f32_at([head, row, 0]), index, pages.i32(seq), scores);
            choose(scores, &mut rest[..blocks], &mut y[..room]);
        }
    }
}

fn blocks(cx: &mut CompileCx, op: &SegOp) -> Box<dyn Step> {
    let state = cx.pages(op.inputs[0]);
    let args: Args = cx.args(op);
    let Op::BlockSelect(select) = &op.op else { unreachable!("the table names the op") };
    Box::new(BlockStep {
        level: args.level,
        op: *select,
        state,
        q: args.input(1),
        seqs: args.input(2),
        pages: args.input(3),
        y: args.result(0),
    })
}

fn compile(cx: &mut CompileCx, op: &SegOp) -> Box<dyn Step> {
    let state = cx.pages(op.inputs[0]);
    let args: Args = cx.args(op);
    let Op::TopKSelect(select) = &op.op else { unreachable!("the table names the op") };
    let tables = args.inputs.len() - 2;
    Box::new(SelectStep {
        level: args.level,
        op: *select,
        state,
        q: args.input(1),
        weights: (tables == 3).then(|| args.input(2)),
        seqs: args.input(tables),
        pages: args.input(tables + 1),
        y: args.result(0),
    })
}

/// An indexer's choice of pools, and of blocks for each head.
pub const KERNELS: [Kernel; 2] = [
    Kernel { op: "top_k_select", supports: |_, inputs| dense_rows(inputs), compile },
    Kernel { op: "block_select", supports: |_, inputs| dense_rows(inputs), compile: blocks },
];
