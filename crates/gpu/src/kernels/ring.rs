//! Rows before a row, from the step or from a ring: convolution, and the previous row.

use firth_graph::{LoadError, Op, SegOp, StateSpec};

use super::attention::{access, buffers, named, weights};
use super::recurrent::SLOTS;
use super::{Kernel, words};
use crate::compile::{self, CompileCx, per_element};
use crate::module::MATH;

const PAST: &str = include_str!("../wgsl/past.wgsl");
const RING: &str = include_str!("../wgsl/ring.wgsl");

pub(super) const KERNELS: [Kernel; 2] =
    [Kernel { op: "conv", supports: words, compile }, Kernel { op: "prev_row", supports: words, compile }];

/// Taps ascending from +0, then the bias, then SiLU.
fn value(op: &Op, bias: bool) -> String {
    let Op::Conv(conv) = op else { return "y = past(s, t, index, 1u, c);".into() };
    let (kernel, dilation) = (conv.kernel, conv.dilation);
    let bias = if bias { "y = y + lf2(base(2u) + c * s0(2u));\n" } else { "" };
    let act = if conv.silu { "y = silu(y);\n" } else { "" };
    format!(
        "for (var j = 0u; j < rt({kernel}u); j += 1u) {{\n\
         y = fma(lf1(base(1u) + j * s0(1u) + c * s1(1u)), past(s, t, index, ({kernel}u - 1u - j) * {dilation}u, c), y);\n\
         }}\n{bias}{act}"
    )
}

fn compile(cx: &mut CompileCx, op: &SegOp) -> Result<(), LoadError> {
    let state = cx.state(op.inputs[0]);
    let StateSpec::Ring(spec) = state.spec else { unreachable!("the op's rule makes it a ring") };
    let mut operands = op.inputs[1..].to_vec();
    let seqs = operands.len() - 2;
    operands.push(op.results[0]);
    let y = operands.len() - 1;
    let pool = &state.pool;
    let reach = named(&(access(pool, false) + &access(pool, true)), pool, weights(cx, &operands));
    let names = vec![
        ("VALUE", value(&op.op, op.inputs.len() == 6)),
        ("ROWS", spec.rows.to_string()),
        ("WIDTH", spec.width.to_string()),
        ("SEQS", seqs.to_string()),
        ("SLOTS", (seqs + 1).to_string()),
        ("Y", y.to_string()),
    ];
    let groups = per_element(cx.layout(operands[y]), 64);
    cx.push(compile::Kernel {
        name: op.op.name(),
        operands: &operands,
        scalars: &[],
        buffers: buffers(pool, true),
        parts: &[MATH, &reach, SLOTS, PAST],
        values: names.clone(),
        groups,
    })?;
    let n = (spec.rows * spec.width).div_ceil(64);
    cx.push(compile::Kernel {
        name: "ring",
        operands: &operands,
        scalars: &[],
        buffers: buffers(pool, true),
        parts: &[&reach, SLOTS, RING],
        values: names,
        groups: Box::new(move |x| [n, x.s, 1]),
    })
}
