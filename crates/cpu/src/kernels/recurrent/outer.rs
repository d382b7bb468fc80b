//! Recurrences whose update is a decay and an outer product: linear attention and the selective scans.
//!
//! Per column `j` and token, with `u` the column's input: `M[i] = fma(b[i], u, e M[i])`, `y = sum M[i] c[i]`, a chain
//! of fma, i ascending.

use std::sync::Arc;

use firth_graph::{Op, RecurrentSpec, SegOp, StateSpec};
use firth_simd::{LANES, Level, Simd, dispatch, math};

use super::span::{Block, Blocks, Span, block_words, log_row};
use super::{TINY, flushes, log};
use crate::operand::{Cx, Operand};
use crate::program::CompileCx;
use crate::states::{COLUMNS, Slots};
use crate::step::{Args, Kernel, Step, Worker, dense_rows};

/// What a token brings to a block of columns.
#[derive(Clone, Copy)]
pub struct Token<'a> {
    /// Factors of the input, one a row of the state.
    pub b: &'a [f32],
    /// Factors of the output; empty for a logged row.
    pub c: &'a [f32],
    /// The columns' inputs.
    pub x: &'a [f32],
    /// Time step before softplus: of the head, or of each column. Empty where there is none.
    pub dt: &'a [f32],
    /// Where the columns' outputs go; null for a logged row.
    pub y: *mut f32,
}

/// How the state decays.
#[derive(Clone, Copy)]
pub enum Decay<'a> {
    /// By this factor.
    Fixed(f32),
    /// By `exp(d a)`, one `a` for the head or one per row.
    Head(&'a [f32]),
    /// By `exp(d a[i, j])`: `[rows][columns of the block]`.
    Columns(&'a [f32]),
}

const FIXED: u8 = 0;
const HEAD: u8 = 1;
const COLUMN: u8 = 2;

/// Some columns of a block, all tokens of a sequence.
pub struct Columns<'a, T> {
    /// The tokens, logged rows first.
    pub token: T,
    /// The sequence.
    pub span: Span,
    /// The columns in the slot; rows are `stride` apart. It holds the state read.
    pub base: *mut f32,
    /// Columns of the block.
    pub stride: usize,
    /// First of the columns in the block.
    pub first: usize,
    /// Columns.
    pub width: usize,
    /// Rows of the state.
    pub rows: usize,
    /// Its decay.
    pub decay: Decay<'a>,
    /// A state after the base, `rows` times `stride`.
    pub spare: &'a mut [f32],
    /// Decays by row, `rows`.
    pub decays: &'a mut [f32],
}

impl<'t, T: Fn(usize) -> Token<'t>> firth_simd::Kernel for Columns<'_, T> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        const FULL: usize = COLUMNS / LANES;
        match (self.width == COLUMNS, self.decay) {
            (true, Decay::Fixed(_)) => self.tokens::<S, FULL, FIXED>(s),
            (true, Decay::Head(_)) => self.tokens::<S, FULL, HEAD>(s),
            (true, Decay::Columns(_)) => self.tokens::<S, FULL, COLUMN>(s),
            (false, Decay::Fixed(_)) => self.tokens::<S, 1, FIXED>(s),
            (false, Decay::Head(_)) => self.tokens::<S, 1, HEAD>(s),
            (false, Decay::Columns(_)) => self.tokens::<S, 1, COLUMN>(s),
        }
    }
}

