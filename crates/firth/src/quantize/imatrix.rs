//! Importance matrices: for each matrix the mean square of what it is multiplied with, column by column.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use firth_gguf::{Gguf, GgufError, KeyError, Metadata, Value};
use firth_quant::{Dtype, decode};

/// Why a matrix cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ImportanceError {
    /// No GGUF file.
    #[error(transparent)]
    File(#[from] GgufError),
    /// A key is missing or wrong.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Entries that do not belong together.
    #[error("entry `{name}` {why}")]
    Entry {
        /// The matrix.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// What each column of the matrices of a model is worth.
#[derive(Clone, Debug, Default)]
pub struct Importance {
    entries: HashMap<String, Vec<f32>>,
    path: PathBuf,
    dataset: Option<String>,
    chunks: u32,
}

impl Importance {
    /// Reads a GGUF file of tensors `NAME.in_sum2` (sums of squares, columns by experts) and `NAME.counts` (for each
    /// expert how many rows were summed). An expert that saw no row counts as 1 throughout.
    ///
    /// # Errors
    /// A file that cannot be read, lacks the keys of such a file, or holds values that are not finite or below 0.
    pub fn open(path: &Path) -> Result<Importance, ImportanceError> {
        Importance::from_file(&Gguf::open(path)?, path.to_owned())
    }

    fn from_file(file: &Gguf, path: PathBuf) -> Result<Importance, ImportanceError> {
        let m = file.metadata();
        let datasets = m.require_strings("imatrix.datasets")?;
        m.require_u32("imatrix.chunk_size")?;
        let chunks = m.require_u32("imatrix.chunk_count")?;
        let mut entries = HashMap::new();
        for tensor in file.tensors() {
            let Some(name) = tensor.name.strip_suffix(".in_sum2") else { continue };
            let wrong = |why| ImportanceError::Entry { name: name.to_owned(), why };
            let counts = file.tensor(&format!("{name}.counts")).ok_or(wrong("has no counts"))?;
            let float = tensor.dtype == Dtype::F32 && counts.dtype == Dtype::F32;
            if !float || counts.len == 0 || !tensor.len.is_multiple_of(counts.len) || tensor.len == 0 {
                return Err(wrong("expects f32 sums in a whole number for each count"));
            }
            let (mut values, counts) = (floats(file, &tensor.name), floats(file, &counts.name));
            let columns = values.len() / counts.len();
            for (values, count) in values.chunks_exact_mut(columns).zip(&counts) {
                values.iter_mut().for_each(|v| *v = if *count > 0.0 { *v / count } else { 1.0 });
            }
            if !values.iter().all(|v| v.is_finite() && *v >= 0.0) {
                return Err(wrong("has values that are not finite or below 0"));
            }
            entries.insert(name.to_owned(), values);
        }
        let dataset = datasets.iter().next().map(|d| String::from_utf8_lossy(d).into_owned());
        Ok(Importance { entries, path, dataset, chunks })
    }

    /// Keeps the entries that `keep` wants, by name.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.entries.retain(|name, _| keep(name));
    }

    /// The number of matrices.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The columns of a matrix, expert after expert.
    pub(super) fn get(&self, name: &str) -> Option<&[f32]> {
        self.entries.get(name).map(Vec::as_slice)
    }

    /// Tells matrices of other values apart.
    pub(super) fn fingerprint(&self) -> u64 {
        let one = |(name, values): (&String, &Vec<f32>)| {
            let mut h = DefaultHasher::new();
            name.hash(&mut h);
            values.iter().for_each(|v| v.to_bits().hash(&mut h));
            h.finish()
        };
        // The order of a map is nobody's.
        self.entries.iter().map(one).fold(0, u64::wrapping_add)
    }

    /// Says in a quantised file what it was made with.
    pub(super) fn describe(&self, m: &mut Metadata) {
        let file: String = self.path.display().to_string().chars().take(127).collect();
        m.insert("quantize.imatrix.file", Value::Str(file));
        if let Some(dataset) = &self.dataset {
            m.insert("quantize.imatrix.dataset", Value::Str(dataset.clone()));
        }
        m.insert("quantize.imatrix.entries_count", Value::U32(self.entries.len() as u32));
        if self.chunks > 0 {
            m.insert("quantize.imatrix.chunks_count", Value::U32(self.chunks));
        }
    }
}

/// The values of a tensor of f32.
fn floats(file: &Gguf, name: &str) -> Vec<f32> {
    let tensor = file.tensor(name).expect("looked up before");
    let mut values = vec![0.0; tensor.n_elements() as usize];
    decode(Dtype::F32, file.data(tensor), &mut values);
    values
}
