//! An opened model: one file or all its shards.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::assemble::{Assembled, TensorData};
use crate::error::{GgufError, Problem};
use crate::header::{Header, Limits, TensorInfo, parse_header};
use crate::map::{MappedFile, Source};
use crate::metadata::Metadata;
use crate::write::{WriteError, Writer};

/// An opened model: the metadata of the first shard and the tensors of all. Every tensor's data lies within its
/// file, so that reading it cannot fail.
pub struct Gguf {
    /// The bytes of each shard; those made of other bytes follow.
    shards: Vec<Arc<Source>>,
    /// The path of each shard, or the name of a model in memory.
    paths: Vec<PathBuf>,
    n_shards: usize,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
    header_hash: u64,
}

impl Gguf {
    /// Maps a model. Of a split model any shard may be named; the others are found by their names, which end in
    /// `-00001-of-00003.gguf`.
    ///
    /// # Errors
    /// A file that cannot be read, breaks the format, or does not fit the other shards.
    pub fn open(path: &Path) -> Result<Gguf, GgufError> {
        Gguf::open_with(path, &Limits::default())
    }

    /// As [`Gguf::open`], with other limits.
    ///
    /// # Errors
    /// As [`Gguf::open`].
    pub fn open_with(path: &Path, limits: &Limits) -> Result<Gguf, GgufError> {
        let source = Source::open(path)?;
        let header = parse(path, &source, limits)?;
        let count = shard_count(path, &header)?;
        if count == 1 {
            let mut gguf = Gguf::empty();
            gguf.add(path, source, header)?;
            return Ok(gguf);
        }
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let no = in_file(path, header.metadata.u64("split.no").map_err(Problem::from))?.unwrap_or(0);
        let prefix = shard_prefix(name, count).ok_or_else(|| {
            let no = no.saturating_add(1).min(u32::MAX.into()) as u32;
            format_error(path, Problem::ShardName { count, no })
        })?;
        Gguf::open_shards(path.with_file_name(prefix), count, limits)
    }

    fn open_shards(prefix: PathBuf, count: u32, limits: &Limits) -> Result<Gguf, GgufError> {
        let path_of = |i: u32| {
            let mut name = prefix.clone().into_os_string();
            name.push(format!("-{:05}-of-{count:05}.gguf", i + 1));
            PathBuf::from(name)
        };
        let first = path_of(0);
        let mut gguf = Gguf::empty();
        for i in 0..count {
            let path = path_of(i);
            let source = Source::open(&path).map_err(|e| missing_shard(e, i + 1, count))?;
            let header = parse(&path, &source, limits)?;
            in_file(&path, expect_key(&header.metadata, "split.no", i.into()))?;
            in_file(&path, expect_key(&header.metadata, "split.count", count.into()))?;
            gguf.add(&path, source, header)?;
        }
        let total = gguf.tensors.len() as u64;
        if gguf.metadata.contains("split.tensors.count") {
            in_file(&first, expect_key(&gguf.metadata, "split.tensors.count", total))?;
        }
        Ok(gguf)
    }

    /// A model whose only file is in memory; `name` is what errors call it.
    ///
    /// # Errors
    /// Bytes that break the format, or are one shard of several.
    pub fn from_bytes(bytes: Vec<u8>, name: impl Into<PathBuf>) -> Result<Gguf, GgufError> {
        let path = name.into();
        let source = Source::Memory(bytes);
        let header = parse(&path, &source, &Limits::default())?;
        match shard_count(&path, &header)? {
            1 => {}
            count => return Err(format_error(&path, shard("split.count", count.into(), 1))),
        }
        let mut gguf = Gguf::empty();
        gguf.add(&path, source, header)?;
        Ok(gguf)
    }

    fn empty() -> Gguf {
        Gguf {
            shards: Vec::new(),
            paths: Vec::new(),
            n_shards: 0,
            metadata: Metadata::new(),
            tensors: Vec::new(),
            index: HashMap::new(),
            header_hash: HASH_SEED,
        }
    }

    fn add(&mut self, path: &Path, source: Source, header: Header) -> Result<(), GgufError> {
        let shard = self.shards.len();
        self.index.reserve(header.tensors.len());
        for mut tensor in header.tensors {
            tensor.shard = shard;
            if self.index.insert(tensor.name.clone(), self.tensors.len()).is_some() {
                let problem = Problem::Duplicate { what: "tensor", name: tensor.name };
                return Err(format_error(path, problem));
            }
            self.tensors.push(tensor);
        }
        self.header_hash = hash(self.header_hash, &source.bytes()[..header.len as usize]);
        if shard == 0 {
            self.metadata = header.metadata;
        }
        self.shards.push(Arc::new(source));
        self.paths.push(path.to_owned());
        self.n_shards += 1;
        Ok(())
    }

