//! A compiled op: its chunks of work and what it needs to run one.

use std::ops::Range;

use firth_graph::{Op, SegOp, Type};
use firth_simd::{Level, Simd, dispatch};

use crate::operand::{Cx, Operand, Rows};
use crate::program::CompileCx;

/// Memory of one thread, allocated at load.
pub struct Worker {
    /// Scratch floats, as many as the hungriest step asked for.
    pub scratch: Vec<f32>,
    /// Sampler scratch, where the program samples.
    pub sampler: Option<firth_sampling::Scratch>,
    /// Seconds spent in each step of the program, while it is timed.
    pub seconds: Vec<f64>,
}

/// One op, ready to run.
pub trait Step: Send + Sync {
    /// Work items of a step; any thread may take any of them.
    fn chunks(&self, cx: &Cx) -> usize;

    /// Whether the number of chunks depends on more than the extents of a step: on tables that the host gives.
    fn varies(&self) -> bool {
        false
    }

    /// Does chunk `chunk`. Writes only what belongs to it.
    fn run(&self, cx: &Cx, chunk: usize, worker: &mut Worker);

    /// Scratch floats per thread.
    fn scratch(&self) -> usize {
        0
    }

    /// Memory that chunk `chunk` reads first and that no step writes, where it is worth fetching ahead: weights
    /// that the step streams through once.
    fn ahead(&self, cx: &Cx, chunk: usize) -> Option<&[u8]> {
        let _ = (cx, chunk);
        None
    }
}

/// A kernel: which ops it takes, and how it becomes a step. Kernels stand in one list, [`crate::kernels::ALL`].
pub struct Kernel {
    /// The op's name.
    pub op: &'static str,
    /// Whether it takes the op on operands of these types and layouts.
    pub supports: fn(&Op, &[Type]) -> bool,
    /// Makes the step.
    pub compile: fn(&mut CompileCx, &SegOp) -> Box<dyn Step>,
}

/// Rows whose axis 0 is contiguous: what every kernel reads, unless it says otherwise.
pub fn dense_rows(inputs: &[Type]) -> bool {
    inputs.iter().all(|t| t.layout().is_none_or(|l| l.has_dense_rows()))
}

/// Elements that make a chunk worth a thread's while: some microseconds of a cheap op.
pub const CHUNK_ELEMENTS: usize = 8192;

/// Rows to a chunk for rows of `width` elements.
pub fn rows_per_chunk(width: usize) -> usize {
    (CHUNK_ELEMENTS / width.max(1)).max(1)
}

/// A function of rows: row `r` of the results from rows of the operands.
pub trait RowFn: Send + Sync {
    /// Computes row `r` of result 0 (and of the others).
    fn row(&self, cx: &Cx, r: usize);
}

/// Shares the rows of `result` out to chunks.
pub struct ByRows<F> {
    /// The rows' function.
    pub f: F,
    /// The result whose rows are counted.
    pub result: Operand,
    /// Rows in a chunk.
    pub rows: usize,
}

impl<F: RowFn> ByRows<F> {
    /// A step over the rows of `result`.
    pub fn boxed(f: F, result: &Operand) -> Box<dyn Step>
    where
        F: 'static,
    {
        let width = result.layout.shape.constant(0).unwrap_or(1);
        Box::new(ByRows { f, result: result.clone(), rows: rows_per_chunk(width) })
    }
}

impl<F: RowFn> Step for ByRows<F> {
    fn chunks(&self, cx: &Cx) -> usize {
        cx.rows(&self.result).n().div_ceil(self.rows)
    }

    fn run(&self, cx: &Cx, chunk: usize, _worker: &mut Worker) {
        let n = cx.rows(&self.result).n();
        for r in chunk * self.rows..((chunk + 1) * self.rows).min(n) {
            self.f.row(cx, r);
        }
    }
}

/// A function of rows in lanes. A chunk resolves its tensors and the instruction set once and not for each row: rows
/// may be as short as a head.
pub trait LaneFn: Send + Sync {
    /// The tensors of a step.
    type Tensors;

    /// Resolves the tensors.
    fn tensors(&self, cx: &Cx) -> Self::Tensors;

    /// Computes the row at indices `i` of axes 1 to 3 of the results. Mark it `#[inline(always)]`.
    ///
    /// # Safety
    /// The row belongs to the caller, and no borrow of it lives.
    unsafe fn row<S: Simd>(&self, s: S, tensors: &Self::Tensors, i: [usize; 3]);
}

/// Shares the rows of `result` out to chunks.
struct ByLanes<F> {
    f: F,
    level: Level,
    result: Operand,
    rows: usize,
}

/// A step over the rows of `result`.
pub fn by_lanes<F: LaneFn + 'static>(f: F, level: Level, result: &Operand) -> Box<dyn Step> {
    let width = result.layout.shape.constant(0).unwrap_or(1);
    Box::new(ByLanes { f, level, result: result.clone(), rows: rows_per_chunk(width) })
}

impl<F: LaneFn> Step for ByLanes<F> {
    fn chunks(&self, cx: &Cx) -> usize {
        cx.rows(&self.result).n().div_ceil(self.rows)
    }

    fn run(&self, cx: &Cx, chunk: usize, _worker: &mut Worker) {
        let result = cx.rows(&self.result);
        let first = chunk * self.rows;
        let n = self.rows.min(result.n() - first);
        dispatch(self.level, LaneRows { f: &self.f, tensors: self.f.tensors(cx), result, first, n });
    }
}

/// The rows of a chunk.
struct LaneRows<'a, F: LaneFn> {
    f: &'a F,
    tensors: F::Tensors,
    result: Rows,
    first: usize,
    n: usize,
}

impl<F: LaneFn> firth_simd::Kernel for LaneRows<'_, F> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut i = self.result.split(self.first);
        for _ in 0..self.n {
            // SAFETY: the chunk's rows, one after the other.
            unsafe { self.f.row(s, &self.tensors, i) };
            i = self.result.following(i);
        }
    }
}

/// Rows that are made where they are packed and never stored: an op whose last result only products read.
pub trait RowMaker: Send + Sync {
    /// Makes columns of the row at indices `i` of axes 1 to 3 of that result, and the row of the op's other results.
    ///
    /// # Safety
    /// Nobody else makes these columns, and no borrow of the row of the other results lives.
    unsafe fn make(&self, cx: &Cx, i: [usize; 3], columns: Range<usize>, into: &mut [f32]);

    /// Whether columns can be made without the others of their row.
    fn divides(&self) -> bool;
}

/// What every kernel needs of the compile context.
pub struct Args {
    /// Tensor operands in order; `None` for states and for weights in panels.
    pub inputs: Vec<Option<Operand>>,
    /// Results in order.
    pub results: Vec<Option<Operand>>,
    /// Instruction set.
    pub level: Level,
}

impl Args {
    /// Tensor operand `i`.
    pub fn input(&self, i: usize) -> Operand {
        self.inputs[i].clone().expect("the op's rule makes it a tensor of elements")
    }

    /// Tensor result `i`.
    pub fn result(&self, i: usize) -> Operand {
        self.results[i].clone().expect("the op's rule makes it a tensor")
    }
}
