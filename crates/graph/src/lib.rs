//! The tensor graph of firth: shapes, views, states, the op table and what each op means, validation,
//! planning, the border to devices, and the runner.
//!
//! It knows nothing of models and nothing of any device.
#![forbid(unsafe_code)]

mod device;
mod fuse;
mod graph;
pub mod math;
mod null;
pub mod op;
mod plan;
mod reference;
mod rope;
mod runner;
mod shape;
mod state;

pub use device::*;
pub use fuse::{FusionReport, fuse};
pub use graph::*;
pub use null::NullDevice;
pub use op::{ActKind, Gating, Op, OpDef, RopePairs};
pub use plan::*;
pub use reference::{Array, Interpreter, RefCall, RefRing, RefSlot, RefState};
pub use rope::{RopeSpec, Yarn};
pub use runner::{Resources, Runner};
pub use shape::*;
pub use state::*;
