//! The tensors of a checkpoint: one safetensors file, or the shards that an index names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use firth_gguf::MappedFile;
use firth_quant::Dtype;
use safetensors::SafeTensors;

use crate::error::ConvertError;
use crate::json::{JsonFile, shown};

/// The name of a checkpoint of one file.
const SINGLE: &str = "model.safetensors";
/// The name of the list of shards.
const INDEX: &str = "model.safetensors.index.json";

/// A tensor of a checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    /// Which of the files.
    pub(crate) file: usize,
    /// Bytes of the file before it.
    pub(crate) offset: u64,
    /// Its bytes.
    pub(crate) len: u64,
    pub(crate) dtype: Dtype,
    /// Its axes as the checkpoint has them, slowest first.
    pub(crate) shape: Vec<u64>,
}

impl Tensor {
    /// Bytes of an element.
    pub(crate) fn element(&self) -> usize {
        self.dtype.block_bytes()
    }
}

/// The tensors of a checkpoint by name, and their files.
pub(crate) struct Checkpoint {
    pub(crate) files: Vec<MappedFile>,
    pub(crate) tensors: BTreeMap<String, Tensor>,
}

impl Checkpoint {
    /// Maps the files and reads their directories; no tensor is touched.
    pub(crate) fn open(folder: &Path) -> Result<Checkpoint, ConvertError> {
        let mut found = Checkpoint { files: Vec::new(), tensors: BTreeMap::new() };
        for path in files(folder)? {
            found.add(&path)?;
        }
        Ok(found)
    }

    fn add(&mut self, path: &Path) -> Result<(), ConvertError> {
        let file = MappedFile::open(path)?;
        let refused = |why: String| ConvertError::Safetensors { path: path.to_owned(), why };
        let bytes = file.bytes();
        let (header, metadata) = SafeTensors::read_metadata(bytes).map_err(|e| refused(e.to_string()))?;
        // What precedes the header is its length, in eight bytes.
        let data = header as u64 + 8;
        if metadata.data_len() as u64 + data != bytes.len() as u64 {
            let expected = metadata.data_len() as u64 + data;
            return Err(refused(format!("it has {} bytes, its header says {expected}", bytes.len())));
        }
        for (name, info) in metadata.tensors() {
            let dtype = dtype(info.dtype);
            let (start, end) = info.data_offsets;
            let tensor = Tensor {
                name: name.clone(),
                file: self.files.len(),
                offset: data + start as u64,
                len: (end - start) as u64,
                dtype: dtype.unwrap_or(Dtype::F32),
                shape: info.shape.iter().map(|n| *n as u64).collect(),
            };
            if dtype.is_none() {
                let found = format!("is {:?}", info.dtype);
                return Err(self.refused(&tensor, path, found, "F32, F16 or BF16"));
            }
            if let Some(first) = self.tensors.get(&name) {
                let found = format!("is in {} too", self.files[first.file].path().display());
                return Err(self.refused(&tensor, path, found, "one of a name"));
            }
            self.tensors.insert(name, tensor);
        }
        self.files.push(file);
        Ok(())
    }

    fn refused(&self, tensor: &Tensor, path: &Path, found: String, expected: &str) -> ConvertError {
        let (path, tensor, expected) = (path.to_owned(), tensor.name.clone(), expected.to_owned());
        ConvertError::Tensor { path, tensor, found, expected }
    }

    /// An error about a tensor of this checkpoint.
    pub(crate) fn wrong(
        &self,
        tensor: &Tensor,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> ConvertError {
        let path = self.files[tensor.file].path().to_owned();
        let (found, expected) = (found.into(), expected.into());
        ConvertError::Tensor { path, tensor: tensor.name.clone(), found, expected }
    }
}

/// The types that are taken as they are. Whole numbers are indices of old checkpoints, which nobody asks for.
fn dtype(found: safetensors::Dtype) -> Option<Dtype> {
    match found {
        safetensors::Dtype::F32 => Some(Dtype::F32),
        safetensors::Dtype::F16 => Some(Dtype::F16),
        safetensors::Dtype::BF16 => Some(Dtype::BF16),
        safetensors::Dtype::I32 => Some(Dtype::I32),
        safetensors::Dtype::I64 => Some(Dtype::I64),
        _ => None,
    }
}

/// The one file, or those that the index names, in order of name.
fn files(folder: &Path) -> Result<Vec<PathBuf>, ConvertError> {
    let single = folder.join(SINGLE);
    if single.is_file() {
        return Ok(vec![single]);
    }
    let Some(index) = JsonFile::open(folder, INDEX)? else {
        return Err(ConvertError::Missing { folder: folder.to_owned(), name: SINGLE });
    };
    let fields = index.fields();
    let Some(map) = fields.object("weight_map")? else {
        return Err(fields.wrong("weight_map", "an object of tensor and file names"));
    };
    let mut names = BTreeSet::new();
    for (tensor, file) in map.value().as_object().into_iter().flatten() {
        let name = file.as_str().filter(|name| is_plain_name(name)).ok_or_else(|| {
            let field = format!("weight_map.{tensor}");
            ConvertError::field(&index.path, field, shown(file), "the name of a file in the same folder")
        })?;
        names.insert(name);
    }
    if names.is_empty() {
        return Err(fields.wrong("weight_map", "at least one tensor"));
    }
    Ok(names.into_iter().map(|name| folder.join(name)).collect())
}

/// Whether a name leads to no other folder.
fn is_plain_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None))
}
