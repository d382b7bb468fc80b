//! Metadata: keys in file order, found by hash, read by typed getters that return errors.

use std::collections::HashMap;

use crate::value::{Array, Strings, Value};

/// Layers that a scalar may be spread over; model code has tighter bounds.
const MAX_LAYERS: usize = 1 << 16;

/// Why a key cannot be read as what the caller needs.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum KeyError {
    /// A required key that is not there.
    #[error("key `{key}` is missing, expected {expected}")]
    Missing {
        /// The key.
        key: String,
        /// The type it should have.
        expected: &'static str,
    },
    /// A value of another type.
    #[error("key `{key}` is {found}, expected {expected}")]
    Type {
        /// The key.
        key: String,
        /// The type it has.
        found: &'static str,
        /// The type it should have.
        expected: &'static str,
    },
    /// An integer that does not fit.
    #[error("key `{key}` holds {found}, which is no {expected}")]
    Range {
        /// The key.
        key: String,
        /// The value.
        found: i128,
        /// The type it should fit.
        expected: &'static str,
    },
    /// An array of another length than the model has layers.
    #[error("key `{key}` has {found} entries, expected {expected}")]
    Length {
        /// The key.
        key: String,
        /// Its entries.
        found: usize,
        /// The entries it should have.
        expected: usize,
    },
    /// More layers than any model has.
    #[error("key `{key}` is wanted for {found} layers, expected at most {MAX_LAYERS}")]
    Layers {
        /// The key.
        key: String,
        /// The layers asked for.
        found: usize,
    },
}

/// Keys and values of a file, in its order.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

macro_rules! required {
    ($($name:ident = $get:ident -> $ty:ty, $what:literal;)*) => {$(
        #[doc = concat!("As [`Metadata::", stringify!($get), "`], of a key that must be there.")]
        ///
        /// # Errors
        /// [`KeyError::Missing`], and those of the getter.
        pub fn $name(&self, key: &str) -> Result<$ty, KeyError> {
            self.$get(key)?.ok_or_else(|| KeyError::Missing { key: key.to_owned(), expected: $what })
        }
    )*};
}

fn mismatch<T>(key: &str, value: &Value, expected: &'static str) -> Result<T, KeyError> {
    Err(KeyError::Type { key: key.to_owned(), found: value.type_name(), expected })
}

fn fit<T: TryFrom<i128>>(key: &str, found: i128, expected: &'static str) -> Result<T, KeyError> {
    T::try_from(found).map_err(|_| KeyError::Range { key: key.to_owned(), found, expected })
}

impl Metadata {
    /// No keys.
    pub fn new() -> Metadata {
        Metadata::default()
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether the key is there.
    pub fn contains(&self, key: &str) -> bool {
        self.index.contains_key(key)
    }

    /// The value of a key, of whatever type.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&i| &self.entries[i].1)
    }

    /// Keys and values in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Sets a key, at the end when it is new, and returns what it held.
    pub fn insert(&mut self, key: impl Into<String>, value: impl Into<Value>) -> Option<Value> {
        let (key, value) = (key.into(), value.into());
        if let Some(&i) = self.index.get(&key) {
            return Some(std::mem::replace(&mut self.entries[i].1, value));
        }
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push((key, value));
        None
    }

