//! Rows by index, rope, and the weighted sum of experts.

use firth_graph::op::RopePairs;
use firth_graph::{LoadError, Op, SegOp};

use super::{Kernel, words};
use crate::compile::{self, CompileCx, Share, per_element};

const TEXT: &str = include_str!("../wgsl/rows.wgsl");

pub(super) const KERNELS: [Kernel; 5] = [
    Kernel { op: "row_select", supports: words, compile },
    Kernel { op: "row_write", supports: words, compile },
    Kernel { op: "rope", supports: words, compile },
    Kernel { op: "moe_sum", supports: words, compile },
    Kernel { op: "concat", supports: words, compile },
];

const SELECT: &str = "
    let list = max(n0(1u), 1u);
    let source = ld1(base(1u) + (r % list) * s0(1u) + (r / list) * s1(1u));
    value = ld0(base(0u) + source * s1(0u) + j * s0(0u));
";

/// Of equal indices the last wins.
const WRITE: &str = "
    value = ld0(base(0u) + r * s1(0u) + j * s0(0u));
    for (var k = 0u; k < n0(2u); k += 1u) {
        if (ld2(base(2u) + k * s0(2u)) == r) {
            value = ld1(base(1u) + k * s1(1u) + j * s0(1u));
        }
    }
";

const ROPE: &str = "
    let i = split(3u, r);
    let x = row_of(0u, i);
    let half = scalar(0u) / 2u;
    value = ld0(x + j * s0(0u));
    if (j < 2u * half) {
        let p = $PAIR;
        let second = $SECOND;
        let x0 = lf0(x + $FIRST * s0(0u));
        let x1 = lf0(x + ($FIRST + $STEP) * s0(0u));
        let table = base(1u) + ld2(base(2u) + i.y * s0(2u)) * s1(1u);
        let c = lf1(table + p * s0(1u));
        let s = lf1(table + (half + p) * s0(1u));
        let y = select(fma(x0, c, -(x1 * s)), fma(x0, s, x1 * c), second);
        value = bitcast<u32>(y);
    }
";

const MOE_SUM: &str = "
    var y = 0.0;
    for (var u = 0u; u < n1(0u); u += 1u) {
        let w = lf1(base(1u) + u * s0(1u) + r * s1(1u));
        y = fma(w, lf0(base(0u) + j * s0(0u) + u * s1(0u) + r * s2(0u)), y);
    }
    value = bitcast<u32>(fin(y, j, r));
";

/// The operand that element `j` of a joined row comes from.
fn concat(operands: usize) -> String {
    let piece = |o: usize| {
        format!(
            "if (j >= start && j < start + n0({o}u)) {{\n\
             value = ld{o}(row_of({o}u, i) + (j - start) * s0({o}u));\n}}\n\
             start += n0({o}u);\n"
        )
    };
    let pieces: String = (0..operands).map(piece).collect();
    format!("let i = split({operands}u, r);\nvar start = 0u;\n{pieces}")
}

fn compile(cx: &mut CompileCx, op: &SegOp) -> Result<(), LoadError> {
    let operands: Vec<usize> = op.inputs.iter().chain(&op.results).copied().collect();
    let y = operands.len() - 1;
    let groups = per_element(cx.layout(operands[y]), 64);
    let (body, scalars, mut values): (String, Vec<u32>, Vec<(&'static str, String)>) = match &op.op {
        Op::RowSelect(_) => (SELECT.into(), vec![], vec![]),
        Op::RowWrite(_) => (WRITE.into(), vec![], vec![]),
        Op::MoeSum(_) => (MOE_SUM.into(), vec![], vec![]),
        Op::Concat(_) => (concat(op.inputs.len()), vec![], vec![]),
        Op::Rope(rope) => {
            let [pair, second, first, step] = match rope.pairs {
                RopePairs::Adjacent => ["j / 2u", "(j & 1u) == 1u", "2u * p", "1u"],
                RopePairs::Half => ["select(j, j - half, j >= half)", "j >= half", "p", "half"],
            };
            let values = [("PAIR", pair), ("SECOND", second), ("FIRST", first), ("STEP", step)];
            (ROPE.into(), vec![rope.n_rot as u32], values.map(|(k, v)| (k, v.to_string())).to_vec())
        }
        other => unreachable!("{} picks no rows", other.name()),
    };
    values.insert(0, ("BODY", body));
    values.push(("Y", y.to_string()));
    cx.push(compile::Kernel {
        name: op.op.name(),
        operands: &operands,
        scalars: &scalars,
        buffers: Vec::new(),
        parts: &[TEXT],
        values,
        groups,
        share: Share::Any,
    })
}
