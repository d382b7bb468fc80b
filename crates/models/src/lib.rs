//! Model definitions: one file per architecture in `arch/`, shared blocks, the registry.
//!
//! A model says which ops run in which order over which weights and states. It knows no device.
#![forbid(unsafe_code)]

mod arch;
pub mod blocks;
mod config;
mod error;
mod registry;
mod weights;

pub use config::Config;
pub use error::ModelError;
pub use registry::{ARCHS, Arch, architectures, load};
pub use weights::{Tensor, Weights};

use firth_graph::{Extents, Graph, GraphError, Node, PageGroup, Shape, Sym, WeightDecl};
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
    /// Page groups, by number.
    pub groups: Vec<GroupInfo>,
}

/// A model of a file: what it needs and the graph it becomes.
pub trait Model: Send + Sync {
    /// Sizes and page groups.
    fn info(&self) -> ModelInfo;

    /// The hidden rows `[width, T]` of the step, before row selection, the final norm and the head.
    fn forward(&self, g: &mut Graph, step: &StepNodes) -> Node;

    /// The final norm of hidden rows `[width, rows]`.
    fn normalise(&self, g: &mut Graph, hidden: Node) -> Node;

    /// Logits `[vocab, O]` from normalised rows `[width, O]`.
    fn logits(&self, g: &mut Graph, rows: Node) -> Node;
}

/// The inputs of a step as nodes.
pub struct StepNodes {
    /// `[T]` ids, or -1 where the row comes ready.
    pub tokens: Node,
    /// `[width, T]` ready rows.
    pub embeds: Node,
    /// `[T]` index of each row in its sequence.
    pub positions: Node,
    /// `[4, S]`, see `firth_graph::seq_table`.
    pub seqs: Node,
    /// `[pages, S]` per group.
    pub pages: Vec<Node>,
    /// The options of the build.
    pub options: BuildOptions,
}

impl StepNodes {
    /// The pages of a group.
    pub fn pages_of(&self, group: PageGroup) -> Node {
        self.pages[group.0 as usize]
    }
}

/// Names of step inputs and outputs, by which the engine finds them.
pub mod names {
    /// `[T]` ids.
    pub const TOKENS: &str = "tokens";
    /// `[width, T]` ready rows.
    pub const EMBEDS: &str = "embeds";
    /// `[T]` positions.
    pub const POSITIONS: &str = "positions";
    /// `[4, S]` sequences.
    pub const SEQS: &str = "seqs";
    /// `[O]` rows whose logits are wanted.
    pub const OUT_ROWS: &str = "out_rows";
    /// `[words, O]` sampler parameters.
    pub const SAMPLER_ROWS: &str = "sampler.rows";
    /// `[2, n]` penalised ids and counts.
    pub const SAMPLER_PENALTIES: &str = "sampler.penalties";
    /// `[2, n]` biased ids and biases.
    pub const SAMPLER_BIASES: &str = "sampler.biases";
    /// `[words, n]` allowed ids.
    pub const SAMPLER_MASKS: &str = "sampler.masks";
    /// `[vocab, O]` logits.
    pub const LOGITS: &str = "logits";
    /// `[O]` sampled ids.
    pub const SAMPLED: &str = "sampled";

    /// `[pages, S]` of page group `g`.
    pub fn pages(g: usize) -> String {
        format!("pages.{g}")
    }
}

/// Builds the main program of a model: a step from ids to logits and sampled ids.
pub fn build(model: &dyn Model, options: &BuildOptions) -> Result<Graph, GraphError> {
    let info = model.info();
    let mut g = Graph::new(options.bounds);
    let n_pages = options.ctx.div_ceil(firth_graph::PAGE).max(1);
    let table = |g: &mut Graph, i: usize| {
        g.input(&names::pages(i), Dtype::I32, Shape::new([n_pages.into(), Sym::S.into()]))
    };
    let step = StepNodes {
        tokens: g.input(names::TOKENS, Dtype::I32, Shape::new([Sym::T.into()])),
        embeds: g.input(names::EMBEDS, Dtype::F32, Shape::new([info.width.into(), Sym::T.into()])),
        positions: g.input(names::POSITIONS, Dtype::I32, Shape::new([Sym::T.into()])),
        seqs: g.input(names::SEQS, Dtype::I32, Shape::new([4.into(), Sym::S.into()])),
        pages: (0..info.groups.len()).map(|i| table(&mut g, i)).collect(),
        options: options.clone(),
    };
    let hidden = model.forward(&mut g, &step);
    g.scope("head");
    let out_rows = g.input(names::OUT_ROWS, Dtype::I32, Shape::new([Sym::O.into()]));
    let rows = g.push(firth_graph::op::RowSelect, &[hidden, out_rows]);
    let rows = model.normalise(&mut g, rows);
    let logits = model.logits(&mut g, rows);
    g.output(names::LOGITS, logits);
    sample(&mut g, &info, &options.sampler, logits);
    g.finish()
}

fn sample(g: &mut Graph, info: &ModelInfo, b: &SamplerBounds, logits: Node) {
    let words = firth_sampling::RowParams::WORDS;
    let rows = g.input(names::SAMPLER_ROWS, Dtype::I32, Shape::new([words.into(), Sym::O.into()]));
    let list = |g: &mut Graph, name, width: usize, n: usize| {
        g.input(name, Dtype::I32, Shape::fixed(&[width, n.max(1)]))
    };
    let penalties = list(g, names::SAMPLER_PENALTIES, 2, b.penalties);
    let biases = list(g, names::SAMPLER_BIASES, 2, b.biases);
    let masks = list(g, names::SAMPLER_MASKS, info.n_vocab.div_ceil(32), b.masks);
    g.scope("sample");
    let ids = g.push(firth_graph::op::Sample, &[logits, rows, penalties, biases, masks]);
    g.output(names::SAMPLED, ids);
}

/// The tensors of a file that a graph names.
pub fn file_tensors(g: &Graph) -> impl Iterator<Item = &WeightDecl> {
    g.weights.iter().filter(|w| matches!(w.source, firth_graph::WeightSource::File(_)))
}
