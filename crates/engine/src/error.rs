//! What can go wrong in the engine.

use firth_graph::{LoadError, Lost};
use firth_models::ModelError;
use firth_sampling::{ConstraintError, ParamError, SampleError};

/// Why a model cannot be loaded, or a step or request fails.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The file is no model that firth runs.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The devices cannot take it.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The devices have no room for it.
    #[error("{0}")]
    TooLarge(Box<crate::fit::TooLarge>),
    /// An option that does not fit the model.
    #[error("{option} is {found}, expected {expected}")]
    Option {
        /// The option.
        option: &'static str,
        /// What was asked.
        found: String,
        /// What may be.
        expected: String,
    },
    /// A device is gone.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// No pages are left for a sequence.
    #[error("no memory for keys and values is left: {needed} tokens more do not fit")]
    Full {
        /// Tokens that were to be added.
        needed: usize,
    },
    /// A step has no room for a sampler's list.
    #[error("{list} of this sequence take {needed} places; {free} of the step's {all} are free")]
    Room {
        /// Penalties, biases or masks.
        list: &'static str,
        /// Places that it needs.
        needed: usize,
        /// Places that other sequences of the step have left.
        free: usize,
        /// Places of a step.
        all: usize,
    },
    /// A sequence would grow past its context.
    #[error("{found} tokens exceed the context of {context}; use a larger --ctx or a shorter prompt")]
    Context {
        /// Tokens of the sequence.
        found: usize,
        /// Tokens that fit.
        context: usize,
    },
    /// Rows that would follow others of a sequence whose tokens see what comes after them.
    #[error(
        "every token of `{arch}` sees its whole sequence, so its rows must be in one step: {found} cannot follow {held} \
         (a larger --batch makes larger steps)"
    )]
    Whole {
        /// The architecture.
        arch: String,
        /// Tokens of the sequence.
        held: usize,
        /// Tokens to follow.
        found: usize,
    },
    /// A text to go on, asked of a model that does not.
    #[error("`{arch}` fills in masked tokens and does not go on from a text; `logits` runs it")]
    NoText {
        /// The architecture.
        arch: String,
    },
    /// Logits, asked of a model without.
    #[error("`{arch}` makes embeddings of texts and has no logits; `embed` runs it")]
    NoLogits {
        /// The architecture.
        arch: String,
    },
    /// Embeddings, asked of a model that was loaded without.
    #[error("the model was loaded without embeddings")]
    NoEmbeddings,
    /// An id outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {n_vocab}")]
    Id {
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// A rollback to where a window has already let go of keys.
    #[error(transparent)]
    OutOfReach(#[from] firth_memory::OutOfReach),
    /// A prompt without tokens.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// The model produced a logit that is no number: a broken file or an overflow.
    #[error("a logit is not a number; the model file may be damaged")]
    Nan,
    /// Nothing can be sampled: everything is forbidden.
    #[error("no token is allowed here: every logit is masked or -inf")]
    NothingAllowed,
    /// Sampling parameters without meaning.
    #[error(transparent)]
    Params(#[from] ParamError),
    /// A constraint that cannot go on.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
}

impl From<SampleError> for EngineError {
    fn from(e: SampleError) -> Self {
        match e {
            SampleError::Nan { .. } => EngineError::Nan,
            _ => EngineError::NothingAllowed,
        }
    }
}
