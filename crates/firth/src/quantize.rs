//! Writes a model in another type: which type each tensor gets, and the file.

mod file_type;
mod imatrix;
mod mix;
mod part;
mod plan;
mod role;
mod rows;
#[cfg(test)]
mod tests;
mod write;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use firth_gguf::{Gguf, GgufError, KeyError, TensorInfo, WriteError};
use firth_quant::{Dtype, EncodeError};
use regex_lite::Regex;

pub use file_type::FileType;
pub use imatrix::{Importance, ImportanceError};
pub use plan::Planned;

/// How to quantise.
#[derive(Clone, Debug)]
pub struct QuantizeOptions {
    /// The mix.
    pub file_type: FileType,
    /// Types of tensors by name; the first that matches decides.
    pub tensor_types: Vec<TensorType>,
    /// The type of `output.weight`, and of an embedding that serves as it.
    pub output_type: Option<Dtype>,
    /// The type of `token_embd.weight`.
    pub embedding_type: Option<Dtype>,
    /// Every tensor that may change gets the base type of the mix.
    pub pure: bool,
    /// `output.weight` stays as it is.
    pub leave_output: bool,
    /// Takes what is quantised already; each pass loses.
    pub allow_requantize: bool,
    /// As many files as the input has.
    pub keep_split: bool,
    /// What each column of a matrix is worth.
    pub importance: Option<Importance>,
    /// Threads, at least 1. The result does not depend on them.
    pub threads: usize,
}

impl QuantizeOptions {
    /// The mix alone, on one thread.
    pub fn new(file_type: FileType) -> QuantizeOptions {
        QuantizeOptions {
            file_type,
            tensor_types: Vec::new(),
            output_type: None,
            embedding_type: None,
            pure: false,
            leave_output: false,
            allow_requantize: false,
            keep_split: false,
            importance: None,
            threads: 1,
        }
    }
}

/// A rule of the user: tensors whose names match get a type.
#[derive(Clone, Debug)]
pub struct TensorType {
    pattern: Regex,
    dtype: Dtype,
}

impl TensorType {
    /// From `NAME=TYPE`. NAME is a regular expression in lower case, found anywhere in a tensor's name.
    ///
    /// # Errors
    /// No `=`, no type, no regular expression.
    pub fn parse(text: &str) -> Result<TensorType, QuantizeError> {
        let wrong = |why: String| QuantizeError::TensorType { text: text.to_owned(), why };
        let (pattern, dtype) = text.rsplit_once('=').ok_or_else(|| wrong("expected NAME=TYPE".to_owned()))?;
        let dtype = Dtype::from_name(dtype).ok_or_else(|| wrong(format!("`{dtype}` is no tensor type")))?;
        let pattern = Regex::new(&pattern.to_lowercase()).map_err(|e| wrong(e.to_string()))?;
        Ok(TensorType { pattern, dtype })
    }

    /// Whether the name of a tensor matches.
    pub fn matches(&self, name: &str) -> bool {
        self.pattern.is_match(name)
    }
}

