//! Why a checkpoint cannot be a model.

use std::path::{Path, PathBuf};

use firth_gguf::{GgufError, WriteError};

/// Why a checkpoint cannot be a model.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file of tensors cannot be mapped.
    #[error(transparent)]
    Map(#[from] GgufError),
    /// The folder has no file that it must have.
    #[error("{} has no {name}; a folder is read as a checkpoint of transformers, which has it", folder.display())]
    Missing {
        /// The folder.
        folder: PathBuf,
        /// What is expected in it.
        name: &'static str,
    },
    /// A file larger than its kind can be.
    #[error("{} has {found} bytes, expected at most {max}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        found: u64,
        /// The limit.
        max: u64,
    },
    /// A file of JSON that is none.
    #[error("{} is no JSON: {why}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        why: String,
    },
    /// A field of a file has no meaning here.
    #[error("{}: field `{field}` is {found}, expected {expected}", path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// The field, with those around it.
        field: String,
        /// Its value.
        found: String,
        /// What it may be.
        expected: String,
    },
    /// A file of tensors that breaks the format.
    #[error("{} is no safetensors file: {why}", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A tensor that does not fit.
    #[error("{}: tensor `{tensor}` {found}, expected {expected}", path.display())]
    Tensor {
        /// Its file.
        path: PathBuf,
        /// Its name.
        tensor: String,
        /// What it is like.
        found: String,
        /// What it should be like.
        expected: String,
    },
    /// A checkpoint of a model that is not converted.
    #[error("{}: architecture `{found}` is not converted; known are {known}", path.display())]
    Architecture {
        /// The configuration.
        path: PathBuf,
        /// What it says.
        found: String,
        /// What is known.
        known: String,
    },
    /// A tensor that a GGUF file cannot have.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl ConvertError {
    /// A field's value and what was expected of it.
    pub(crate) fn field(
        path: &Path,
        field: impl Into<String>,
        found: impl ToString,
        expected: impl Into<String>,
    ) -> ConvertError {
        let (field, found, expected) = (field.into(), found.to_string(), expected.into());
        ConvertError::Field { path: path.to_owned(), field, found, expected }
    }
}
