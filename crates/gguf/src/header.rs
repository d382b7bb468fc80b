//! Metadata and the directory of tensors of one file.
//!
//! The layout, little-endian: magic, version, number of tensors, number of keys; keys with their values; tensors
//! with name, axes, type and offset; padding; data, each tensor padded to the alignment.

use std::collections::HashSet;

use firth_quant::Dtype;

use crate::error::Problem;
use crate::metadata::Metadata;
use crate::read::Reader;
use crate::value::Value;

/// Data alignment of files that name none, in bytes.
pub(crate) const ALIGNMENT: u32 = 32;
const ALIGNMENT_KEY: &str = "general.alignment";

/// The smallest key: length, one byte of text, type, one byte of value.
const MIN_KEY_BYTES: u64 = 8 + 1 + 4 + 1;
/// The smallest tensor: length, one byte of name, number of axes, one axis, type, offset.
const MIN_TENSOR_BYTES: u64 = 8 + 1 + 4 + 8 + 4 + 8;

/// What a file may ask for, beyond what its size bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a key.
    pub key: usize,
    /// Bytes of a tensor's name.
    pub name: usize,
    /// Bytes of a string.
    pub string: usize,
    /// Elements of an array.
    pub array: usize,
    /// Largest alignment of data, in bytes.
    pub alignment: u32,
}

impl Default for Limits {
    /// The format's own limits, and 64 KiB of alignment.
    fn default() -> Self {
        Limits { key: 65535, name: 63, string: 1 << 30, array: 1 << 30, alignment: 1 << 16 }
    }
}

/// A tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Lengths of 1 to 4 axes, fastest first.
    pub shape: Vec<u64>,
    /// Its type.
    pub dtype: Dtype,
    /// The file that holds it, counted from 0.
    pub shard: usize,
    /// Where its data starts in that file, in bytes.
    pub offset: u64,
    /// Bytes of its data.
    pub len: u64,
}

impl TensorInfo {
    /// Number of elements.
    pub fn n_elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Lengths of four axes, fastest first; axes that the file leaves out are 1.
    pub fn dims(&self) -> [usize; 4] {
        let mut dims = [1; 4];
        for (dim, n) in dims.iter_mut().zip(&self.shape) {
            *dim = *n as usize;
        }
        dims
    }
}

/// All that precedes the data of a file.
#[derive(Clone, Debug)]
pub struct Header {
    /// Version of the format, 2 or 3.
    pub version: u32,
    /// Keys and values.
    pub metadata: Metadata,
    /// Tensors in the order of their data; all of it lies inside the file.
    pub tensors: Vec<TensorInfo>,
    /// Alignment of data in bytes.
    pub alignment: u32,
    /// Where the data starts, in bytes.
    pub data_start: u64,
    /// Bytes up to the end of the directory.
    pub len: u64,
}

/// Reads the header of the file that `bytes` is the whole of, and checks that its tensors lie within.
///
/// Time and memory are bounded by the header's size. The [`TensorInfo::shard`] of all is 0.
///
/// # Errors
/// A [`Problem`] for whatever breaks the format.
pub fn parse_header(bytes: &[u8], limits: &Limits) -> Result<Header, Problem> {
    let mut reader = Reader { bytes, at: 0, limits };
    let version = version(&mut reader)?;
    let n_tensors = count(&mut reader, "n_tensors", MIN_TENSOR_BYTES)?;
    let n_keys = count(&mut reader, "n_kv", MIN_KEY_BYTES)?;
    let metadata = metadata(&mut reader, n_keys)?;
    let alignment = alignment(&metadata, limits)?;
    let directory = directory(&mut reader, n_tensors)?;
    let len = reader.at as u64;
    // No sum here wraps: the file's size is below 2^63, and the alignment at most 2^31.
    let data_start = len.next_multiple_of(alignment.into());
    let tensors = place(directory, data_start, alignment.into(), bytes.len() as u64)?;
    Ok(Header { version, metadata, tensors, alignment, data_start, len })
}

/// What a file that is no GGUF seems to be.
fn hint(bytes: &[u8]) -> &'static str {
    const SAFETENSORS: &str = ": this is a safetensors file; give the folder that also holds its config.json";
    // A length of 8 bytes, then JSON.
    let safetensors = bytes.get(8) == Some(&b'{') && bytes.get(4..8) == Some(&[0; 4]);
    match bytes {
        [] => ": the file is empty, fetch it again",
        _ if safetensors => SAFETENSORS,
        _ if bytes.starts_with(b"version https://git-lfs") => {
            ": this is a pointer of Git LFS to the model, not the model; fetch it with git lfs pull"
        }
        _ if bytes.starts_with(b"<") => ": this is a web page, perhaps a refusal; fetch the file again",
        _ if bytes.starts_with(b"PK") => {
            ": this is an archive, perhaps of PyTorch; convert its model to safetensors"
        }
        [b'l', b'm', b'g', b'g', ..] | [b'f' | b't', b'm' | b'j', b'g', b'g', ..] => {
            ": this is a file of GGML from before GGUF; convert the model again"
        }
        _ => "",
    }
}

fn version(reader: &mut Reader) -> Result<u32, Problem> {
    if !reader.bytes.starts_with(b"GGUF") {
        let found = reader.bytes.iter().take(4).copied().collect();
        return Err(Problem::Magic { found, hint: hint(reader.bytes) });
    }
    reader.at = 4;
    match reader.u32(|| "version".to_owned())? {
        version @ (2 | 3) => Ok(version),
        found if found & 0xffff == 0 && found != 0 => Err(Problem::ByteOrder { found }),
        found => Err(Problem::Version { found }),
    }
}

