//! What is asked of the scheduler, and what it tells.

use firth_sampling::{Constraint, Params, Watch};

use crate::error::EngineError;
use crate::probs::Logprobs;

/// What to generate.
pub struct Request {
    /// The prompt.
    pub ids: Vec<u32>,
    /// Sampling.
    pub params: Params,
    /// Which of several answers to one request this is: part of every random number.
    pub choice: u32,
    /// Tokens to generate at most; with 0 the prompt is computed and nothing is said.
    pub max_tokens: usize,
    /// Tokens that end the text; they are not part of it.
    pub end_ids: Vec<u32>,
    /// Cache domain: sequences of different domains never share.
    pub domain: u64,
    /// Whether a cached prefix may be used and this sequence be cached.
    pub cache: bool,
    /// Lengths of the prompt at which its prefix is likely to come again: where messages end, ascending.
    pub marks: Vec<usize>,
    /// Tells what the model thought of each token, with so many of the likeliest beside it.
    pub logprobs: Option<usize>,
    /// Does so for the tokens of the prompt, too, all but the first; all of them are then computed.
    pub prompt_logprobs: bool,
    /// Asks for the prompt's embedding, as the model was loaded to make it, and for no text; all rows are computed.
    pub embed: bool,
    /// Limits what may be said.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Watches what was said.
    pub watch: Option<Box<dyn Watch>>,
}

impl Request {
    /// The embedding of a text.
    pub fn embedding(ids: Vec<u32>) -> Self {
        Request { embed: true, cache: false, ..Request::new(ids, Params::default(), 0) }
    }

    /// A plain request.
    pub fn new(ids: Vec<u32>, params: Params, max_tokens: usize) -> Self {
        Request {
            ids,
            params,
            choice: 0,
            max_tokens,
            end_ids: Vec::new(),
            domain: 0,
            cache: true,
            marks: Vec::new(),
            logprobs: None,
            prompt_logprobs: false,
            embed: false,
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

/// Places in a draft that are counted one by one; of longer drafts the rest is in the sums alone.
pub const DRAFT_PLACES: usize = 16;

/// Counts and times of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timings {
    /// Seconds in the queue before the first admission.
    pub queue_seconds: f64,
    /// Prompt tokens that were computed.
    pub prompt_n: usize,
    /// Prompt tokens taken from the cache.
    pub cached_n: usize,
    /// Prompt tokens that the cache knew, of which it could give back `cached_n`.
    pub known_n: usize,
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
    /// Drafts.
    pub drafts: usize,
    /// How often the guess at each place of a draft was right.
    pub accepted_at: [u32; DRAFT_PLACES],
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
    /// So many tokens of the prompt are in memory; the first time, those that came from the cache.
    Prompt(usize),
    /// What the model thought of the next token of the prompt.
    PromptLogprobs(Logprobs),
    /// What the model thought of the token that comes next.
    Logprobs(Logprobs),
    /// A token of the text.
    Token(u32),
    /// The embedding that was asked for, the scores of a classifier, or with [`Pooling::None`](crate::Pooling::None) the rows of all tokens.
    Embedding(Vec<f32>),
    /// The end.
    Done(Finished),
    /// The request failed; others go on.
    Failed(EngineError),
}
