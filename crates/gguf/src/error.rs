//! Why a file cannot be read.

use firth_quant::DtypeError;

/// A file that cannot be read, and why.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {kind}")]
pub struct GgufError {
    /// The file: its path, or the name given to [`Gguf::from_bytes`](crate::Gguf::from_bytes).
    pub file: String,
    /// What is wrong with it.
    #[source]
    pub kind: ErrorKind,
}

impl GgufError {
    pub(crate) fn new(file: &str, kind: ErrorKind) -> GgufError {
        GgufError { file: file.to_owned(), kind }
    }
}

/// What is wrong with a file: what was found, what was expected, and where.
///
/// `at` counts bytes from the start of the file.
#[derive(Debug, thiserror::Error)]
pub enum ErrorKind {
    /// The operating system refused.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// Not a GGUF file.
    #[error("magic is {found:02x?}, expected the letters GGUF (47 47 55 46)")]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// A version whose layout is not known.
    #[error("version is {found}, expected 2 or 3")]
    Version {
        /// The version in the file.
        found: u32,
    },
    /// A file in the other byte order.
    #[error("version reads as {found:#010x}: the file is big-endian, expected little-endian")]
    BigEndian {
        /// The version as little-endian.
        found: u32,
    },
    /// The file ends within a field.
    #[error("{field} at byte {at} needs {needed} bytes, but the file has {left} left")]
    Truncated {
        /// The field.
        field: String,
        /// Where it starts.
        at: u64,
        /// Bytes it needs.
        needed: u64,
        /// Bytes the file still has there.
        left: u64,
    },
    /// A count that the rest of the file cannot hold.
    #[error("{field} at byte {at} is {found}, which exceeds file size: its {left} bytes left hold at most {most}")]
    Count {
        /// The field.
        field: String,
        /// Where it stands.
        at: u64,
        /// The count in the file.
        found: u64,
        /// Bytes left after it.
        left: u64,
        /// Elements those bytes can hold.
        most: u64,
    },
    /// A name that is empty, too long, no UTF-8, or has a NUL.
    #[error("{field} at byte {at} {problem}")]
    Name {
        /// The field.
        field: String,
        /// Where it starts.
        at: u64,
        /// What is wrong with it.
        problem: String,
    },
    /// A key that comes twice.
    #[error("key `{key}` at byte {at} comes twice")]
    DuplicateKey {
        /// The key.
        key: String,
        /// Where its second entry starts.
        at: u64,
    },
    /// A value type id that is not known, or an array of arrays.
    #[error("key `{key}` at byte {at} has value type id {found}, expected {expected}")]
    ValueType {
        /// The key.
        key: String,
        /// Where the id stands.
        at: u64,
        /// The id.
        found: u32,
        /// Ids that may stand there.
        expected: &'static str,
    },
    /// `general.alignment` is not an alignment.
    #[error("key `general.alignment` is {found}, expected a u32 power of two from 1 to 65536")]
    Alignment {
        /// What it is.
        found: String,
    },
    /// A number of axes that is not 1 to 4.
    #[error("tensor `{tensor}` at byte {at} has {found} axes, expected 1 to 4")]
    Axes {
        /// The tensor.
        tensor: String,
        /// Where the number stands.
        at: u64,
        /// The number.
        found: u32,
    },
    /// A tensor with more elements or bytes than 63 bits count.
    #[error("tensor `{tensor}` has shape {shape:?}, expected sizes whose product stays below 2^63 {unit}")]
    TooLarge {
        /// The tensor.
        tensor: String,
        /// Its shape, fastest axis first.
        shape: Vec<u64>,
        /// What overflows: `elements` or `bytes`.
        unit: &'static str,
    },
    /// A type that cannot be loaded.
    #[error("tensor `{tensor}` at byte {at}: {source}")]
    Dtype {
        /// The tensor.
        tensor: String,
        /// Where the id stands.
        at: u64,
        /// What is wrong with the id.
        source: DtypeError,
    },
    /// A row that is no whole number of blocks.
    #[error("tensor `{tensor}` has rows of {found} elements, expected a multiple of {expected} for {dtype}")]
    Row {
        /// The tensor.
        tensor: String,
        /// Elements of a row.
        found: u64,
        /// Elements of a block.
        expected: u64,
        /// The type's name.
        dtype: &'static str,
    },
    /// A tensor that comes twice.
    #[error("tensor `{tensor}` comes twice")]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
    },
    /// An offset that does not follow the tensor before.
    #[error("tensor `{tensor}` has offset {found} in the data section, expected {expected}")]
    Offset {
        /// The tensor.
        tensor: String,
        /// The offset in the file.
        found: u64,
        /// Where the padded end of the tensor before lies.
        expected: u64,
    },
    /// Data past the end of the file.
    #[error("tensor `{tensor}` needs {len} bytes at byte {at}, but the file has only {file_len}")]
    Data {
        /// The tensor.
        tensor: String,
        /// Where its data starts.
        at: u64,
        /// Bytes it needs.
        len: u64,
        /// Bytes of the file.
        file_len: u64,
    },
    /// Bytes after the last tensor.
    #[error("the file has {found} bytes, expected it to end at byte {expected} after the last tensor")]
    Trailing {
        /// Bytes of the file.
        found: u64,
        /// The padded end of the last tensor.
        expected: u64,
    },
    /// A key of a shard that cannot be read.
    #[error(transparent)]
    Key(#[from] crate::KeyError),
    /// A file of several shards whose name is not that of a shard.
    #[error("key `split.count` is {count}, so the name must end in `-00001-of-{count:05}.gguf`")]
    ShardName {
        /// Shards of the model.
        count: u32,
    },
    /// A shard that contradicts its name or the first shard.
    #[error("key `{key}` is {found}, expected {expected}")]
    Shard {
        /// The key.
        key: &'static str,
        /// The value in the file.
        found: u64,
        /// The value that fits the other shards.
        expected: u64,
    },
}
