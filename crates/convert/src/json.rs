//! Files of JSON, read field by field, with errors that say where.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::ConvertError;

/// Larger files of keys are refused before they are read; the largest tokenisers have 40 MB.
const MAX_BYTES: u64 = 256 << 20;
/// Of a value in an error.
const SHOWN: usize = 60;

/// An object of a file, or of another object in it.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    path: &'a Path,
    within: &'a str,
    value: &'a Value,
}

/// A file of JSON.
pub(crate) struct JsonFile {
    pub(crate) path: PathBuf,
    pub(crate) value: Value,
}

impl JsonFile {
    /// Reads `name` in a folder, when it is there.
    pub(crate) fn open(folder: &Path, name: &str) -> Result<Option<JsonFile>, ConvertError> {
        let Some((path, text)) = read_text(folder, name)? else { return Ok(None) };
        match serde_json::from_str(&text) {
            Ok(value) => Ok(Some(JsonFile { path, value })),
            Err(e) => Err(ConvertError::Json { path, why: e.to_string() }),
        }
    }

    /// Reads `name` in a folder, which must have it.
    pub(crate) fn require(folder: &Path, name: &'static str) -> Result<JsonFile, ConvertError> {
        JsonFile::open(folder, name)?.ok_or_else(|| ConvertError::Missing { folder: folder.to_owned(), name })
    }

    /// The whole file as an object.
    pub(crate) fn fields(&self) -> Fields<'_> {
        Fields { path: &self.path, within: "", value: &self.value }
    }
}

/// The text of `name` in a folder, when it is there.
pub(crate) fn read_text(folder: &Path, name: &str) -> Result<Option<(PathBuf, String)>, ConvertError> {
    let path = folder.join(name);
    let read = |source| ConvertError::Read { path: path.clone(), source };
    // Opening a pipe would wait for a writer: ask first.
    match std::fs::metadata(&path) {
        Ok(m) if m.is_file() && m.len() <= MAX_BYTES => {}
        Ok(m) if m.is_file() => return Err(ConvertError::TooLarge { path, found: m.len(), max: MAX_BYTES }),
        Ok(_) => return Ok(None),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(read(e)),
    }
    let mut text = String::new();
    File::open(&path).map_err(read)?.take(MAX_BYTES).read_to_string(&mut text).map_err(read)?;
    Ok(Some((path, text)))
}

impl<'a> Fields<'a> {
    /// The file.
    pub(crate) fn path(&self) -> &'a Path {
        self.path
    }

    /// The value of a field; null is as absent.
    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.value.get(name).filter(|v| !v.is_null())
    }

    /// An error about a field.
    pub(crate) fn wrong(&self, name: &str, expected: impl Into<String>) -> ConvertError {
        let found = match self.get(name) {
            None => "missing".to_owned(),
            Some(value) => shown(value),
        };
        let dot = if self.within.is_empty() { "" } else { "." };
        ConvertError::field(self.path, format!("{}{dot}{name}", self.within), found, expected)
    }

    fn typed<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ConvertError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.wrong(name, expected))
    }

    fn required<T>(&self, name: &str, found: Option<T>, expected: &str) -> Result<T, ConvertError> {
        found.ok_or_else(|| self.wrong(name, expected))
    }

    /// A count below 2^32.
    pub(crate) fn u32(&self, name: &str) -> Result<Option<u32>, ConvertError> {
        self.typed(name, "a whole number below 2^32", u32_of)
    }

    /// A count that must be there.
    pub(crate) fn require_u32(&self, name: &str) -> Result<u32, ConvertError> {
        let found = self.u32(name)?;
        self.required(name, found, "a whole number below 2^32")
    }

    /// A finite number.
    pub(crate) fn f32(&self, name: &str) -> Result<Option<f32>, ConvertError> {
        self.typed(name, "a number", |v| v.as_f64().map(|v| v as f32).filter(|v| v.is_finite()))
    }

    /// A finite number that must be there.
    pub(crate) fn require_f32(&self, name: &str) -> Result<f32, ConvertError> {
        let found = self.f32(name)?;
        self.required(name, found, "a number")
    }

    /// A flag.
    pub(crate) fn bool(&self, name: &str) -> Result<Option<bool>, ConvertError> {
        self.typed(name, "true or false", Value::as_bool)
    }

    /// A string.
    pub(crate) fn str(&self, name: &str) -> Result<Option<&'a str>, ConvertError> {
        self.typed(name, "a string", Value::as_str)
    }

    /// A string that must be there.
    pub(crate) fn require_str(&self, name: &str) -> Result<&'a str, ConvertError> {
        let found = self.str(name)?;
        self.required(name, found, "a string")
    }

    /// A list.
    pub(crate) fn list(&self, name: &str) -> Result<Option<&'a [Value]>, ConvertError> {
        self.typed(name, "a list", |v| v.as_array().map(Vec::as_slice))
    }

    /// A list of numbers.
    pub(crate) fn f32s(&self, name: &str) -> Result<Option<Vec<f32>>, ConvertError> {
        let number = |v: &Value| v.as_f64().map(|v| v as f32).filter(|v| v.is_finite());
        self.typed(name, "a list of numbers", |v| v.as_array()?.iter().map(number).collect())
    }

    /// A list of counts.
    pub(crate) fn u32s(&self, name: &str) -> Result<Option<Vec<u32>>, ConvertError> {
        self.typed(name, "a list of whole numbers", |v| v.as_array()?.iter().map(u32_of).collect())
    }

    /// A list of strings.
    pub(crate) fn strs(&self, name: &str) -> Result<Option<Vec<&'a str>>, ConvertError> {
        self.typed(name, "a list of strings", |v| v.as_array()?.iter().map(Value::as_str).collect())
    }

    /// An object in this one.
    pub(crate) fn object(&self, name: &'a str) -> Result<Option<Fields<'a>>, ConvertError> {
        let value = self.typed(name, "an object", |v| v.is_object().then_some(v))?;
        Ok(value.map(|value| Fields { path: self.path, within: name, value }))
    }

    /// An entry of a list that errors call `name`.
    pub(crate) fn entry(&self, name: &'a str, value: &'a Value) -> Fields<'a> {
        Fields { path: self.path, within: name, value }
    }

    /// The value itself.
    pub(crate) fn value(&self) -> &'a Value {
        self.value
    }
}

fn u32_of(v: &Value) -> Option<u32> {
    v.as_u64().and_then(|v| u32::try_from(v).ok())
}

/// A value as an error shows it.
pub(crate) fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        None => text,
        Some((at, _)) => format!("{}…", &text[..at]),
    }
}
