//! Writing a file: version 3, little-endian, data aligned to 32 bytes.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use firth_quant::Dtype;

use crate::header::{ALIGNMENT, TensorInfo, data_len};
use crate::metadata::Metadata;
use crate::value::{Array, Value};

/// The longest name that readers take.
const MAX_NAME_BYTES: usize = 63;

/// Why a file cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The system refused.
    #[error("cannot write: {0}")]
    Io(#[from] io::Error),
    /// Data of another size than shape and type say.
    #[error("tensor `{tensor}` has data of {found} bytes, expected {expected}")]
    Len {
        /// The tensor.
        tensor: String,
        /// Bytes given.
        found: u64,
        /// Bytes of its shape and type.
        expected: u64,
    },
    /// A name that a reader would refuse, or that another tensor has.
    #[error("tensor `{tensor}` {why}")]
    Name {
        /// The name.
        tensor: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A shape that its type cannot have.
    #[error("tensor `{tensor}` of {dtype} has shape {shape:?}, expected 1 to 4 axes and whole blocks")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: &'static str,
        /// Its shape.
        shape: Vec<u64>,
    },
}

/// A file to be written: metadata, and tensors whose data is borrowed, owned, or produced while writing.
#[derive(Default)]
pub struct Writer<'a> {
    metadata: Metadata,
    tensors: Vec<(TensorInfo, Option<Cow<'a, [u8]>>)>,
    names: HashSet<String>,
    data_len: u64,
}

impl<'a> Writer<'a> {
    /// A file without keys or tensors.
    pub fn new() -> Writer<'a> {
        Writer::default()
    }

    /// Keys and values, written in order. `general.alignment` is written as 32 whatever it says.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// Adds a tensor with its data. Axes fastest first.
    ///
    /// # Errors
    /// A name, a shape or data that a reader would refuse.
    pub fn add_tensor(
        &mut self,
        name: impl Into<String>,
        shape: &[u64],
        dtype: Dtype,
        data: impl Into<Cow<'a, [u8]>>,
    ) -> Result<(), WriteError> {
        let info = self.place(name.into(), shape, dtype)?;
        let data = data.into();
        check_len(&info, data.len() as u64)?;
        self.push(info, Some(data));
        Ok(())
    }

    /// Adds a tensor whose data [`Writer::write_with`] asks for when its turn comes, so that a large model need not
    /// be in memory. Returns where it will lie.
    ///
    /// # Errors
    /// A name or a shape that a reader would refuse.
    pub fn add_tensor_later(
        &mut self,
        name: impl Into<String>,
        shape: &[u64],
        dtype: Dtype,
    ) -> Result<TensorInfo, WriteError> {
        let info = self.place(name.into(), shape, dtype)?;
        self.push(info.clone(), None);
        Ok(info)
    }

    fn place(&self, name: String, shape: &[u64], dtype: Dtype) -> Result<TensorInfo, WriteError> {
        self.check_name(&name)?;
        let refused =
            || WriteError::Shape { tensor: name.clone(), dtype: dtype.name(), shape: shape.to_vec() };
        if !(1..=4).contains(&shape.len()) {
            return Err(refused());
        }
        match data_len(&name, shape, dtype) {
            Ok(len) if len <= i64::MAX as u64 - self.data_len => {
                Ok(TensorInfo { name, shape: shape.to_vec(), dtype, shard: 0, offset: self.data_len, len })
            }
            _ => Err(refused()),
        }
    }

    fn check_name(&self, name: &str) -> Result<(), WriteError> {
        let refuse = |why| Err(WriteError::Name { tensor: name.to_owned(), why });
        match name {
            _ if name.is_empty() || name.len() > MAX_NAME_BYTES => refuse("needs a name of 1 to 63 bytes"),
            _ if name.contains('\0') => refuse("has a NUL in its name"),
            _ if self.names.contains(name) => refuse("is added twice"),
            _ => Ok(()),
        }
    }

    fn push(&mut self, info: TensorInfo, data: Option<Cow<'a, [u8]>>) {
        self.data_len = (info.offset + info.len).next_multiple_of(ALIGNMENT.into());
        self.names.insert(info.name.clone());
        self.tensors.push((info, data));
    }

    /// Writes the file; all tensors have their data.
    ///
    /// # Errors
    /// A failing output; a tensor that was added without data counts as one of no bytes. What was written by then is
    /// no file.
    pub fn write_to(&self, out: impl Write) -> Result<(), WriteError> {
        self.write_with(out, |_| Ok(Vec::new()))
    }

    /// Writes the file to a path, replacing what is there.
    ///
    /// # Errors
    /// As [`Writer::write_to`].
    pub fn write_file(&self, path: &Path) -> Result<(), WriteError> {
        self.write_to(File::create(path)?)
    }

    /// Writes the file, asking `produce` for the data of tensors that were added without; their order is that of
    /// adding.
    ///
    /// # Errors
    /// A failing output or producer, data of another size than announced.
    pub fn write_with(
        &self,
        out: impl Write,
        mut produce: impl FnMut(&TensorInfo) -> io::Result<Vec<u8>>,
    ) -> Result<(), WriteError> {
        self.write_streamed(out, |info, out| out.write_all(&produce(info)?))
    }

    /// As [`Writer::write_with`], where `produce` writes a tensor's data to its output, in as many pieces as it likes,
    /// so that not even a whole tensor need be in memory.
    ///
    /// # Errors
    /// As [`Writer::write_with`].
    pub fn write_streamed(
        &self,
        out: impl Write,
        mut produce: impl FnMut(&TensorInfo, &mut dyn Write) -> io::Result<()>,
    ) -> Result<(), WriteError> {
        let mut out = BufWriter::new(out);
        let header = self.header();
        out.write_all(&header)?;
        pad(&mut out, header.len() as u64)?;
        for (info, data) in &self.tensors {
            let mut counted = Counted { out: &mut out, written: 0 };
            match data {
                Some(data) => counted.write_all(data)?,
                None => produce(info, &mut counted)?,
            }
            check_len(info, counted.written)?;
            pad(&mut out, info.len)?;
        }
        out.flush()?;
        Ok(())
    }

    /// What precedes the data.
    pub(crate) fn header(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(b"GGUF");
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in self.metadata.iter() {
            put_str(&mut out, key.as_bytes());
            match key {
                "general.alignment" => put_value(&mut out, &Value::U32(ALIGNMENT)),
                _ => put_value(&mut out, value),
            }
        }
        for (info, _) in &self.tensors {
            put_str(&mut out, info.name.as_bytes());
            out.extend((info.shape.len() as u32).to_le_bytes());
            info.shape.iter().for_each(|n| out.extend(n.to_le_bytes()));
            out.extend(info.dtype.id().to_le_bytes());
            out.extend(info.offset.to_le_bytes());
        }
        out
    }
}

