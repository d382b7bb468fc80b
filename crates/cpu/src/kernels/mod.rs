//! The kernels, by op. A new kernel is a file here and a line in [`ALL`].

mod attend;
mod elementwise;
mod experts;
pub(crate) mod kv_write;
mod mat_mul;
mod norm;
mod recurrent;
mod rope;
mod router;
mod rows;
mod sample;

pub use mat_mul::ActSlots;

use firth_graph::{Op, Type};

use crate::step::Kernel;

/// Every list of kernels.
const ALL: [&[Kernel]; 11] = [
    &attend::KERNELS,
    &elementwise::KERNELS,
    &experts::KERNELS,
    &kv_write::KERNELS,
    &mat_mul::KERNELS,
    &norm::KERNELS,
    &recurrent::KERNELS,
    &rope::KERNELS,
    &router::KERNELS,
    &rows::KERNELS,
    &sample::KERNELS,
];

/// The kernel for `op` on these operands.
pub fn find(op: &Op, inputs: &[Type]) -> Option<&'static Kernel> {
    ALL.iter().flat_map(|k| k.iter()).find(|k| k.op == op.name() && (k.supports)(op, inputs))
}
