//! Logits to token: one specification for host and device.
//!
//! [`sample`] is the meaning of firth's sampling op. A request's [`Params`] become one [`RowParams`]
//! per row of logits; what differs in length from row to row (penalties, biases, masks) lies in flat
//! [`Lists`]. Penalties and biases are single f32 operations with numbers made on the host; everything
//! after them compares and adds integers, so a device that follows the same sequence draws the same
//! token (`docs/numerics.md`, "One sampled token").
//!
//! The crate knows token ids and nothing else: text reaches it only through the traits [`Constraint`]
//! (which ids may follow) and [`Watch`] (when to stop). Random numbers are a function of (seed, token
//! index, choice, purpose): see [`random_u64`].

#![forbid(unsafe_code)]

mod dry;
mod history;
mod math;
mod order;
mod params;
mod philox;
mod row;
mod sample;
mod stage;
mod traits;
mod weights;

#[cfg(test)]
mod tests;

pub use dry::{Breakers, Dry};
pub use history::History;
pub use params::{Mirostat, MirostatVersion, ParamError, Params};
pub use philox::{philox4x32_10, purpose, random_u64};
pub use row::{Lists, RowParams};
pub use sample::{Before, Chain, SampleError, Scratch, sample};
pub use stage::{DEFAULT_ORDER, Stage, StageError};
pub use traits::{Constraint, ConstraintError, Verdict, Watch};
pub use weights::{MAX_WEIGHT, N_COARSE, N_FINE, WEIGHT_COARSE, WEIGHT_FINE, weight};
