//! Time: load a model, queue, batch, step, sample, commit. Token ids in, token ids out; no strings, no HTTP.
#![forbid(unsafe_code)]

mod ask;
mod error;
mod fit;
mod job;
mod load;
mod observe;
mod options;
mod pace;
mod pool;
mod pools;
mod prepare;
mod probs;
mod read_ahead;
mod request;
mod sampler;
mod schedule;
mod spec;
mod state_file;
mod step;
mod tables;

pub use error::EngineError;
pub use fit::TooLarge;
pub use load::{Engine, LoadReport};
pub use observe::Observed;
pub use options::{EngineOptions, Placement};
pub use pool::EmbeddingKind;
pub use prepare::{PlanSummary, embedding_kind, plan_only};
pub use probs::Logprobs;
pub use request::{DRAFT_PLACES, Event, Finished, JobId, Request, StopReason, Timings};
pub use sampler::Sampler;
pub use schedule::Scheduler;
pub use spec::{DraftLength, Drafter, SpecMode, SpecOptions};
pub use state_file::{NUMERICS, StateFileError};
pub use step::{Feed, Want};

pub use firth_graph::Encoding;
pub use firth_memory::Seq;
pub use firth_models::Pooling;