    /// A model put together from files of another format: keys, and tensors whose data lies in one of `files` or is
    /// made when first asked for. It is one shard, and its hashes are those of the file that [`Writer`] makes of it.
    ///
    /// # Errors
    /// A name or a shape that a file cannot have, and data beyond the end of its file.
    ///
    /// # Panics
    /// Without a file, and where a tensor names one that is not there.
    pub fn assemble(
        metadata: Metadata,
        files: Vec<MappedFile>,
        tensors: Vec<Assembled>,
    ) -> Result<Gguf, WriteError> {
        assert!(!files.is_empty(), "a model has a file");
        let mut writer = Writer::new();
        for (key, value) in metadata.iter() {
            writer.metadata_mut().insert(key, value.clone());
        }
        let mut gguf = Gguf { metadata, n_shards: 1, ..Gguf::empty() };
        (gguf.shards, gguf.paths) = files.into_iter().map(|f| (f.source, f.path)).unzip();
        for tensor in tensors {
            let mut info = writer.add_tensor_later(&tensor.name, &tensor.shape, tensor.dtype)?;
            (info.shard, info.offset) = match tensor.data {
                TensorData::InFile { file, offset } => {
                    check_range(&info, offset, gguf.shards[file].bytes().len())?;
                    (file, offset)
                }
                TensorData::Made(make) => {
                    gguf.shards.push(Arc::new(Source::Made(OnceLock::new(), make)));
                    (gguf.shards.len() - 1, 0)
                }
            };
            gguf.index.insert(tensor.name, gguf.tensors.len());
            gguf.tensors.push(info);
        }
        gguf.header_hash = hash(HASH_SEED, &writer.header());
        Ok(gguf)
    }

    /// The first shard's metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The metadata, to override keys.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// All tensors, in the order of shards and of data within them.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of a name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&i| &self.tensors[i])
    }

    /// The bytes of one of this model's tensors. Mapped data starts at a multiple of the file's alignment; data of a
    /// model in memory may start anywhere.
    pub fn data(&self, tensor: &TensorInfo) -> &[u8] {
        let (offset, len) = range(tensor);
        let bytes = self.shards[tensor.shard].bytes();
        let made = bytes.len() - offset;
        assert!(made >= len, "`{}` was made with {made} bytes, of {len}", tensor.name);
        &bytes[offset..offset + len]
    }

    /// Brings a part of a tensor's data (`bytes`, counted from its start) into the system's cache, unless it is there:
    /// for a thread that goes ahead of one that looks at the data. `scratch` is what it reads through.
    pub fn read_ahead(&self, tensor: &TensorInfo, bytes: Range<usize>, scratch: &mut [u8]) {
        let (offset, len) = range(tensor);
        let (start, end) = (bytes.start.min(len), bytes.end.min(len));
        self.shards[tensor.shard].read_ahead(offset + start..offset + end, scratch);
    }

    /// Tells the system that a tensor's data will be read once, from start to end.
    pub fn advise_sequential(&self, tensor: &TensorInfo) {
        let (offset, len) = range(tensor);
        self.shards[tensor.shard].advise_sequential(offset, len);
    }

    /// Takes the whole pages within `bytes` (counted from the start of a tensor's data) out of this process's memory,
    /// once they have been copied elsewhere; they may be read again, from the file.
    pub fn release(&self, tensor: &TensorInfo, bytes: Range<usize>) {
        let (offset, len) = range(tensor);
        let (start, end) = (bytes.start.min(len), bytes.end.min(len));
        self.shards[tensor.shard].release(offset + start..offset + end);
    }

    /// Checks that a tensor's floats and scales are finite. Reads all its data.
    ///
    /// # Errors
    /// [`Problem::NotFinite`] names the first block that is not.
    pub fn check_data(&self, tensor: &TensorInfo) -> Result<(), GgufError> {
        self.check_part(tensor, 0..self.data(tensor).len())
    }

    /// [`Gguf::check_data`] of the whole blocks in `bytes`, counted from the start of the tensor's data.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// When the range is no whole blocks of the tensor.
    pub fn check_part(&self, tensor: &TensorInfo, bytes: Range<usize>) -> Result<(), GgufError> {
        let block_bytes = tensor.dtype.block_bytes();
        assert!(bytes.start.is_multiple_of(block_bytes), "byte {} begins a block", bytes.start);
        let before = bytes.start / block_bytes;
        let Some(block) = firth_quant::first_not_finite(tensor.dtype, &self.data(tensor)[bytes]) else {
            return Ok(());
        };
        let block = before + block;
        let offset = tensor.offset + (block * tensor.dtype.block_bytes()) as u64;
        let problem = Problem::NotFinite { tensor: tensor.name.clone(), block: block as u64, offset };
        let path = self.paths.get(tensor.shard).unwrap_or(&self.paths[0]);
        Err(format_error(path, problem))
    }

    /// Bytes of all files.
    pub fn file_bytes(&self) -> u64 {
        self.shards[..self.paths.len()].iter().map(|s| s.bytes().len() as u64).sum()
    }

    /// The path of the file, or of the first shard; none for a model in memory.
    pub fn path(&self) -> Option<&Path> {
        matches!(*self.shards[0], Source::Mapped(..)).then_some(&self.paths[0])
    }

    /// The paths of all files; what a model in memory is called.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Number of files of a split model; 1 for one that was put together.
    pub fn n_shards(&self) -> usize {
        self.n_shards
    }

    /// A hash of what the files say before their data: metadata as stored, and the directories of tensors. The same
    /// on every machine. Overrides do not change it.
    pub fn header_hash(&self) -> u64 {
        self.header_hash
    }

    /// A hash that also tells apart models of equal headers: the header's, and 64 bytes from the middle of each
    /// tensor.
    pub fn content_hash(&self) -> u64 {
        self.tensors.iter().fold(self.header_hash, |h, tensor| {
            let data = self.data(tensor);
            let start = data.len().saturating_sub(64) / 2;
            hash(h, &data[start..data.len().min(start + 64)])
        })
    }
}

