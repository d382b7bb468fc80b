//! What can go wrong, for people.

/// Any failure of the library.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] firth_gguf::GgufError),
    /// The checkpoint cannot be read as a model.
    #[error(transparent)]
    Convert(#[from] firth_convert::ConvertError),
    /// The model cannot be loaded or run.
    #[error(transparent)]
    Engine(#[from] firth_engine::EngineError),
    /// A sequence was not saved or restored.
    #[error(transparent)]
    State(#[from] firth_engine::StateFileError),
    /// A file of the caller's cannot be read or written.
    #[error("{path}: {source}")]
    ReadWrite {
        /// The file.
        path: std::path::PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The vocabulary cannot be used.
    #[error(transparent)]
    Vocab(#[from] firth_text::VocabError),
    /// The text cannot be encoded.
    #[error(transparent)]
    Encode(#[from] firth_text::EncodeError),
    /// The chat template cannot be used.
    #[error(transparent)]
    Template(#[from] firth_text::TemplateError),
    /// The grammar cannot be kept to.
    #[error(transparent)]
    Grammar(#[from] firth_text::grammar::GrammarError),
    /// A key of the file has the wrong type.
    #[error(transparent)]
    Key(#[from] firth_gguf::KeyError),
    /// The file has no chat template.
    #[error("the model file has no chat template; give one with --chat-template FILE, or use --raw")]
    NoTemplate,
    /// A model that is not there.
    #[error("no model `{name}`: {reason}")]
    NotFound {
        /// What was asked for.
        name: String,
        /// Why it is not there.
        reason: String,
    },
    /// An argument without meaning.
    #[error("{0}")]
    Argument(String),
}
