//! Metadata values: the thirteen types of a GGUF key.

use std::fmt;

/// A metadata value, in the type the file stores it as.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Type id 0.
    U8(u8),
    /// Type id 1.
    I8(i8),
    /// Type id 2.
    U16(u16),
    /// Type id 3.
    I16(i16),
    /// Type id 4.
    U32(u32),
    /// Type id 5.
    I32(i32),
    /// Type id 6.
    F32(f32),
    /// Type id 7, one byte in the file.
    Bool(bool),
    /// Type id 8, UTF-8.
    Str(String),
    /// Type id 9: values of one type, never of arrays.
    Array(Array),
    /// Type id 10.
    U64(u64),
    /// Type id 11.
    I64(i64),
    /// Type id 12.
    F64(f64),
}

/// An array of metadata values of one type.
#[derive(Debug, Clone, PartialEq)]
pub enum Array {
    /// Element type id 0.
    U8(Vec<u8>),
    /// Element type id 1.
    I8(Vec<i8>),
    /// Element type id 2.
    U16(Vec<u16>),
    /// Element type id 3.
    I16(Vec<i16>),
    /// Element type id 4.
    U32(Vec<u32>),
    /// Element type id 5.
    I32(Vec<i32>),
    /// Element type id 6.
    F32(Vec<f32>),
    /// Element type id 7.
    Bool(Vec<bool>),
    /// Element type id 8.
    Str(Strings),
    /// Element type id 10.
    U64(Vec<u64>),
    /// Element type id 11.
    I64(Vec<i64>),
    /// Element type id 12.
    F64(Vec<f64>),
}

impl Value {
    /// The type's name as errors print it: `u32`, `string`, `array of f32`.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::U8(_) => "u8",
            Value::I8(_) => "i8",
            Value::U16(_) => "u16",
            Value::I16(_) => "i16",
            Value::U32(_) => "u32",
            Value::I32(_) => "i32",
            Value::F32(_) => "f32",
            Value::Bool(_) => "bool",
            Value::Str(_) => "string",
            Value::Array(array) => array.type_name(),
            Value::U64(_) => "u64",
            Value::I64(_) => "i64",
            Value::F64(_) => "f64",
        }
    }

    /// The type's id in the file.
    pub fn type_id(&self) -> u32 {
        match self {
            Value::U8(_) => 0,
            Value::I8(_) => 1,
            Value::U16(_) => 2,
            Value::I16(_) => 3,
            Value::U32(_) => 4,
            Value::I32(_) => 5,
            Value::F32(_) => 6,
            Value::Bool(_) => 7,
            Value::Str(_) => 8,
            Value::Array(_) => ARRAY,
            Value::U64(_) => 10,
            Value::I64(_) => 11,
            Value::F64(_) => 12,
        }
    }

    /// The value as a wide integer, when it is an integer scalar.
    pub(crate) fn as_integer(&self) -> Option<i128> {
        match *self {
            Value::U8(v) => Some(v.into()),
            Value::I8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::I16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::I32(v) => Some(v.into()),
            Value::U64(v) => Some(v.into()),
            Value::I64(v) => Some(v.into()),
            _ => None,
        }
    }
}

