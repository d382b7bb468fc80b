//! The GGUF file format, versions 2 and 3: read by mapping, checked before use, and written.
//!
//! A file is metadata, a directory of tensors, and their bytes. [`Gguf::open`] reads the first two and checks that
//! the third is there; no byte of a file makes it panic, hang, or allocate more than a small multiple of the
//! header's own bytes. What a tensor is for is not known here.
//!
//! Shapes are written fastest axis first: the first number is the length of a row.
//!
//! Source: the format's specification in the documents of GGML (`docs/gguf.md`), and its reader in llama.cpp.
#![deny(unsafe_code)]

mod assemble;
mod error;
mod file;
mod header;
mod map;
mod metadata;
mod read;
mod value;
mod write;

pub use assemble::{Assembled, TensorData};
pub use error::{GgufError, Problem};
pub use file::Gguf;
pub use header::{Header, Limits, TensorInfo, parse_header};
pub use map::MappedFile;
pub use metadata::{KeyError, Metadata};
pub use value::{Array, Strings, Value};
pub use write::{WriteError, Writer};