impl std::fmt::Debug for Gguf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (keys, tensors) = (self.metadata.len(), self.tensors.len());
        write!(f, "Gguf({}, {keys} keys, {tensors} tensors)", self.paths[0].display())
    }
}

/// Offset and length, which fit since the data lies inside a mapped file.
fn range(tensor: &TensorInfo) -> (usize, usize) {
    (tensor.offset as usize, tensor.len as usize)
}

/// Whether a tensor lies inside the file that is to have it.
fn check_range(tensor: &TensorInfo, offset: u64, file_len: usize) -> Result<(), WriteError> {
    let end = offset.checked_add(tensor.len).filter(|end| *end <= file_len as u64);
    end.map(|_| ()).ok_or_else(|| WriteError::Len {
        tensor: tensor.name.clone(),
        found: (file_len as u64).saturating_sub(offset),
        expected: tensor.len,
    })
}

fn format_error(path: &Path, problem: Problem) -> GgufError {
    GgufError::Format { file: path.display().to_string(), problem }
}

fn in_file<T>(path: &Path, result: Result<T, Problem>) -> Result<T, GgufError> {
    result.map_err(|problem| format_error(path, problem))
}

fn parse(path: &Path, source: &Source, limits: &Limits) -> Result<Header, GgufError> {
    in_file(path, parse_header(source.bytes(), limits))
}

fn shard(key: &'static str, found: u64, expected: u64) -> Problem {
    Problem::Shard { key, found, expected }
}

/// A file that is not there, as the shard that it is.
fn missing_shard(e: GgufError, no: u32, count: u32) -> GgufError {
    match e {
        GgufError::Open { path, source } if source.kind() == std::io::ErrorKind::NotFound => {
            GgufError::MissingShard { path, no, count }
        }
        e => e,
    }
}

/// The number of files of the model that a file belongs to.
fn shard_count(path: &Path, header: &Header) -> Result<u32, GgufError> {
    let count = in_file(path, header.metadata.u32("split.count").map_err(Problem::from))?;
    match count.unwrap_or(1) {
        0 | 1 => Ok(1),
        // The number has five digits in a file's name.
        count @ 2..=99_999 => Ok(count),
        count => Err(format_error(path, shard("split.count", count.into(), 99_999))),
    }
}

fn expect_key(metadata: &Metadata, key: &'static str, expected: u64) -> Result<(), Problem> {
    match metadata.require_u64(key)? {
        found if found == expected => Ok(()),
        found => Err(shard(key, found, expected)),
    }
}

/// What precedes `-00001-of-00003.gguf` in the name of one of `count` shards.
fn shard_prefix(name: &str, count: u32) -> Option<&str> {
    let rest = name.strip_suffix(&format!("-of-{count:05}.gguf"))?;
    let (prefix, no) = rest.rsplit_once('-')?;
    (no.len() == 5 && no.bytes().all(|b| b.is_ascii_digit())).then_some(prefix)
}

const HASH_SEED: u64 = 0xcbf2_9ce4_8422_2325;

/// Mixes bytes into a hash, eight at a time; the length keeps apart what padding would join.
fn hash(seed: u64, bytes: &[u8]) -> u64 {
    let mix = |h: u64, word: u64| {
        let h = (h ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        h ^ h >> 29
    };
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let h = words.iter().fold(mix(seed, bytes.len() as u64), |h, w| mix(h, u64::from_le_bytes(*w)));
    mix(h, u64::from_le_bytes(last))
}