/// Type id of arrays.
pub(crate) const ARRAY: u32 = 9;

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Array::U8(v) => v.len(),
            Array::I8(v) => v.len(),
            Array::U16(v) => v.len(),
            Array::I16(v) => v.len(),
            Array::U32(v) => v.len(),
            Array::I32(v) => v.len(),
            Array::F32(v) => v.len(),
            Array::Bool(v) => v.len(),
            Array::Str(v) => v.len(),
            Array::U64(v) => v.len(),
            Array::I64(v) => v.len(),
            Array::F64(v) => v.len(),
        }
    }

    /// Whether the array has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The array's type as errors print it.
    pub fn type_name(&self) -> &'static str {
        match self {
            Array::U8(_) => "array of u8",
            Array::I8(_) => "array of i8",
            Array::U16(_) => "array of u16",
            Array::I16(_) => "array of i16",
            Array::U32(_) => "array of u32",
            Array::I32(_) => "array of i32",
            Array::F32(_) => "array of f32",
            Array::Bool(_) => "array of bool",
            Array::Str(_) => "array of string",
            Array::U64(_) => "array of u64",
            Array::I64(_) => "array of i64",
            Array::F64(_) => "array of f64",
        }
    }

    /// The element type's id in the file.
    pub fn element_type_id(&self) -> u32 {
        match self {
            Array::U8(_) => 0,
            Array::I8(_) => 1,
            Array::U16(_) => 2,
            Array::I16(_) => 3,
            Array::U32(_) => 4,
            Array::I32(_) => 5,
            Array::F32(_) => 6,
            Array::Bool(_) => 7,
            Array::Str(_) => 8,
            Array::U64(_) => 10,
            Array::I64(_) => 11,
            Array::F64(_) => 12,
        }
    }

    /// All elements as wide integers, when they are integers of at most 32 bits or bools.
    pub(crate) fn small_integers(&self) -> Option<Vec<i64>> {
        fn widen<T: Copy + Into<i64>>(values: &[T]) -> Option<Vec<i64>> {
            Some(values.iter().map(|&v| v.into()).collect())
        }
        match self {
            Array::U8(v) => widen(v),
            Array::I8(v) => widen(v),
            Array::U16(v) => widen(v),
            Array::I16(v) => widen(v),
            Array::U32(v) => widen(v),
            Array::I32(v) => widen(v),
            Array::Bool(v) => widen(v),
            _ => None,
        }
    }
}

/// Strings held as one blob of bytes with offsets: two allocations, however many strings.
///
/// Elements are bytes, not text: vocabularies hold tokens that are no UTF-8.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Strings {
    bytes: Vec<u8>,
    /// End of each string in `bytes`; it starts where the one before it ends.
    ends: Vec<usize>,
}

impl Strings {
    /// No strings.
    pub fn new() -> Strings {
        Strings::default()
    }

    /// No strings, with room for `n` strings of `n_bytes` bytes in all.
    pub fn with_capacity(n: usize, n_bytes: usize) -> Strings {
        Strings { bytes: Vec::with_capacity(n_bytes), ends: Vec::with_capacity(n) }
    }

    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no strings.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The `i`-th string. Panics when there are not so many.
    pub fn get(&self, i: usize) -> &[u8] {
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.bytes[start..self.ends[i]]
    }

    /// All strings, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> + Clone {
        let mut start = 0;
        self.ends.iter().map(move |&end| {
            let string = &self.bytes[start..end];
            start = end;
            string
        })
    }

    /// Adds one string at the end.
    pub fn push(&mut self, string: impl AsRef<[u8]>) {
        self.bytes.extend_from_slice(string.as_ref());
        self.ends.push(self.bytes.len());
    }

    /// Bytes of all strings together.
    pub fn n_bytes(&self) -> usize {
        self.bytes.len()
    }
}

impl<S: AsRef<[u8]>> FromIterator<S> for Strings {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Strings {
        let mut out = Strings::new();
        for string in strings {
            out.push(string);
        }
        out
    }
}

impl fmt::Debug for Strings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(String::from_utf8_lossy)).finish()
    }
}

macro_rules! from_plain {
    ($($variant:ident($t:ty)),*) => {$(
        impl From<$t> for Value {
            fn from(value: $t) -> Value {
                Value::$variant(value)
            }
        }
        impl From<Vec<$t>> for Value {
            fn from(values: Vec<$t>) -> Value {
                Value::Array(Array::$variant(values))
            }
        }
    )*};
}
from_plain!(
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    U64(u64),
    I64(i64),
    F64(f64)
);

impl From<&str> for Value {
    fn from(value: &str) -> Value {
        Value::Str(value.to_owned())
    }
}

impl From<String> for Value {
    fn from(value: String) -> Value {
        Value::Str(value)
    }
}

impl From<Strings> for Value {
    fn from(strings: Strings) -> Value {
        Value::Array(Array::Str(strings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_keep_their_borders() {
        let strings: Strings = ["", "ab", "", "\u{e9}"].into_iter().collect();
        assert_eq!(strings.len(), 4);
        assert_eq!(strings.get(1), b"ab");
        assert_eq!(strings.get(2), b"");
        assert_eq!(strings.iter().map(<[u8]>::len).collect::<Vec<_>>(), [0, 2, 0, 2]);
    }
}
