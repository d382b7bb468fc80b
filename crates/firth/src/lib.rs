//! The library people add: a model by path, its text in and out, and the measurements that the command line
//! and the server share.
//!
//! ```no_run
//! use std::{ops::ControlFlow, sync::Arc};
//! # fn example(devices: Vec<Arc<dyn firth::Device>>) -> Result<(), firth::Error> {
//! let file = firth::open("model.gguf".as_ref(), &[])?;
//! let mut model = firth::Model::load(file, devices, &Default::default(), &mut |_| ControlFlow::Continue(()))?;
//! let prompt = model.chat_prompt(&[firth::Message::user("Hello")], &Default::default())?;
//! let answer = model.generate(prompt, &Default::default(), &mut |text| {
//!     print!("{text}");
//!     ControlFlow::Continue(())
//! })?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod breakers;
mod chat;
mod check;
mod defaults;
mod embed;
mod error;
mod imatrix;
mod logits;
mod model;
mod model_text;
mod open;
mod perplexity;
mod pull;
mod quantize;
mod service;
mod store;
mod structured;

pub use breakers::{DRY_BREAKERS, dry_breakers};
pub use chat::Conversation;
pub use check::{CheckOptions, CheckRow, Verdict, check};
pub use defaults::sampling_defaults;
pub use embed::{Embedded, Normalize, relevance};
pub use error::Error;
pub use imatrix::{Imatrix, ImatrixOptions};
pub use logits::{LogitsOptions, logits};
pub use model::{Answer, ChatOptions, GenerateOptions, Message, Model, Prompt};
pub use model_text::ModelText;
pub use open::{bundled, open, override_kv};
pub use perplexity::{Perplexity, PerplexityOptions, perplexity};
pub use pull::{PullError, PullName, PullOptions, PullProgress, pull};
pub use quantize::{
    FileType, Importance, ImportanceError, Planned, QuantizeError, QuantizeOptions, QuantizePlan,
    QuantizeProgress, TensorType,
};
pub use store::{Keeper, LocalModel, Stores};

pub use service::{
    Both, CountAllocations, Counts, Desk, Events, Held, NotTaken, PieceOf, Service, ServiceOptions,
    SlotStatus,
};

pub use firth_engine::{
    DraftLength, EmbeddingKind, EngineError, EngineOptions, Event, Finished, Logprobs, Pooling, Request,
    SpecMode, SpecOptions, StopReason, Timings,
};
pub use firth_gguf::Gguf;
pub use firth_graph::Device;
pub use firth_quant::Dtype;
pub use firth_sampling::Verdict as WatchVerdict;
pub use firth_sampling::{Breakers, Constraint, Dry, Mirostat, MirostatVersion, Params, Stage, Watch};
pub use firth_text as text;
pub use firth_text::grammar::{Grammar, GrammarError};
pub use firth_text::output::OutputFormat;
