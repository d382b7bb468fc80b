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

/// An op as an expression of an element.
pub(crate) struct Function {
    text: String,
    /// Its numbers, as bits.
    pub scalars: Vec<u32>,
}

impl Function {
    /// The expression: `$0` and `$1` are the operands' elements, `$S0` and so on its numbers.
    fn new(text: impl Into<String>, scalars: &[f32]) -> Self {
        Function { text: text.into(), scalars: scalars.iter().map(|s| s.to_bits()).collect() }
    }

    /// Its text over these elements, its numbers among the kernel's scalars from `first` on.
    pub fn of(&self, operands: &[String], first: usize) -> String {
        let numbers = (0..self.scalars.len()).fold(self.text.clone(), |t, n| {
            t.replace(&format!("$S{n}"), &format!("scalar_f({}u)", first + n))
        });
        operands.iter().enumerate().fold(numbers, |t, (n, o)| t.replace(&format!("${n}"), o))
    }
}

/// The op as a function of elements, where it is one.
pub(crate) fn function_of(op: &Op) -> Option<Function> {
    Some(match op {
        Op::Act(a) => Function::new(function(a.kind, "$0"), &[]),
        Op::Add(_) => Function::new("$0 + $1", &[]),
        Op::Clamp(c) => Function::new("clamped($0, $S0, $S1)", &[c.low, c.high]),
        Op::GatedAct(a) => Function::new(format!("apart({}) * $1", function(a.kind, "$0")), &[]),
        Op::Mul(_) => Function::new("$0 * $1", &[]),
        Op::Scale(s) => Function::new("$0 * $S0", &[s.by]),
        Op::Softcap(s) => Function::new("softcap($0, $S0)", &[s.cap]),
        _ => return None,
    })
}

fn compile(cx: &mut CompileCx, op: &SegOp) -> Result<(), LoadError> {
    let f = function_of(&op.op).expect("a function of elements");
    let operands: Vec<usize> = op.inputs.iter().chain(&op.results).copied().collect();
    let y = operands.len() - 1;
    let groups = per_element(cx.layout(operands[y]), 64);
    let value = f.of(&["x".into(), "lf1(other(1u, i0, i))".into()], 0);
    cx.push(compile::Kernel {
        name: op.op.name(),
        operands: &operands,
        scalars: &f.scalars,
        buffers: Vec::new(),
        parts: &[MATH, TEXT],
        values: vec![("VALUE", value), ("Y", y.to_string())],
        groups,
        share: Share::Any,
    })
}