/// A number of things of at least `min_bytes` each.
fn count(reader: &mut Reader, what: &'static str, min_bytes: u64) -> Result<u64, Problem> {
    let found = reader.u64(|| what.to_owned())?;
    let limit = reader.left() / min_bytes;
    if found > limit {
        let (found, file_bytes) = (found as i64, reader.bytes.len() as u64);
        return Err(Problem::Count { what, found, limit, file_bytes });
    }
    Ok(found)
}

fn metadata(reader: &mut Reader, n: u64) -> Result<Metadata, Problem> {
    let mut metadata = Metadata::new();
    for i in 0..n {
        let key = reader.name(reader.limits.key, || format!("key {i}"))?;
        let value = reader.value(key)?;
        if metadata.insert(key, value).is_some() {
            return Err(Problem::Duplicate { what: "key", name: key.to_owned() });
        }
    }
    Ok(metadata)
}

fn alignment(metadata: &Metadata, limits: &Limits) -> Result<u32, Problem> {
    let limit = limits.alignment;
    match metadata.get(ALIGNMENT_KEY) {
        None => Ok(ALIGNMENT),
        Some(Value::U32(n)) if n.is_power_of_two() && *n <= limit => Ok(*n),
        Some(Value::U32(n)) => Err(Problem::Alignment { found: n.to_string(), limit }),
        Some(other) => Err(Problem::Alignment { found: other.type_name().to_owned(), limit }),
    }
}

/// Tensors whose offsets still count from the start of the data.
fn directory(reader: &mut Reader, n: u64) -> Result<Vec<TensorInfo>, Problem> {
    // The count is bounded by the size of the file, data and all; only what is read is worth memory.
    let mut tensors = Vec::with_capacity(n.min(4096) as usize);
    let mut names = HashSet::with_capacity(n.min(4096) as usize);
    for i in 0..n {
        let name = reader.name(reader.limits.name, || format!("name of tensor {i}"))?;
        if !names.insert(name) {
            return Err(Problem::Duplicate { what: "tensor", name: name.to_owned() });
        }
        tensors.push(tensor(reader, name)?);
    }
    Ok(tensors)
}

fn tensor(reader: &mut Reader, name: &str) -> Result<TensorInfo, Problem> {
    let tensor = || name.to_owned();
    let n_axes = reader.u32(|| format!("number of axes of tensor `{name}`"))?;
    if !(1..=4).contains(&n_axes) {
        return Err(Problem::Axes { tensor: tensor(), found: n_axes });
    }
    let mut shape = Vec::with_capacity(n_axes as usize);
    for axis in 0..n_axes as usize {
        let n = reader.u64(|| format!("axis {axis} of tensor `{name}`"))?;
        if n > i64::MAX as u64 {
            return Err(Problem::Negative { tensor: tensor(), axis, found: n as i64 });
        }
        shape.push(n);
    }
    let id = reader.u32(|| format!("type of tensor `{name}`"))?;
    let dtype = Dtype::from_id(id).map_err(|source| Problem::Dtype { tensor: tensor(), source })?;
    let offset = reader.u64(|| format!("data offset of tensor `{name}`"))?;
    let len = data_len(name, &shape, dtype)?;
    Ok(TensorInfo { name: tensor(), shape, dtype, shard: 0, offset, len })
}

/// Bytes of a tensor's data; it has at least one axis.
pub(crate) fn data_len(name: &str, shape: &[u64], dtype: Dtype) -> Result<u64, Problem> {
    let overflow = || Problem::Overflow { tensor: name.to_owned(), shape: shape.to_vec() };
    let block = dtype.block_len() as u64;
    if !shape[0].is_multiple_of(block) {
        let (tensor, block) = (name.to_owned(), dtype.block_len());
        return Err(Problem::Row { tensor, found: shape[0], block, dtype: dtype.name() });
    }
    // Every partial product counts: an axis of 0 must not hide that the others wrap.
    let product = |axes: &[u64]| axes.iter().try_fold(1u64, |n, axis| n.checked_mul((*axis).max(1)));
    let largest = product(shape).and_then(|n| n.checked_mul(dtype.block_bytes() as u64));
    if largest.is_none_or(|n| n > i64::MAX as u64) {
        return Err(overflow());
    }
    Ok(shape.iter().product::<u64>() / block * dtype.block_bytes() as u64)
}

/// Checks that data follows data without gaps and lies inside the file; offsets then count from its start.
fn place(
    mut tensors: Vec<TensorInfo>,
    data_start: u64,
    alignment: u64,
    file_bytes: u64,
) -> Result<Vec<TensorInfo>, Problem> {
    let mut expected = 0u64;
    for t in &mut tensors {
        if t.offset != expected {
            return Err(Problem::Offset { tensor: std::mem::take(&mut t.name), found: t.offset, expected });
        }
        // Both are below 2^63, and what is kept is inside the file.
        t.offset = data_start + expected;
        let end = t.offset + t.len;
        if end > file_bytes {
            let (tensor, offset, len) = (std::mem::take(&mut t.name), t.offset, t.len);
            return Err(Problem::Data { tensor, offset, len, file_bytes });
        }
        expected = (expected + t.len).next_multiple_of(alignment);
    }
    let end = data_start + expected;
    if file_bytes > end {
        return Err(Problem::Trailing { file_bytes, expected: end });
    }
    Ok(tensors)
}