/// An output that counts.
struct Counted<W> {
    out: W,
    written: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.out.write(bytes)?;
        self.written += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn check_len(info: &TensorInfo, found: u64) -> Result<(), WriteError> {
    let expected = info.len;
    match found == expected {
        true => Ok(()),
        false => Err(WriteError::Len { tensor: info.name.clone(), found, expected }),
    }
}

/// Zeros from `len` bytes to the next multiple of the alignment.
fn pad(out: &mut impl Write, len: u64) -> io::Result<()> {
    let n = len.next_multiple_of(ALIGNMENT.into()) - len;
    out.write_all(&[0; ALIGNMENT as usize][..n as usize])
}

fn put_str(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}

macro_rules! put_numbers {
    ($out:ident, $values:expr) => {
        $values.iter().for_each(|v| $out.extend(v.to_le_bytes()))
    };
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    out.extend(value.type_id().to_le_bytes());
    match value {
        Value::U8(v) => out.push(*v),
        Value::I8(v) => out.extend(v.to_le_bytes()),
        Value::U16(v) => out.extend(v.to_le_bytes()),
        Value::I16(v) => out.extend(v.to_le_bytes()),
        Value::U32(v) => out.extend(v.to_le_bytes()),
        Value::I32(v) => out.extend(v.to_le_bytes()),
        Value::F32(v) => out.extend(v.to_le_bytes()),
        Value::Bool(v) => out.push((*v).into()),
        Value::Str(v) => put_str(out, v.as_bytes()),
        Value::Array(v) => put_array(out, v),
        Value::U64(v) => out.extend(v.to_le_bytes()),
        Value::I64(v) => out.extend(v.to_le_bytes()),
        Value::F64(v) => out.extend(v.to_le_bytes()),
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    out.extend(array.element_type_id().to_le_bytes());
    out.extend((array.len() as u64).to_le_bytes());
    match array {
        Array::U8(v) => out.extend(v),
        Array::I8(v) => put_numbers!(out, v),
        Array::U16(v) => put_numbers!(out, v),
        Array::I16(v) => put_numbers!(out, v),
        Array::U32(v) => put_numbers!(out, v),
        Array::I32(v) => put_numbers!(out, v),
        Array::F32(v) => put_numbers!(out, v),
        Array::Bool(v) => v.iter().for_each(|v| out.push((*v).into())),
        Array::Str(v) => v.iter().for_each(|v| put_str(out, v)),
        Array::U64(v) => put_numbers!(out, v),
        Array::I64(v) => put_numbers!(out, v),
        Array::F64(v) => put_numbers!(out, v),
    }
}