impl<'t, T: Fn(usize) -> Token<'t>> Columns<'_, T> {
    /// Lanes of register `n` of `N`: all of them where the block is whole, which the compiler then knows.
    #[inline(always)]
    fn lanes<const N: usize>(&self, n: usize) -> usize {
        if N == COLUMNS / LANES { LANES } else { LANES.min(self.width - n * LANES) }
    }

    #[inline(always)]
    fn tokens<S: Simd, const N: usize, const KIND: u8>(&mut self, s: S) {
        let certain = self.span.n_log + self.span.n_certain;
        let mut at = self.base;
        for t in 0..self.span.n_log + self.span.n_rows {
            if t == certain {
                self.copy_to_spare();
                at = self.spare.as_mut_ptr();
            }
            let x = (self.token)(t);
            let (mut u, mut d) = ([s.zero(); N], [s.zero(); N]);
            for n in 0..N {
                let lanes = self.lanes::<N>(n);
                let at = self.first + n * LANES;
                u[n] = s.load_partial(&x.x[at..at + lanes], 0.0);
                if KIND != FIXED {
                    d[n] = match KIND {
                        COLUMN => s.load_partial(&x.dt[at..at + lanes], 0.0),
                        _ => s.splat(x.dt[0]),
                    };
                    d[n] = math::softplus(s, d[n]);
                    u[n] = s.mul(d[n], u[n]);
                }
            }
            let e = self.factors::<S, KIND>(s, d[0]);
            let y = self.pass::<S, N, KIND>(s, at, &x, &u, &d, e);
            if !x.y.is_null() {
                for (n, y) in y.iter().enumerate() {
                    // SAFETY: these columns of the token's output are this chunk's.
                    let out = unsafe {
                        std::slice::from_raw_parts_mut(x.y.add(self.first + n * LANES), self.lanes::<N>(n))
                    };
                    s.store_partial(out, *y);
                }
            }
            if flushes(self.span.index(t)) {
                self.flush::<S, N>(s, at);
            }
        }
    }

    /// The factor of all rows, or one per row in `decays`.
    #[inline(always)]
    fn factors<S: Simd, const KIND: u8>(&mut self, s: S, d: S::F) -> S::F {
        match self.decay {
            Decay::Fixed(e) => s.splat(e),
            Decay::Head(a) => {
                for (e, a) in self.decays[..a.len()].chunks_mut(LANES).zip(a.chunks(LANES)) {
                    s.store_partial(e, math::exp(s, s.mul(d, s.load_partial(a, 0.0))));
                }
                if a.len() == 1 {
                    let one = self.decays[0];
                    self.decays[..self.rows].fill(one);
                }
                s.zero()
            }
            Decay::Columns(_) => s.zero(),
        }
    }

    #[inline(always)]
    fn pass<S: Simd, const N: usize, const KIND: u8>(
        &self,
        s: S,
        at: *mut f32,
        x: &Token,
        u: &[S::F; N],
        d: &[S::F; N],
        e: S::F,
    ) -> [S::F; N] {
        let mut y = [s.zero(); N];
        for i in 0..self.rows {
            let b = s.splat(x.b[i]);
            let c = s.splat(x.c.get(i).copied().unwrap_or(0.0));
            for n in 0..N {
                let e = match (KIND, self.decay) {
                    (HEAD, _) => s.splat(self.decays[i]),
                    (COLUMN, Decay::Columns(a)) => {
                        let from = i * self.stride + self.first + n * LANES;
                        math::exp(s, s.mul(d[n], s.load_partial(&a[from..from + self.lanes::<N>(n)], 0.0)))
                    }
                    _ => e,
                };
                let m = s.fma(b, u[n], s.mul(e, self.load::<S, N>(s, at, i, n)));
                self.store::<S, N>(s, at, i, n, m);
                y[n] = s.fma(m, c, y[n]);
            }
        }
        y
    }

    #[inline(always)]
    fn flush<S: Simd, const N: usize>(&self, s: S, at: *mut f32) {
        for i in 0..self.rows {
            for n in 0..N {
                let m = self.load::<S, N>(s, at, i, n);
                self.store::<S, N>(s, at, i, n, s.select(s.lt(s.abs(m), s.splat(TINY)), s.zero(), m));
            }
        }
    }

    #[inline(always)]
    fn load<S: Simd, const N: usize>(&self, s: S, at: *mut f32, i: usize, n: usize) -> S::F {
        let lanes = self.lanes::<N>(n);
        // SAFETY: the columns lie in the block, or in the spare of its size, and are this chunk's.
        unsafe {
            let row = at.add(i * self.stride + n * LANES);
            match lanes == LANES {
                true => s.load_ptr(row),
                false => s.load_partial(std::slice::from_raw_parts(row, lanes), 0.0),
            }
        }
    }

    #[inline(always)]
    fn store<S: Simd, const N: usize>(&self, s: S, at: *mut f32, i: usize, n: usize, m: S::F) {
        let lanes = self.lanes::<N>(n);
        // SAFETY: as in `load`.
        unsafe {
            let row = at.add(i * self.stride + n * LANES);
            match lanes == LANES {
                true => s.store_ptr(row, m),
                false => s.store_partial(std::slice::from_raw_parts_mut(row, lanes), m),
            }
        }
    }

    fn copy_to_spare(&mut self) {
        for i in 0..self.rows {
            // SAFETY: as in `load`; base and spare are different memory.
            unsafe {
                let from = self.base.add(i * self.stride);
                let to = self.spare.as_mut_ptr().add(i * self.stride);
                std::ptr::copy_nonoverlapping(from, to, self.width);
            }
        }
    }
}