    /// Reads a key by `f`, which gives `None` for a value of another type.
    fn read<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        f: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, KeyError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        f(value).map_or_else(|| mismatch(key, value, expected), |v| Ok(Some(v)))
    }

    fn integer<T: TryFrom<i128>>(&self, key: &str, expected: &'static str) -> Result<Option<T>, KeyError> {
        let found = self.read(key, expected, Value::as_integer)?;
        found.map(|v| fit(key, v, expected)).transpose()
    }

    /// An integer of any stored width whose value fits u32.
    ///
    /// # Errors
    /// A value of another kind, or out of range.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, KeyError> {
        self.integer(key, "u32")
    }

    /// An integer of any stored width whose value fits u64.
    ///
    /// # Errors
    /// A value of another kind, or out of range.
    pub fn u64(&self, key: &str) -> Result<Option<u64>, KeyError> {
        self.integer(key, "u64")
    }

    /// An integer of any stored width whose value fits i32.
    ///
    /// # Errors
    /// A value of another kind, or out of range.
    pub fn i32(&self, key: &str) -> Result<Option<i32>, KeyError> {
        self.integer(key, "i32")
    }

    /// A value stored as f32.
    ///
    /// # Errors
    /// A value of another type.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, KeyError> {
        self.read(key, "f32", |v| if let Value::F32(v) = v { Some(*v) } else { None })
    }

    /// A value stored as bool.
    ///
    /// # Errors
    /// A value of another type.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, KeyError> {
        self.read(key, "bool", |v| if let Value::Bool(v) = v { Some(*v) } else { None })
    }

    /// A string.
    ///
    /// # Errors
    /// A value of another type.
    pub fn str(&self, key: &str) -> Result<Option<&str>, KeyError> {
        self.read(key, "string", |v| if let Value::Str(v) = v { Some(v.as_str()) } else { None })
    }

    /// An array of strings.
    ///
    /// # Errors
    /// A value of another type.
    pub fn strings(&self, key: &str) -> Result<Option<&Strings>, KeyError> {
        self.read(key, "array of string", |v| match v {
            Value::Array(Array::Str(v)) => Some(v),
            _ => None,
        })
    }

    /// An array of f32 or i32, as f32.
    ///
    /// # Errors
    /// A value of another type.
    pub fn f32s(&self, key: &str) -> Result<Option<Vec<f32>>, KeyError> {
        self.read(key, "array of f32", |v| match v {
            Value::Array(Array::F32(v)) => Some(v.clone()),
            Value::Array(Array::I32(v)) => Some(v.iter().map(|v| *v as f32).collect()),
            _ => None,
        })
    }

    /// An array of bool.
    ///
    /// # Errors
    /// A value of another type.
    pub fn bools(&self, key: &str) -> Result<Option<&[bool]>, KeyError> {
        self.read(key, "array of bool", |v| match v {
            Value::Array(Array::Bool(v)) => Some(v.as_slice()),
            _ => None,
        })
    }

    fn small<T: TryFrom<i128>>(&self, key: &str, expected: &'static str) -> Result<Option<Vec<T>>, KeyError> {
        let values = self.read(key, expected, |v| match v {
            Value::Array(v) => v.small_integers(),
            _ => None,
        })?;
        let fit_all = |v: Vec<i64>| v.into_iter().map(|v| fit(key, v.into(), expected)).collect();
        values.map(fit_all).transpose()
    }

    /// An array of integers of at most 32 bits or of bools, as i32.
    ///
    /// # Errors
    /// A value of another type, or an element out of range.
    pub fn i32s(&self, key: &str) -> Result<Option<Vec<i32>>, KeyError> {
        self.small(key, "array of i32")
    }

    /// An array of integers of at most 32 bits or of bools, as u32.
    ///
    /// # Errors
    /// A value of another type, or an element out of range.
    pub fn u32s(&self, key: &str) -> Result<Option<Vec<u32>>, KeyError> {
        self.small(key, "array of u32")
    }

    /// One u32 for each of `n` layers: a scalar counts for all, an array must have `n` entries.
    ///
    /// # Errors
    /// A value of another type, an element out of range, another number of entries.
    pub fn u32_per_layer(&self, key: &str, n: usize) -> Result<Option<Vec<u32>>, KeyError> {
        match self.get(key) {
            Some(Value::Array(_)) => per_layer(key, n, self.u32s(key)?.unwrap_or_default()).map(Some),
            _ => self.u32(key)?.map(|v| fill(key, n, v)).transpose(),
        }
    }

    /// One f32 for each of `n` layers: a scalar counts for all, an array must have `n` entries.
    ///
    /// # Errors
    /// A value of another type, another number of entries.
    pub fn f32_per_layer(&self, key: &str, n: usize) -> Result<Option<Vec<f32>>, KeyError> {
        match self.get(key) {
            Some(Value::Array(_)) => per_layer(key, n, self.f32s(key)?.unwrap_or_default()).map(Some),
            _ => self.f32(key)?.map(|v| fill(key, n, v)).transpose(),
        }
    }

    required! {
        require_u32 = u32 -> u32, "u32";
        require_u64 = u64 -> u64, "u64";
        require_i32 = i32 -> i32, "i32";
        require_f32 = f32 -> f32, "f32";
        require_bool = bool -> bool, "bool";
        require_str = str -> &str, "string";
        require_strings = strings -> &Strings, "array of string";
        require_f32s = f32s -> Vec<f32>, "array of f32";
        require_i32s = i32s -> Vec<i32>, "array of i32";
        require_u32s = u32s -> Vec<u32>, "array of u32";
        require_bools = bools -> &[bool], "array of bool";
    }
}

