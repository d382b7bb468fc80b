//! Model definitions: one file per architecture in `arch/`, shared blocks, the registry.
//!
//! A model says which ops run in which order over which weights and states. It knows no device.
#![forbid(unsafe_code)]

mod arch;
pub mod blocks;
mod config;
mod error;
mod model;
pub mod names;
mod pooled;
mod program;
mod registry;
mod weights;

pub use config::Config;
pub use error::ModelError;
pub use model::{DraftHead, Model, StepNodes};
pub use pooled::{Pooled, Pooling};
pub use program::{build, build_draft};
pub use registry::{ARCHS, Arch, architectures, load};
pub use weights::{Tensor, Weights};

use firth_graph::{Extents, Graph, WeightDecl};
use firth_quant::Dtype;

/// What a caller decides about the graph of a loaded model.
#[derive(Clone, Debug)]
pub struct BuildOptions {
    /// The largest step.
    pub bounds: Extents,
    /// Tokens of one sequence at most.
    pub ctx: usize,
    /// Type of keys and values.
    pub kv: Dtype,
    /// The longest draft that a step verifies: states keep as many rows to roll back by.
    pub draft: usize,
    /// Whether the main program keeps the drafting head's states up and hands out hidden rows.
    pub draft_head: bool,
    /// Rows of the lists that all sampled rows of a step share.
    pub sampler: SamplerBounds,
}

/// Sizes of the sampler's step inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SamplerBounds {
    /// Penalised ids of all rows together.
    pub penalties: usize,
    /// Biased ids of all rows together.
    pub biases: usize,
    /// Mask rows.
    pub masks: usize,
}

impl SamplerBounds {
    /// Of programs that sample nothing.
    pub const NONE: SamplerBounds = SamplerBounds { penalties: 0, biases: 0, masks: 0 };
}

/// Layers whose pages live and die together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupInfo {
    /// Keys further back are never read.
    pub window: Option<usize>,
}

/// What the engine needs to know of a model.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// Architecture.
    pub arch: String,
    /// Layers.
    pub n_layers: usize,
    /// Hidden width.
    pub width: usize,
    /// Vocabulary.
    pub n_vocab: usize,
    /// Context length that the file declares.
    pub context: usize,
    /// Rows of its table of positions, where it has one: no sequence can be longer.
    pub positions: Option<usize>,
    /// Page groups, by number.
    pub groups: Vec<GroupInfo>,
    /// Whether layers keep states in slots.
    pub slots: bool,
    /// Whether rows see what comes after them: a sequence must be in one step, whole.
    pub both_ways: bool,
    /// Whether rows become logits; an encoder's do not.
    pub logits: bool,
    /// The drafting head, if the file has one.
    pub draft: Option<DraftInfo>,
}

/// What the engine needs to know of a drafting head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftInfo {
    /// Numbers of a hidden row that the head takes and gives.
    pub width: usize,
    /// Its page group, whose number is the count of the model's other groups.
    pub group: GroupInfo,
}

/// The tensors of a file that a graph names.
pub fn file_tensors(g: &Graph) -> impl Iterator<Item = &WeightDecl> {
    g.weights.iter().filter(|w| matches!(w.source, firth_graph::WeightSource::File(_)))
}