/// Why a model cannot be quantised.
#[derive(Debug, thiserror::Error)]
pub enum QuantizeError {
    /// A rule without meaning.
    #[error("tensor type `{text}` has no meaning: {why}")]
    TensorType {
        /// The rule.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// A key of the file has the wrong type.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Values of the file that are not finite.
    #[error(transparent)]
    Input(#[from] GgufError),
    /// A type that cannot be written.
    #[error("tensor `{tensor}` would become {dtype}, which this build cannot write")]
    NoEncoder {
        /// The tensor.
        tensor: String,
        /// The type.
        dtype: &'static str,
    },
    /// A row that no blocks fill.
    #[error("tensor `{tensor}` has rows of {row} values, expected a multiple of {block} for {dtype}")]
    Row {
        /// The tensor.
        tensor: String,
        /// Its row.
        row: u64,
        /// The type.
        dtype: &'static str,
        /// Values of a block.
        block: usize,
    },
    /// Quantised already.
    #[error(
        "tensor `{tensor}` is {from} already and would become {to}, which loses twice; start from an \
             unquantised file, or allow it with --allow-requantize"
    )]
    Requantize {
        /// The tensor.
        tensor: String,
        /// Its type.
        from: &'static str,
        /// The planned one.
        to: &'static str,
    },
    /// So few bits that every one must count.
    #[error(
        "tensor `{tensor}` would become {dtype}, which needs an importance matrix; give one with --imatrix \
             that has this tensor"
    )]
    NeedsImportance {
        /// The tensor.
        tensor: String,
        /// The type.
        dtype: &'static str,
    },
    /// An importance vector of another length.
    #[error("the importance matrix has {found} values for tensor `{tensor}`, expected {expected}")]
    ImportanceLen {
        /// The tensor.
        tensor: String,
        /// Values it has.
        found: usize,
        /// Values of its rows, times its experts.
        expected: u64,
    },
    /// Values that the type cannot hold.
    #[error("tensor `{tensor}`, row {row}: {why}")]
    Encode {
        /// The tensor.
        tensor: String,
        /// The row.
        row: u64,
        /// Why.
        why: EncodeError,
    },
    /// The output is the input.
    #[error("{} is the input itself; give another name", path.display())]
    SameFile {
        /// The path.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot write {}: {}", path.display(), reason(why))]
    Output {
        /// The file.
        path: PathBuf,
        /// Why. Said above, so no source that would be said again.
        why: WriteError,
    },
    /// The caller wished to stop. Whole tensors are kept beside the output for a later run of the same make.
    #[error("interrupted; the same command goes on with what is done")]
    Interrupted,
}

/// What the system said, without that it was a write.
fn reason(why: &WriteError) -> String {
    match why {
        WriteError::Io(e) => e.to_string(),
        other => other.to_string(),
    }
}

/// How far the work is.
#[derive(Clone, Copy, Debug)]
pub struct QuantizeProgress<'a> {
    /// The tensor at hand.
    pub planned: &'a Planned<'a>,
    /// Bytes of the input that were read since the last call.
    pub bytes: u64,
}

/// A model and what becomes of its tensors.
pub struct QuantizePlan<'a> {
    file: &'a Gguf,
    options: &'a QuantizeOptions,
    tensors: Vec<Planned<'a>>,
}

impl<'a> QuantizePlan<'a> {
    /// Decides the type of each tensor; reads no data.
    ///
    /// # Errors
    /// A choice that cannot be carried out.
    pub fn new(file: &'a Gguf, options: &'a QuantizeOptions) -> Result<QuantizePlan<'a>, QuantizeError> {
        Ok(QuantizePlan { file, options, tensors: plan::plan(file, options)? })
    }

    /// The tensors in the order they are written.
    pub fn tensors(&self) -> &[Planned<'a>] {
        &self.tensors
    }

    /// Bytes of all new data.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(Planned::bytes).sum()
    }

    /// Writes the file, or with `keep_split` the files `OUT-00001-of-00003.gguf` and so on; returns their paths. Each is
    /// written as `NAME.part` beside it, synced, and renamed when all are complete, so that whoever finds the name finds a
    /// whole file. A run that was stopped or killed is gone on with where input, types and keys are the same.
    ///
    /// # Errors
    /// Input that is not finite or does not fit its type, an output that fails or is the input, a caller who stops.
    pub fn write(
        &self,
        out: &Path,
        on: &mut dyn FnMut(QuantizeProgress) -> ControlFlow<()>,
    ) -> Result<Vec<PathBuf>, QuantizeError> {
        write::write(self, out, on)
    }
}

/// The importance of a tensor's columns, expert after expert.
fn importance_of<'o>(
    options: &'o QuantizeOptions,
    tensor: &TensorInfo,
) -> Result<Option<&'o [f32]>, QuantizeError> {
    let Some(values) = options.importance.as_ref().and_then(|i| i.get(&tensor.name)) else { return Ok(None) };
    let dims = tensor.dims();
    let expected = dims[0] as u64 * dims[2] as u64;
    if values.len() as u64 == expected {
        return Ok(Some(values));
    }
    // The matrix of an embedding counts lookups, not products.
    if role::Role::of(&tensor.name) == role::Role::Embedding {
        return Ok(None);
    }
    Err(QuantizeError::ImportanceLen { tensor: tensor.name.clone(), found: values.len(), expected })
}
