//! The CPU device: kernels over panels and pages, a thread pool, weights laid out at load.
//!
//! Every result is a fixed sequence of operations on its own row and the weights. Tiles, threads and
//! instruction sets divide results, never a sum, so they do not show in any bit.

pub mod act;
mod ceiling;
mod device;
mod kernels;
mod memory;
mod operand;
pub mod panel;
mod pool;
mod program;
mod schedule;
mod states;
mod step;
mod store;

pub use ceiling::{ReadGauge, int8_ceiling};
pub use device::{CpuDevice, CpuOptions};
pub use firth_simd::{Level, LevelError};
pub use memory::Region;
pub use pool::Pool;
