//! Why a file is no model that firth runs.

use firth_gguf::KeyError;

/// Why a model cannot be made of a file.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A metadata key is missing or of the wrong type.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A value out of range.
    #[error("key `{key}` is {found}, expected {expected}")]
    Value {
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// What it may be.
        expected: String,
    },
    /// An architecture that firth does not know.
    #[error("architecture `{name}` is not known; the nearest known are: {nearest}")]
    Unknown {
        /// Its name.
        name: String,
        /// The most similar names.
        nearest: String,
    },
    /// Tensors that are missing or of another shape: all of them at once.
    #[error("{} tensors do not fit the architecture:\n  {}", .0.len(), .0.join("\n  "))]
    Tensors(Vec<String>),
    /// The graph that the definition made is wrong.
    #[error(transparent)]
    Graph(#[from] firth_graph::GraphError),
}

impl ModelError {
    /// A value out of range.
    pub fn value(key: impl Into<String>, found: impl ToString, expected: impl Into<String>) -> Self {
        ModelError::Value { key: key.into(), found: found.to_string(), expected: expected.into() }
    }
}
