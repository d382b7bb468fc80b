//! Residual streams: the weights of hyper-connections, and the mix by them.

use firth_graph::{LoadError, Op, SegOp, Type};

use super::{Kernel, words};
use crate::compile::{self, CompileCx, Share, linear, per_element};
use crate::module::MATH;

const MIX: &str = include_str!("../wgsl/streams.wgsl");
const WEIGHTS: &str = include_str!("../wgsl/hyper_weights.wgsl");

pub(super) const KERNELS: [Kernel; 2] = [
    Kernel { op: "hyper_weights", supports: weighs, compile: hyper_weights },
    Kernel { op: "stream_mix", supports: words, compile: stream_mix },
];

/// Streams whose mixing weights an invocation keeps to itself.
const MAX_STREAMS: usize = 16;

fn weighs(op: &Op, inputs: &[Type]) -> bool {
    matches!(op, Op::HyperWeights(h) if h.streams <= MAX_STREAMS) && words(op, inputs)
}

fn operands(op: &SegOp) -> Vec<usize> {
    op.inputs.iter().chain(&op.results).copied().collect()
}

fn hyper_weights(cx: &mut CompileCx, op: &SegOp) -> Result<(), LoadError> {
    let Op::HyperWeights(h) = &op.op else { unreachable!("the op makes weights of streams") };
    let shape = cx.layout(op.inputs[0]).shape;
    let n = h.streams;
    cx.push(compile::Kernel {
        name: "hyper_weights",
        operands: &operands(op),
        scalars: &[h.iterations as u32, h.eps.to_bits()],
        buffers: Vec::new(),
        parts: &[MATH, WEIGHTS],
        values: vec![("N_N", (n * n).to_string()), ("N", n.to_string())],
        groups: Box::new(move |x| {
            let d = shape.dims(x);
            linear((d[1] * d[2] * d[3]).div_ceil(64))
        }),
        share: Share::Never,
    })
}

fn stream_mix(cx: &mut CompileCx, op: &SegOp) -> Result<(), LoadError> {
    let groups = per_element(cx.layout(op.results[0]), 64);
    cx.push(compile::Kernel {
        name: "stream_mix",
        operands: &operands(op),
        scalars: &[],
        buffers: Vec::new(),
        parts: &[MIX],
        values: Vec::new(),
        groups,
        share: Share::Never,
    })
}
