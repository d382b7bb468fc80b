//! The kernels, by op. A new kernel is a file here, its text in `wgsl/`, and a line in [`ALL`].

mod attention;
mod copy;
mod dots;
pub(crate) mod elementwise;
mod mat_mul;
mod norm;
mod recurrent;
mod reduce;
mod ring;
mod router;
mod rows;
mod sample;
mod streams;
mod sums;
mod top_k_select;

pub(crate) use mat_mul::rows_of_tiles;

use firth_graph::{Op, Type};

use crate::compile::{CompileFn, in_words};

/// A kernel: which ops it takes, and how it becomes dispatches.
pub(crate) struct Kernel {
    /// The op's name.
    pub op: &'static str,
    /// Whether it takes the op on operands of these types and layouts.
    pub supports: fn(&Op, &[Type]) -> bool,
    /// Makes the dispatches.
    pub compile: CompileFn,
}

/// Every list of kernels.
const ALL: [&[Kernel]; 13] = [
    &attention::KERNELS,
    &copy::KERNELS,
    &elementwise::KERNELS,
    &mat_mul::KERNELS,
    &norm::KERNELS,
    &recurrent::KERNELS,
    &reduce::KERNELS,
    &ring::KERNELS,
    &router::KERNELS,
    &rows::KERNELS,
    &sample::KERNELS,
    &streams::KERNELS,
    &top_k_select::KERNELS,
];

/// The kernel for `op` on these operands.
pub(crate) fn find(op: &Op, inputs: &[Type]) -> Option<&'static Kernel> {
    ALL.iter().flat_map(|k| k.iter()).find(|k| k.op == op.name() && (k.supports)(op, inputs))
}

/// Operands of 4-byte elements at any strides.
fn words(_: &Op, inputs: &[Type]) -> bool {
    inputs.iter().all(|t| t.layout().is_none_or(in_words))
}
