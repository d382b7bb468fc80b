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

use firth_graph::{Op, SegOp, Type};

use crate::program::CompileCx;
use crate::step::{Kernel, RowMaker};

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

/// Whether an op can make its last result row by row where it is packed: [`row_maker`] has it.
pub fn makes_rows(op: &Op) -> bool {
    elementwise::makes_rows(op) || norm::makes_rows(op)
}

/// The rows of such an op.
pub fn row_maker(cx: &CompileCx, op: &SegOp) -> Option<Box<dyn RowMaker>> {
    match &op.op {
        o if elementwise::makes_rows(o) => Some(elementwise::row_maker(cx, op)),
        o if norm::makes_rows(o) => Some(norm::row_maker(cx, op)),
        _ => None,
    }
}
