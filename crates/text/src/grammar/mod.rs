//! What an answer may look like: JSON schemas, regular expressions, GBNF and Lark grammars, calls of tools.
//!
//! The work of parsing and of masks is done by crate `llguidance`. [`Grammars`] prepares a vocabulary once;
//! [`Grammars::constraint`] makes the [`Constraint`](firth_sampling::Constraint) of one request.

mod compile;
mod constraint;
mod gbnf;
mod lark;
mod schema;
mod tools;
mod trie;

pub use compile::{Grammars, LazyGrammars};
pub use constraint::{GrammarConstraint, GrammarWatch};
pub use gbnf::gbnf_to_lark;
pub use tools::{ToolChoice, answer_grammar, tool_grammar};

use serde_json::Value;

/// What to keep an answer to.
#[derive(Clone, Debug, PartialEq)]
pub enum Grammar {
    /// JSON of a schema, without white space between its parts.
    JsonSchema(Value),
    /// A regular expression that the whole answer matches.
    Regex(String),
    /// A grammar in the notation of llama.cpp; its root is `root`.
    Gbnf(String),
    /// A grammar in `llguidance`'s dialect of Lark; its root is `start`.
    Lark(String),
}

/// Why a grammar cannot be kept to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// A part of a schema that cannot be enforced.
    #[error("json schema {path}: `{keyword}` cannot be enforced: {reason}")]
    Schema {
        /// A JSON pointer within the schema, `#` the whole.
        path: String,
        /// The keyword.
        keyword: String,
        /// Why.
        reason: String,
    },
    /// A grammar that cannot be read.
    #[error("grammar, line {line}: {reason}")]
    Syntax {
        /// Where, counted from 1.
        line: usize,
        /// What was found, and what was expected.
        reason: String,
    },
    /// A grammar or schema that cannot be compiled, as the library says it.
    #[error("grammar cannot be compiled: {0}")]
    Compile(String),
    /// A grammar that is too large, too deep, or takes too long.
    #[error("grammar too large: {what} {found}, expected at most {limit}")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// How much.
        found: usize,
        /// How much may be.
        limit: usize,
    },
    /// A vocabulary that no grammar can work with.
    #[error("grammars need a vocabulary of text: {0}")]
    Vocab(String),
}

impl Grammar {
    /// Reads a request's field `grammar`: GBNF.
    ///
    /// # Errors
    /// A JSON schema in its place, with the hint where it belongs.
    pub fn from_gbnf(text: &str) -> Result<Grammar, GrammarError> {
        match text.trim_start().starts_with('{') {
            true => Err(GrammarError::Syntax {
                line: 1,
                reason:
                    "found `{`, expected a rule; this looks like JSON: a schema belongs into `json_schema`"
                        .into(),
            }),
            false => Ok(Grammar::Gbnf(text.to_owned())),
        }
    }
}
