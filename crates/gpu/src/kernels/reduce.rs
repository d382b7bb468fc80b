//! Rows that become weights or a number.

use firth_graph::{LoadError, Op, SegOp};

use super::{Kernel, sums, words};
use crate::compile::{self, CompileCx, Share, per_row};
use crate::module::MATH;

const TEXT: &str = include_str!("../wgsl/reduce.wgsl");

pub(super) const KERNELS: [Kernel; 2] =
    [Kernel { op: "softmax", supports: words, compile }, Kernel { op: "row_dot", supports: words, compile }];

const SOFTMAX: &str = "
    var top = -inf();
    for (var j = l; j < width; j += 64u) { top = upper(top, lf0(x + j * s0(0u))); }
    high[l] = top;
    workgroupBarrier();
    top = upper_high();
    var s = 0.0;
    for (var j = l; j < width; j += 64u) { s += exp_(lf0(x + j * s0(0u)) - top); }
    part[l] = s;
    workgroupBarrier();
    let sum = plus_part();
    for (var j = l; j < width; j += 64u) {
        arena[base(1u) + r * width + j] = bitcast<u32>(exp_(lf0(x + j * s0(0u)) - top) / sum);
    }
";

const ROW_DOT: &str = "
    // Axes of length 1 repeat.
    let b = row_of(1u, vec3<u32>(i.x % max(n1(1u), 1u), i.y % max(n2(1u), 1u), i.z % max(n3(1u), 1u)));
    var s = 0.0;
    for (var j = l; j < width; j += 64u) { s = fma(lf0(x + j * s0(0u)), lf1(b + j * s0(1u)), s); }
    part[l] = s;
    workgroupBarrier();
    let sum = plus_part();
    if (l == 0u) { arena[base(2u) + r] = bitcast<u32>(sum); }
";

fn compile(cx: &mut CompileCx, op: &SegOp) -> Result<(), LoadError> {
    let body = match &op.op {
        Op::Softmax(_) => SOFTMAX,
        Op::RowDot(_) => ROW_DOT,
        other => unreachable!("{} reduces no rows", other.name()),
    };
    let operands: Vec<usize> = op.inputs.iter().chain(&op.results).copied().collect();
    let groups = per_row(cx.layout(operands[0]));
    let sums = sums::text(cx, &["part", "high"])?;
    cx.push(compile::Kernel {
        name: op.op.name(),
        operands: &operands,
        scalars: &[],
        buffers: Vec::new(),
        parts: &[MATH, &sums, TEXT],
        values: vec![("BODY", body.to_string())],
        groups,
        share: Share::Never,
    })
}
