//! The GGUF file format, read (mapped) and written. Knows nothing of what a tensor is for.
#![deny(unsafe_code)]

mod metadata;
mod value;

pub use metadata::{KeyError, Metadata};
pub use value::{Array, Strings, Value};