fn per_layer<T>(key: &str, n: usize, values: Vec<T>) -> Result<Vec<T>, KeyError> {
    match values.len() == n {
        true => Ok(values),
        false => Err(KeyError::Length { key: key.to_owned(), found: values.len(), expected: n }),
    }
}

fn fill<T: Clone>(key: &str, n: usize, value: T) -> Result<Vec<T>, KeyError> {
    match n <= MAX_LAYERS {
        true => Ok(vec![value; n]),
        false => Err(KeyError::Layers { key: key.to_owned(), found: n }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Metadata {
        let mut m = Metadata::new();
        m.insert("u16", 7u16);
        m.insert("negative", -1i32);
        m.insert("half", 0.5f32);
        m.insert("name", "x");
        m.insert("layers", vec![1i32, 2, 3]);
        m.insert("scores", vec![1u8, 2]);
        m
    }

    #[track_caller]
    fn check<T: std::fmt::Debug>(found: Result<T, KeyError>, message: &str) {
        assert_eq!(found.unwrap_err().to_string(), message);
    }

    #[test]
    fn integers_of_any_width_are_read_when_they_fit() {
        let m = sample();
        assert_eq!(m.u32("u16"), Ok(Some(7)));
        assert_eq!(m.i32("negative"), Ok(Some(-1)));
        assert_eq!(m.u32("absent"), Ok(None));
        check(m.u32("negative"), "key `negative` holds -1, which is no u32");
        check(m.u32("half"), "key `half` is f32, expected u32");
        check(m.require_u32("absent"), "key `absent` is missing, expected u32");
    }

    #[test]
    fn other_types_are_named() {
        let m = sample();
        check(m.f32("u16"), "key `u16` is u16, expected f32");
        check(m.f32s("scores"), "key `scores` is array of u8, expected array of f32");
        check(m.strings("name"), "key `name` is string, expected array of string");
        check(m.u32("layers"), "key `layers` is array of i32, expected u32");
        assert_eq!(m.f32s("layers"), Ok(Some(vec![1.0, 2.0, 3.0])));
        assert_eq!(m.i32s("scores"), Ok(Some(vec![1, 2])));
    }

    #[test]
    fn layers_are_filled_or_counted() {
        let m = sample();
        assert_eq!(m.u32_per_layer("u16", 2), Ok(Some(vec![7, 7])));
        assert_eq!(m.u32_per_layer("layers", 3), Ok(Some(vec![1, 2, 3])));
        assert_eq!(m.f32_per_layer("half", 1), Ok(Some(vec![0.5])));
        check(m.u32_per_layer("layers", 4), "key `layers` has 3 entries, expected 4");
        check(
            m.u32_per_layer("u16", 1 << 31),
            "key `u16` is wanted for 2147483648 layers, expected at most 65536",
        );
    }

    #[test]
    fn overrides_keep_their_place() {
        let mut m = sample();
        assert_eq!(m.insert("u16", 9u32), Some(Value::U16(7)));
        assert_eq!(m.iter().next(), Some(("u16", &Value::U32(9))));
    }
}
