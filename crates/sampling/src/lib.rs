//! Logits to token: one specification for host and device.
//!
//! A row of logits becomes one token id in a fixed order of stages: repetition, frequency and presence
//! penalties, bias, mask; then top-k, top-p, min-p, temperature and the draw. The edits of a logit are separate
//! f32 roundings with numbers made on the host ([`RowParams`]); from the order of the candidates on everything is
//! integer arithmetic, so that a device which follows the same steps gives the same id, bit for bit.
//!
//! [`sample`] is the host's form and the definition. It knows token ids and nothing else: text reaches it only
//! through the traits [`Constraint`] (which ids may follow) and [`Watch`] (when to stop).
#![forbid(unsafe_code)]

mod constraint;
mod history;
mod params;
mod philox;
mod row;
mod sample;
mod scan;
mod weights;

pub use constraint::{Constraint, ConstraintError, Verdict, Watch};
pub use history::History;
pub use params::{ParamError, Params};
pub use philox::{philox4x32_10, purpose, random_u64};
pub use row::{NO_MASK, RowParams, Span, flags};
pub use sample::{Lists, SampleError, Scratch, distribution, sample};
pub use weights::{MAX_WEIGHT, N_COARSE, N_FINE, WEIGHT_COARSE, WEIGHT_FINE, weight};
