//! Text: vocabularies, pieces of UTF-8 in a stream, stop texts, chat templates, answers read.
#![forbid(unsafe_code)]

mod automaton;
mod bytes;
pub mod grammar;
mod merge;
pub mod output;
pub mod pre;
mod queue;
mod special;
mod stream;
mod template;
mod tokens;
mod vocab;

pub use stream::TextStream;
pub use template::{ChatTemplate, Rendered, TemplateError};
pub use tokens::TokenType;
pub use vocab::{Encode, EncodeError, EncodeScratch, SpecialIds, Vocab, VocabError, VocabKind, tidy_spaces};
