//! The bytes of a header as values: every length is compared with what is left before anything is allocated.

use crate::error::Problem;
use crate::header::Limits;
use crate::value::{self, Array, Strings, Value};

/// A position in a file.
pub(crate) struct Reader<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) at: usize,
    pub(crate) limits: &'a Limits,
}

/// An array of plain numbers, in bulk.
fn numbers<const N: usize, T>(bytes: &[u8], from: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|b| from(*b)).collect()
}

impl<'a> Reader<'a> {
    pub(crate) fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// The next `n` bytes; `what` names them should they not be there.
    pub(crate) fn take(&mut self, n: u64, what: impl FnOnce() -> String) -> Result<&'a [u8], Problem> {
        if n > self.left() {
            let offset = self.at as u64;
            return Err(Problem::Bounds { what: what(), offset, needed: n, left: self.left() });
        }
        let taken = &self.bytes[self.at..self.at + n as usize];
        self.at += n as usize;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: impl FnOnce() -> String) -> Result<[u8; N], Problem> {
        Ok(self.take(N as u64, what)?.try_into().expect("taken bytes"))
    }

    pub(crate) fn u32(&mut self, what: impl FnOnce() -> String) -> Result<u32, Problem> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, what: impl FnOnce() -> String) -> Result<u64, Problem> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Length and bytes of a string.
    fn string(&mut self, limit: usize, what: impl Fn() -> String) -> Result<&'a [u8], Problem> {
        let start = self.at as u64;
        let n = self.u64(|| format!("length of {}", what()))?;
        if n > self.left() {
            return Err(Problem::Bounds { what: what(), offset: start + 8, needed: n, left: self.left() });
        }
        if n > limit as u64 {
            return Err(Problem::Limit {
                what: format!("length of {}", what()),
                found: n,
                limit: limit as u64,
            });
        }
        self.take(n, what)
    }

    /// A key or the name of a tensor: text that is not empty, without NUL.
    pub(crate) fn name(&mut self, limit: usize, what: impl Fn() -> String) -> Result<&'a str, Problem> {
        let bytes = self.string(limit, &what)?;
        let text = std::str::from_utf8(bytes)
            .map_err(|_| Problem::Text { what: what(), why: "is no UTF-8, expected text" })?;
        match text {
            "" => Err(Problem::Text { what: what(), why: "is empty, expected a name" }),
            _ if text.contains('\0') => {
                Err(Problem::Text { what: what(), why: "holds a NUL, expected a name without" })
            }
            _ => Ok(text),
        }
    }

    /// The value of `key`, its type first.
    pub(crate) fn value(&mut self, key: &str) -> Result<Value, Problem> {
        let type_id = self.u32(|| format!("value type of key `{key}`"))?;
        let what = || format!("value of key `{key}`");
        Ok(match type_id {
            0 => Value::U8(self.array::<1>(what)?[0]),
            1 => Value::I8(i8::from_le_bytes(self.array(what)?)),
            2 => Value::U16(u16::from_le_bytes(self.array(what)?)),
            3 => Value::I16(i16::from_le_bytes(self.array(what)?)),
            4 => Value::U32(u32::from_le_bytes(self.array(what)?)),
            5 => Value::I32(i32::from_le_bytes(self.array(what)?)),
            6 => Value::F32(f32::from_le_bytes(self.array(what)?)),
            7 => Value::Bool(self.array::<1>(what)?[0] != 0),
            8 => Value::Str(String::from_utf8_lossy(self.string(self.limits.string, what)?).into_owned()),
            value::ARRAY => Value::Array(self.values(key)?),
            10 => Value::U64(u64::from_le_bytes(self.array(what)?)),
            11 => Value::I64(i64::from_le_bytes(self.array(what)?)),
            12 => Value::F64(f64::from_le_bytes(self.array(what)?)),
            found => {
                let (key, what) = (key.to_owned(), "value type");
                return Err(Problem::ValueType { key, what, found, expected: "0 to 12" });
            }
        })
    }

    /// The array of `key`: element type, length, elements.
    fn values(&mut self, key: &str) -> Result<Array, Problem> {
        let type_id = self.u32(|| format!("element type of key `{key}`"))?;
        let n = self.u64(|| format!("array length of key `{key}`"))?;
        // A string takes at least its length.
        let size: u64 = match type_id {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            found => {
                let (key, what) = (key.to_owned(), "array element type");
                return Err(Problem::ValueType { key, what, found, expected: "0 to 12 but no array" });
            }
        };
        let needed = n.saturating_mul(size);
        let what = || format!("array of {n} elements of key `{key}`");
        if needed > self.left() {
            let offset = self.at as u64;
            return Err(Problem::Bounds { what: what(), offset, needed, left: self.left() });
        }
        if n > self.limits.array as u64 {
            let (what, limit) = (format!("array length of key `{key}`"), self.limits.array as u64);
            return Err(Problem::Limit { what, found: n, limit });
        }
        if type_id == 8 {
            return Ok(Array::Str(self.strings(key, n as usize)?));
        }
        let b = self.take(needed, what)?;
        Ok(match type_id {
            0 => Array::U8(b.to_vec()),
            1 => Array::I8(numbers(b, i8::from_le_bytes)),
            2 => Array::U16(numbers(b, u16::from_le_bytes)),
            3 => Array::I16(numbers(b, i16::from_le_bytes)),
            4 => Array::U32(numbers(b, u32::from_le_bytes)),
            5 => Array::I32(numbers(b, i32::from_le_bytes)),
            6 => Array::F32(numbers(b, f32::from_le_bytes)),
            7 => Array::Bool(b.iter().map(|b| *b != 0).collect()),
            10 => Array::U64(numbers(b, u64::from_le_bytes)),
            11 => Array::I64(numbers(b, i64::from_le_bytes)),
            _ => Array::F64(numbers(b, f64::from_le_bytes)),
        })
    }

    /// `n` strings: walked once to check and measure them, and once to copy, so that memory is what the file holds.
    fn strings(&mut self, key: &str, n: usize) -> Result<Strings, Problem> {
        let start = self.at;
        for i in 0..n {
            self.string(self.limits.string, || format!("element {i} of key `{key}`"))?;
        }
        let mut strings = Strings::with_capacity(n, self.at - start - 8 * n);
        self.at = start;
        for _ in 0..n {
            strings.push(self.string(self.limits.string, String::new)?);
        }
        Ok(strings)
    }
}
