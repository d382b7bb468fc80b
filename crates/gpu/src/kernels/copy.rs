//! Dense copies of any view of any type.

use firth_graph::{LoadError, Op, SegOp, Type};

use super::Kernel;
use crate::compile::{self, CompileCx, Share, linear};

const TEXT: &str = include_str!("../wgsl/copy.wgsl");

pub(super) const KERNELS: [Kernel; 1] = [Kernel { op: "copy", supports, compile }];

fn supports(_: &Op, inputs: &[Type]) -> bool {
    inputs[0].layout().is_some()
}

fn compile(cx: &mut CompileCx, op: &SegOp) -> Result<(), LoadError> {
    let (x, y) = (op.inputs[0], op.results[0]);
    let l = *cx.layout(x);
    let start = cx.arena_byte(x) + l.offset;
    let scalars =
        [start, l.strides[0], l.strides[1], l.strides[2], l.strides[3], l.unit(), l.dtype.block_len()]
            .map(|n| n as u32);
    let groups = Box::new(move |e: &_| linear(l.bytes(e).div_ceil(4 * 64)));
    cx.push(compile::Kernel {
        name: "copy",
        operands: &[x, y],
        scalars: &scalars,
        buffers: Vec::new(),
        parts: &[TEXT],
        values: Vec::new(),
        groups,
        share: Share::Never,
    })
}
