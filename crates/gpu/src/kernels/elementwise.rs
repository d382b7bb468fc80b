//! Functions of elements: one text, with another expression for each op.

use firth_graph::op::ActKind;
use firth_graph::{LoadError, Op, SegOp};

use super::{Kernel, words};
use crate::compile::{self, CompileCx, Share, per_element};
use crate::module::MATH;

const TEXT: &str = include_str!("../wgsl/elementwise.wgsl");

macro_rules! kernels {
    ($($op:literal),*) => {
        pub(super) const KERNELS: [Kernel; [$($op),*].len()] = [$(Kernel { op: $op, supports: words, compile }),*];
    };
}

kernels!["act", "add", "clamp", "gated_act", "mul", "scale", "softcap"];

fn function(kind: ActKind, x: &str) -> String {
    let name = match kind {
        ActKind::Silu => "silu",
        ActKind::GeluTanh => "gelu_tanh",
        ActKind::GeluErf => "gelu_erf",
        ActKind::GeluQuick => "gelu_quick",
        ActKind::Relu => "relu",
        ActKind::ReluSquared => "relu_squared",
        ActKind::Sigmoid => "sigmoid",
        ActKind::Tanh => "tanh_",
        ActKind::Softplus => "softplus",
        ActKind::Exp => "exp_",
        ActKind::SignedRoot => "signed_root",
    };
    format!("{name}({x})")
}

fn compile(cx: &mut CompileCx, op: &SegOp) -> Result<(), LoadError> {
    const B: &str = "lf1(other(1u, i0, i))";
    let (value, scalars) = match &op.op {
        Op::Act(a) => (function(a.kind, "x"), vec![]),
        Op::Add(_) => (format!("x + {B}"), vec![]),
        Op::Clamp(c) => {
            ("clamped(x, scalar_f(0u), scalar_f(1u))".into(), vec![c.low.to_bits(), c.high.to_bits()])
        }
        Op::GatedAct(a) => (format!("apart({}) * {B}", function(a.kind, "x")), vec![]),
        Op::Mul(_) => (format!("x * {B}"), vec![]),
        Op::Scale(s) => ("x * scalar_f(0u)".into(), vec![s.by.to_bits()]),
        Op::Softcap(s) => ("softcap(x, scalar_f(0u))".into(), vec![s.cap.to_bits()]),
        other => unreachable!("{} is no function of elements", other.name()),
    };
    let operands: Vec<usize> = op.inputs.iter().chain(&op.results).copied().collect();
    let y = operands.len() - 1;
    let groups = per_element(cx.layout(operands[y]), 64);
    cx.push(compile::Kernel {
        name: op.op.name(),
        operands: &operands,
        scalars: &scalars,
        buffers: Vec::new(),
        parts: &[MATH, TEXT],
        values: vec![("VALUE", value), ("Y", y.to_string())],
        groups,
        share: Share::Any,
    })
}
