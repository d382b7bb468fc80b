//! Why a sequence was not saved or restored.

use std::path::PathBuf;

use firth_graph::Lost;
use firth_memory::ImportError;

/// A state file that was not written, or not taken in; nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum StateFileError {
    /// The file cannot be written or read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// What the file says does not fit together.
    #[error("{path} is no whole state file: {what}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A whole file, of another model or made under other settings.
    #[error("{path} was saved with another {what}: found {found}, expected {expected}")]
    Other {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: String,
        /// What the file has.
        found: String,
        /// What this engine has.
        expected: String,
    },
    /// The sequence finds no place.
    #[error("{path}: {source}")]
    Import {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: ImportError,
    },
    /// A device is gone.
    #[error(transparent)]
    Lost(#[from] Lost),
}
