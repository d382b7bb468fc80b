//! What is asked of the scheduler, and what it tells.

use firth_sampling::{Constraint, Params, Watch};

use crate::error::EngineError;

/// What to generate.
pub struct Request {
    /// The prompt.
    pub ids: Vec<u32>,
    /// Sampling.
    pub params: Params,
    /// Tokens to generate at most.
    pub max_tokens: usize,
    /// Tokens that end the text; they are not part of it.
    pub end_ids: Vec<u32>,
    /// Cache domain: sequences of different domains never share.
    pub domain: u64,
    /// Whether a cached prefix may be used and this sequence be cached.
    pub cache: bool,
    /// Lengths of the prompt at which its prefix is likely to come again: where messages end, ascending.
    pub marks: Vec<usize>,
    /// Limits what may be said.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Watches what was said.
    pub watch: Option<Box<dyn Watch>>,
}

impl Request {
    /// A plain request.
    pub fn new(ids: Vec<u32>, params: Params, max_tokens: usize) -> Self {
        Request {
            ids,
            params,
            max_tokens,
            end_ids: Vec::new(),
            domain: 0,
            cache: true,
            marks: Vec::new(),
            constraint: None,
            watch: None,
        }
    }
}

/// A request's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JobId(pub u64);

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// An end token.
    Eos,
    /// The token limit.
    Limit,
    /// The watch said so, as at a stop word, or the caller.
    Word,
    /// The context is full.
    Context,
}

impl StopReason {
    /// The word for output.
    pub fn as_str(self) -> &'static str {
        match self {
            StopReason::Eos => "eos",
            StopReason::Limit => "limit",
            StopReason::Word => "word",
            StopReason::Context => "context",
        }
    }
}

/// Counts and times of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timings {
    /// Prompt tokens that were computed.
    pub prompt_n: usize,
    /// Prompt tokens taken from the cache.
    pub cached_n: usize,
    /// Seconds from admission to the first token.
    pub prompt_seconds: f64,
    /// Generated tokens.
    pub predicted_n: usize,
    /// Seconds from the first token to the last.
    pub predicted_seconds: f64,
    /// Tokens that a drafter proposed and a step verified.
    pub draft_n: usize,
    /// Those of them that were right.
    pub draft_n_accepted: usize,
}

/// How a request ended well.
#[derive(Clone, Copy, Debug)]
pub struct Finished {
    /// Why.
    pub stop: StopReason,
    /// Counts and times.
    pub timings: Timings,
}

/// What a tick tells.
#[derive(Debug)]
pub enum Event {
    /// A token of the text.
    Token(u32),
    /// The end.
    Done(Finished),
    /// The request failed; others go on.
    Failed(EngineError),
}
