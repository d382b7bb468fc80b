//! Logits to token: crate `sampling` on one row per chunk.

use firth_graph::SegOp;
use firth_graph::op::outcome;
use firth_sampling::{Lists, RowParams};

use crate::operand::{Cx, Operand, Rows};
use crate::program::CompileCx;
use crate::step::{Args, Kernel, Step, Worker, dense_rows};

struct Sample {
    logits: Operand,
    params: Operand,
    penalties: Operand,
    biases: Operand,
    masks: Operand,
    ids: Operand,
}

/// A dense list of integers as one slice of words.
fn words(rows: &Rows) -> &[u32] {
    let n = rows.dims.iter().product();
    if n == 0 {
        return &[];
    }
    // SAFETY: the lists are step inputs, dense by their declaration, and nothing writes them during a step.
    unsafe { std::slice::from_raw_parts(rows.raw().0.cast(), n) }
}

impl Step for Sample {
    fn chunks(&self, cx: &Cx) -> usize {
        cx.rows(&self.logits).n()
    }

    fn run(&self, cx: &Cx, chunk: usize, worker: &mut Worker) {
        let (logits, params, ids) = (cx.rows(&self.logits), cx.rows(&self.params), cx.rows(&self.ids));
        let (penalties, biases, masks) =
            (cx.rows(&self.penalties), cx.rows(&self.biases), cx.rows(&self.masks));
        let lists = Lists {
            penalties: words(&penalties).as_chunks::<2>().0,
            biases: words(&biases).as_chunks::<2>().0,
            masks: words(&masks),
        };
        let mut row = [0u32; RowParams::WORDS];
        for (to, from) in row.iter_mut().zip(params.i32(chunk)) {
            *to = *from as u32;
        }
        let scratch = worker.sampler.as_mut().expect("a program that samples has scratch for it");
        let id =
            outcome(firth_sampling::sample(&RowParams::from_words(&row), &lists, logits.f32(chunk), scratch));
        let to = ids.element([chunk, 0, 0, 0]).cast::<i32>();
        // SAFETY: one element of the result, which belongs to this chunk.
        unsafe { to.write(id) };
    }
}

fn compile(cx: &mut CompileCx, op: &SegOp) -> Box<dyn Step> {
    let args: Args = cx.args(op);
    let logits = args.input(0);
    cx.needs_sampler(logits.layout.shape.constant(0).unwrap_or(0));
    Box::new(Sample {
        logits,
        params: args.input(1),
        penalties: args.input(2),
        biases: args.input(3),
        masks: args.input(4),
        ids: args.result(0),
    })
}

/// Sampling.
pub const KERNELS: [Kernel; 1] = [Kernel { op: "sample", supports: |_, inputs| dense_rows(inputs), compile }];
