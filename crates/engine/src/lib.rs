//! Time: load a model, queue, batch, step, sample, commit. Token ids in, token ids out; no strings, no HTTP.
#![forbid(unsafe_code)]

mod error;
mod load;
mod options;
mod sampler;
mod schedule;
mod step;

pub use error::EngineError;
pub use load::{Engine, LoadReport, PlanSummary, plan_only};
pub use options::EngineOptions;
pub use sampler::Sampler;
pub use schedule::{Event, Finished, JobId, Request, Scheduler, StopReason, Timings};
pub use step::{Feed, Want};

pub use firth_memory::Seq;