/// Runs the tokens of a sequence over a block. `scratch` holds [`scratch_floats`] for `rows`.
#[allow(clippy::too_many_arguments, reason = "the place of one block")]
pub fn run_block<'a>(
    level: Level,
    state: &Slots,
    span: &Span,
    block: &Block,
    rows: usize,
    decay: Decay,
    scratch: &mut [f32],
    token: &dyn Fn(usize) -> Token<'a>,
) {
    let (src, base) = block_words(state, span, block, rows);
    if !std::ptr::eq(src, base) {
        // SAFETY: two different slots; the block is this chunk's.
        unsafe { std::ptr::copy_nonoverlapping(src, base, rows * block.width) };
    }
    let (spare, decays) = scratch.split_at_mut(rows * COLUMNS);
    let step = if block.width == COLUMNS { COLUMNS } else { LANES };
    for first in (0..block.width).step_by(step) {
        let width = step.min(block.width - first);
        let columns = Columns {
            token,
            span: *span,
            base: base.wrapping_add(first),
            stride: block.width,
            first,
            width,
            rows,
            decay,
            spare: &mut *spare,
            decays: &mut decays[..rows],
        };
        dispatch(level, columns);
    }
}

/// Scratch of [`run_block`].
pub fn scratch_floats(rows: usize) -> usize {
    rows * (COLUMNS + 1)
}

struct LinearStep {
    level: Level,
    decay: Vec<f32>,
    blocks: Blocks,
    spec: RecurrentSpec,
    state: Arc<Slots>,
    q: Operand,
    k: Operand,
    v: Operand,
    seqs: Operand,
    slots: Operand,
    o: Operand,
}

impl Step for LinearStep {
    fn chunks(&self, cx: &Cx) -> usize {
        cx.x.s * self.blocks.n()
    }

    fn scratch(&self) -> usize {
        scratch_floats(self.blocks.rows)
    }

    fn run(&self, cx: &Cx, chunk: usize, worker: &mut Worker) {
        let (seqs, slots) = (cx.rows(&self.seqs), cx.rows(&self.slots));
        let Some(span) = Span::new(&seqs, &slots, chunk / self.blocks.n()) else { return };
        span.check(&self.spec);
        let b = self.blocks.get(chunk % self.blocks.n());
        let (q, k, v, o) = (cx.rows(&self.q), cx.rows(&self.k), cx.rows(&self.v), cx.rows(&self.o));
        let (key, value) = (self.blocks.rows, self.blocks.columns);
        let token = |t: usize| {
            if t < span.n_log {
                let row = log_row(&self.state, &self.spec, span.read.expect("a log has a slot"), t);
                let x = &row[key * self.blocks.heads + b.head * value..][..value];
                let (k, y) = (&row[b.head * key..][..key], std::ptr::null_mut());
                return Token { b: k, c: &[], x: &x[b.first..b.first + b.width], dt: &[], y };
            }
            let row = span.first_row + t - span.n_log;
            Token {
                b: k.f32_at([b.head, row, 0]),
                c: q.f32_at([b.head, row, 0]),
                x: &v.f32_at([b.head, row, 0])[b.first..b.first + b.width],
                dt: &[],
                y: o.element([b.first, b.head, row, 0]).cast(),
            }
        };
        let decay = Decay::Fixed(self.decay[b.head]);
        run_block(self.level, &self.state, &span, &b, key, decay, &mut worker.scratch, &token);
    }
}

fn compile(cx: &mut CompileCx, op: &SegOp) -> Box<dyn Step> {
    let state = cx.slots(op.inputs[0]);
    let args: Args = cx.args(op);
    let Op::LinearAttention(linear) = &op.op else { unreachable!("the table names the op") };
    let StateSpec::Recurrent(spec) = state.spec else { unreachable!("the op's rule asks for a recurrence") };
    log::after(cx, &state, spec, &args, &[(2, false), (3, false)], 4);
    let [key, value, heads] = spec.base;
    Box::new(LinearStep {
        level: args.level,
        decay: linear.decay.clone(),
        blocks: Blocks { rows: key, columns: value, heads },
        spec,
        state,
        q: args.input(1),
        k: args.input(2),
        v: args.input(3),
        seqs: args.input(4),
        slots: args.input(5),
        o: args.result(0),
    })
}

/// Linear attention.
pub const LINEAR_ATTENTION: Kernel =
    Kernel { op: "linear_attention", supports: |_, inputs| dense_rows(inputs), compile };
