//! Time: load a model, queue, batch, step, sample, commit. Token ids in, token ids out; no strings, no HTTP.
#![forbid(unsafe_code)]

mod error;
mod job;
mod load;
mod options;
mod pages;
mod request;
mod sampler;
mod schedule;
mod step;

pub use error::EngineError;
pub use load::{Engine, LoadReport, PlanSummary, plan_only};
pub use options::EngineOptions;
pub use request::{Event, Finished, JobId, Request, StopReason, Timings};
pub use sampler::Sampler;
pub use schedule::Scheduler;
pub use step::{Feed, Want};

pub use firth_memory::Seq;
