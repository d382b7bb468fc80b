//! Recurrences and rings: ops that keep something of a sequence from step to step, in slots.
//!
//! A chunk is one sequence and one block of independent columns (value dims of a head, channels of a convolution).
//! It runs all rows of the sequence token by token while its block of the state stays in the nearest cache; no two
//! chunks touch the same number of a slot. Only the log is shared, so it is written by a step of its own after
//! everybody has read it.

mod conv;
mod delta;
mod log;
mod ngram_rows;
mod outer;
mod pool_keys;
mod prev_row;
mod ring;
mod scan;
mod span;

use crate::step::Kernel;

/// Tokens from one flush of tiny magnitudes to the next: the state after the tokens of index 15, 31, 47 … keeps no
/// magnitude below 2^-100. By index, so that no cut shows.
const FLUSH_EVERY: usize = 16;
/// What a flush takes to zero lies below this.
const TINY: f32 = f32::from_bits(27 << 23); // 2^-100

/// Whether the state after the token of this index is flushed.
fn flushes(index: usize) -> bool {
    index % FLUSH_EVERY == FLUSH_EVERY - 1
}

/// All of them.
pub const KERNELS: [Kernel; 7] = [
    conv::KERNEL,
    delta::KERNEL,
    ngram_rows::KERNEL,
    outer::LINEAR_ATTENTION,
    pool_keys::KERNEL,
    prev_row::KERNEL,
    scan::KERNEL,
];
