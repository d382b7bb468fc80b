//! Logits to token.

use firth_graph::{LoadError, SegOp, Type};
use firth_sampling::{WEIGHT_COARSE, WEIGHT_FINE};

use super::{Kernel, words};
use crate::compile::{self, CompileCx, Share, linear};

const TEXT: &str = include_str!("../wgsl/sample.wgsl");

pub(super) const KERNELS: [Kernel; 1] = [Kernel { op: "sample", supports, compile }];

/// Sums of weights stay exact up to this many logits.
const MAX_VOCAB: usize = 1 << 20;

fn supports(op: &firth_graph::Op, inputs: &[Type]) -> bool {
    let few = |t: &Type| t.layout().is_some_and(|l| l.shape.constant(0).is_some_and(|n| n <= MAX_VOCAB));
    words(op, inputs) && few(&inputs[0])
}

fn compile(cx: &mut CompileCx, op: &SegOp) -> Result<(), LoadError> {
    let logits = *cx.layout(op.inputs[0]);
    let tables: Vec<u32> = WEIGHT_COARSE.iter().chain(&WEIGHT_FINE).copied().collect();
    let weights = cx.constants("weights of distances", &tables)?;
    let scratch = cx.buffer("logits of the sampler", logits.bytes(&cx.segment.bounds))?;
    let operands: Vec<usize> = op.inputs.iter().chain(&op.results).copied().collect();
    let before = operands.iter().filter(|v| cx.weight(**v).is_some()).count();
    cx.push(compile::Kernel {
        name: "sample",
        operands: &operands,
        scalars: &[],
        buffers: vec![(weights, false), (scratch, true)],
        parts: &[TEXT],
        values: vec![("SCRATCH", (before + 1).to_string())],
        groups: Box::new(move |x| linear(logits.shape.dims(x)[1])),
        share: Share::Never,
    })
}
