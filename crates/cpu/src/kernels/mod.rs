//! The kernels, by op. A new kernel is a file here and a line in [`ALL`].

mod attend;
mod attend_rows;
mod elementwise;
mod experts;
pub(crate) mod kv_write;
mod mat_mul;
mod norm;
mod recurrent;
mod reduce;
mod rope;
mod router;
mod rows;
mod sample;
mod top_k_select;

pub use attend::{Partials, plan_partials};
pub use mat_mul::ActSlots;

use firth_graph::{Op, Type};

use crate::step::Kernel;

/// Every list of kernels.
const ALL: [&[Kernel]; 14] = [
    &attend::KERNELS,
    &attend_rows::KERNELS,
    &elementwise::KERNELS,
    &experts::KERNELS,
    &kv_write::KERNELS,
    &mat_mul::KERNELS,
    &norm::KERNELS,
    &recurrent::KERNELS,
    &reduce::KERNELS,
    &rope::KERNELS,
    &router::KERNELS,
    &rows::KERNELS,
    &sample::KERNELS,
    &top_k_select::KERNELS,
];

/// The kernel for `op` on these operands.
pub fn find(op: &Op, inputs: &[Type]) -> Option<&'static Kernel> {
    ALL.iter().flat_map(|k| k.iter()).find(|k| k.op == op.name() && (k.supports)(op, inputs))
}
