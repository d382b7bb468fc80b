//! Normalisations of rows.

use firth_graph::{LoadError, Op, SegOp};

use super::{Kernel, sums, words};
use crate::compile::{self, CompileCx, Share, per_row};

const TEXT: &str = include_str!("../wgsl/norm.wgsl");

pub(super) const KERNELS: [Kernel; 5] = [
    Kernel { op: "rms_norm", supports: words, compile },
    Kernel { op: "rms_norm_mul", supports: words, compile },
    Kernel { op: "add_rms_norm_mul", supports: words, compile },
    Kernel { op: "layer_norm", supports: words, compile },
    Kernel { op: "l2_norm", supports: words, compile },
];

fn compile(cx: &mut CompileCx, op: &SegOp) -> Result<(), LoadError> {
    const X: &str = "lf0(x + j * s0(0u))";
    let operands: Vec<usize> = op.inputs.iter().chain(&op.results).copied().collect();
    let y = operands.len() - 1;
    let weight = |o: usize| format!(" * lf{o}(other({o}u, j, i))");
    let (eps, value, weight, sum, mean) = match &op.op {
        Op::RmsNorm(n) => (n.eps, X.into(), String::new(), "", false),
        Op::RmsNormMul(n) => (n.eps, X.into(), weight(1), "", false),
        Op::L2Norm(n) => (n.eps, X.into(), String::new(), "", false),
        Op::LayerNorm(n) => (n.eps, format!("{X} - mean"), String::new(), "", true),
        Op::AddRmsNormMul(n) => {
            let sum = "arena[base(3u) + r * width + j] = bitcast<u32>(v);";
            (n.eps, format!("{X} + lf1(row_of(1u, i) + j * s0(1u))"), weight(2), sum, false)
        }
        other => unreachable!("{} is no normalisation", other.name()),
    };
    let groups = per_row(cx.layout(operands[y]));
    let sums = sums::text(cx, &["part", "part2"])?;
    cx.push(compile::Kernel {
        name: op.op.name(),
        operands: &operands,
        scalars: &[eps.to_bits()],
        buffers: Vec::new(),
        parts: &[&sums, TEXT],
        values: vec![
            ("COUNT", if matches!(op.op, Op::L2Norm(_)) { "1.0" } else { "f32(width)" }.into()),
            ("WEIGHT", weight),
            ("MEAN", mean.to_string()),
            ("SUM", sum.into()),
            ("X", value),
            ("Y", y.to_string()),
        ],
        groups,
        share: Share::Any,
    })
}
