//! What can be wrong with a file.

use std::path::PathBuf;

use firth_quant::DtypeError;

use crate::metadata::KeyError;

/// Why a model file cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// One file of several is not there.
    #[error("shard {no} of {count} is missing: no file {}; all shards belong into one folder", path.display())]
    MissingShard {
        /// The file.
        path: PathBuf,
        /// Its number, from 1.
        no: u32,
        /// The shards.
        count: u32,
    },
    /// The system refused.
    #[error("cannot open {}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// No regular file.
    #[error("{} is no regular file", path.display())]
    NoFile {
        /// The path.
        path: PathBuf,
    },
    /// A file that breaks the format.
    #[error("{file}: {problem}")]
    Format {
        /// The file.
        file: String,
        /// What is wrong.
        problem: Problem,
    },
}

/// How a file breaks the format; always says where, what was found and what was expected.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Problem {
    /// No GGUF file.
    #[error("starts with bytes {found:02x?}, expected \"GGUF\" ([47, 47, 55, 46]){hint}")]
    Magic {
        /// The first bytes, at most four.
        found: Vec<u8>,
        /// What it seems to be, and what to do then.
        hint: &'static str,
    },
    /// A version of another layout.
    #[error("version is {found}, expected 2 or 3")]
    Version {
        /// The version.
        found: u32,
    },
    /// A file of the other byte order.
    #[error("version is {found:#010x}, expected 2 or 3: the file is big-endian, only little-endian is read")]
    ByteOrder {
        /// The version as read.
        found: u32,
    },
    /// Something reaches past the end of the file.
    #[error("{what} at byte {offset} exceeds file size: needs {needed} bytes, {left} are left")]
    Bounds {
        /// The field.
        what: String,
        /// Where it starts.
        offset: u64,
        /// Its bytes; the largest number when they overflow.
        needed: u64,
        /// Bytes from there to the end.
        left: u64,
    },
    /// A count that the file cannot hold.
    #[error(
        "{what} is {found}, expected 0 to {limit} in a file of {file_bytes} bytes: it is damaged or cut off"
    )]
    Count {
        /// The field.
        what: &'static str,
        /// The count.
        found: i64,
        /// The largest that fits.
        limit: u64,
        /// The file's size.
        file_bytes: u64,
    },
    /// A length beyond the format's or the reader's limit.
    #[error("{what} is {found}, expected at most {limit}")]
    Limit {
        /// The field.
        what: String,
        /// The length.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// A key or name that is no proper text.
    #[error("{what} {why}")]
    Text {
        /// The field.
        what: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A type number that names nothing.
    #[error("key `{key}` has {what} {found}, expected {expected}")]
    ValueType {
        /// The key.
        key: String,
        /// Value or element type.
        what: &'static str,
        /// The number.
        found: u32,
        /// The numbers that are allowed.
        expected: &'static str,
    },
    /// A key or tensor that occurs twice.
    #[error("{what} `{name}` occurs twice, expected once")]
    Duplicate {
        /// Key or tensor.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// An alignment that is none.
    #[error("`general.alignment` is {found}, expected u32 and a power of two from 1 to {limit}")]
    Alignment {
        /// Type and value.
        found: String,
        /// The largest.
        limit: u32,
    },
    /// A tensor without axes, or with too many.
    #[error("tensor `{tensor}` has {found} axes, expected 1 to 4")]
    Axes {
        /// The tensor.
        tensor: String,
        /// Their number.
        found: u32,
    },
    /// A negative length.
    #[error("tensor `{tensor}` has length {found} on axis {axis}, expected 0 or more")]
    Negative {
        /// The tensor.
        tensor: String,
        /// The axis.
        axis: usize,
        /// Its length.
        found: i64,
    },
    /// A size that no machine counts.
    #[error("tensor `{tensor}` of shape {shape:?} overflows: its size exceeds {limit}", limit = i64::MAX)]
    Overflow {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<u64>,
    },
    /// A type that cannot be loaded.
    #[error("tensor `{tensor}`: {source}")]
    Dtype {
        /// The tensor.
        tensor: String,
        /// Why.
        source: DtypeError,
    },
    /// Rows that are no whole number of blocks.
    #[error("tensor `{tensor}` has rows of {found}, expected a multiple of {block} for {dtype}")]
    Row {
        /// The tensor.
        tensor: String,
        /// Row length.
        found: u64,
        /// Block length.
        block: usize,
        /// The type.
        dtype: &'static str,
    },
    /// Data elsewhere than after the tensor before.
    #[error("tensor `{tensor}` has data offset {found}, expected {expected}")]
    Offset {
        /// The tensor.
        tensor: String,
        /// The offset in the data section.
        found: u64,
        /// The end of the data before, padded.
        expected: u64,
    },
    /// Data past the end of the file.
    #[error(
        "tensor `{tensor}` has data of {len} bytes at byte {offset}, which ends past the file's {file_bytes}: \
         the file is cut off, fetch it again"
    )]
    Data {
        /// The tensor.
        tensor: String,
        /// Where its data starts.
        offset: u64,
        /// Its bytes.
        len: u64,
        /// The file's size.
        file_bytes: u64,
    },
    /// Bytes that belong to nothing.
    #[error("file has {file_bytes} bytes, but the data of its last tensor ends at byte {expected}")]
    Trailing {
        /// The file's size.
        file_bytes: u64,
        /// Where the data ends, padded.
        expected: u64,
    },
    /// Values that are no numbers.
    #[error("tensor `{tensor}` holds a value or scale that is not finite in block {block}, at byte {offset}")]
    NotFinite {
        /// The tensor.
        tensor: String,
        /// The first such block.
        block: u64,
        /// Where it starts in the file.
        offset: u64,
    },
    /// A key about the shards that cannot be read.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A name that does not say which shard the file is.
    #[error("the model has {count} shards, but the file's name does not end in -{no:05}-of-{count:05}.gguf")]
    ShardName {
        /// The shards.
        count: u32,
        /// This one, counted from 1.
        no: u32,
    },
    /// A shard that says another number than expected.
    #[error("`{key}` is {found}, expected {expected}")]
    Shard {
        /// The key.
        key: &'static str,
        /// Its value.
        found: u64,
        /// What the other shards make it.
        expected: u64,
    },
}
