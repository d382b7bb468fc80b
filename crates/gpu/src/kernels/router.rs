//! The choice of experts, by score or by a table.

use firth_graph::op::MIN_WEIGHT_SUM;
use firth_graph::{Gating, LoadError, Op, SegOp, Type};

use super::{Kernel, sums, words};
use crate::compile::{self, CompileCx, Share, linear};
use crate::module::MATH;

const TEXT: &str = include_str!("../wgsl/router.wgsl");
const BY_SCORE: &str = include_str!("../wgsl/router_by_score.wgsl");
const BY_TABLE: &str = include_str!("../wgsl/router_by_table.wgsl");

pub(super) const KERNELS: [Kernel; 2] =
    [Kernel { op: "router", supports, compile }, Kernel { op: "route_by_table", supports, compile }];

/// Experts whose weights and scores fit workgroup memory.
const MAX_EXPERTS: usize = 1024;

fn supports(op: &Op, inputs: &[Type]) -> bool {
    let few = |t: &Type| t.layout().is_some_and(|l| l.shape.constant(0).is_some_and(|n| n <= MAX_EXPERTS));
    words(op, inputs) && few(&inputs[0])
}

fn compile(cx: &mut CompileCx, op: &SegOp) -> Result<(), LoadError> {
    let (r, by_table) = match &op.op {
        Op::Router(r) => (*r, false),
        Op::RouteByTable(by) => (by.weights_of(), true),
        other => unreachable!("{} chooses no experts", other.name()),
    };
    let operands: Vec<usize> = op.inputs.iter().chain(&op.results).copied().collect();
    let bias = op.inputs.len() == 2 && !by_table;
    let n = cx.layout(operands[0]).shape.constant(0).expect("experts are a constant");
    let used = cx.layout(op.results[0]).shape.constant(0).expect("experts of a token are a constant");
    let weight = match r.gating {
        Gating::Softmax => "exp_(v - top)",
        Gating::Sigmoid => "sigmoid(v)",
        Gating::SoftmaxOfChosen => "v",
        Gating::RootSoftplus => "sqrt(softplus(v))",
    };
    let score = if r.chooses_by_logit(bias) { "lf0(x + i * s0(0u))" } else { "weight[i]" };
    let numbers = [n, used, usize::from(r.normalise), r.n_groups, r.n_groups_used].map(|n| n as u32);
    let scalars: Vec<u32> = numbers.into_iter().chain([r.scale.to_bits()]).collect();
    let values = vec![
        ("WEIGHTS", (operands.len() - 1).to_string()),
        ("WEIGHT", weight.to_string()),
        ("SCORE", score.to_string()),
        ("BIAS", if bias { "s += lf1(base(1u) + i * s0(1u));" } else { "" }.to_string()),
        ("SOFTMAX", (r.gating == Gating::Softmax).to_string()),
        ("OF_CHOSEN", (r.gating == Gating::SoftmaxOfChosen).to_string()),
        ("LEAST", format!("{MIN_WEIGHT_SUM:?}")),
        ("IDS", (operands.len() - 2).to_string()),
        ("GROUPS", r.n_groups.to_string()),
        ("USED", used.to_string()),
        ("N", n.to_string()),
    ];
    let shape = cx.layout(operands[0]).shape;
    let sums = sums::text(cx, &["part"])?;
    cx.push(compile::Kernel {
        name: "router",
        operands: &operands,
        scalars: &scalars,
        buffers: Vec::new(),
        parts: &[MATH, &sums, if by_table { BY_TABLE } else { BY_SCORE }, TEXT],
        values,
        groups: Box::new(move |x| linear(shape.dims(x)[1])),
        share: Share::Never,
    })
}
