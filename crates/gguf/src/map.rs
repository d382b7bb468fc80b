//! The bytes of a file, mapped or in memory. The crate's only unsafe code.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use memmap2::Mmap;

use crate::error::GgufError;

/// The bytes of one file, or of one tensor that no file has as it is.
pub(crate) enum Source {
    Mapped(Mmap),
    Memory(Vec<u8>),
    /// Made when first asked for.
    Made(OnceLock<Vec<u8>>, Box<dyn Fn() -> Vec<u8> + Send + Sync>),
}

/// A mapped file of any format, for a model that is put together from it. A clone is the same map.
#[derive(Clone)]
pub struct MappedFile {
    pub(crate) source: Arc<Source>,
    pub(crate) path: PathBuf,
}

impl MappedFile {
    /// Maps a regular file to read.
    ///
    /// # Errors
    /// A file that is missing, no file, or cannot be read.
    pub fn open(path: &Path) -> Result<MappedFile, GgufError> {
        Ok(MappedFile { source: Arc::new(Source::open(path)?), path: path.to_owned() })
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.source.bytes()
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Source {
    /// Maps a regular file to read.
    pub(crate) fn open(path: &Path) -> Result<Source, GgufError> {
        let refused = |source| GgufError::Open { path: path.to_owned(), source };
        // Opening a pipe would wait for a writer: ask first.
        if !fs::metadata(path).map_err(refused)?.is_file() {
            return Err(GgufError::NoFile { path: path.to_owned() });
        }
        let file = File::open(path).map_err(refused)?;
        // SAFETY: the map is read-only and private to this type. A file that another process truncates while it
        // is mapped ends the process with a bus error, as with every program that maps models; a file rewritten
        // in place changes values, and nothing reads them as more than bytes and numbers.
        let map = unsafe { Mmap::map(&file) }.map_err(refused)?;
        Ok(Source::Mapped(map))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Source::Mapped(map) => map,
            Source::Memory(bytes) => bytes,
            Source::Made(bytes, make) => bytes.get_or_init(make),
        }
    }

    /// Asks the system to read a range soon; one that does not listen is no error.
    pub(crate) fn prefetch(&self, offset: usize, len: usize) {
        #[cfg(unix)]
        if let Some(map) = self.map(len) {
            let _ = map.advise_range(memmap2::Advice::WillNeed, offset, len);
        }
        #[cfg(not(unix))]
        let _ = (offset, len);
    }

    /// Tells the system that a range will be read once, from start to end.
    pub(crate) fn advise_sequential(&self, offset: usize, len: usize) {
        #[cfg(unix)]
        if let Some(map) = self.map(len) {
            let _ = map.advise_range(memmap2::Advice::Sequential, offset, len);
        }
        #[cfg(not(unix))]
        let _ = (offset, len);
    }

    /// Takes the pages that lie wholly in a range out of this process's memory; reading them again reads the file
    /// again. Pages at the border stay: their other half may be in use.
    pub(crate) fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        {
            let page = page_bytes();
            let (start, end) = (range.start.next_multiple_of(page), range.end / page * page);
            let len = end.saturating_sub(start);
            if let Some(map) = self.map(len) {
                // SAFETY: the map is a shared, read-only view of a file and has no pages of its own, so a dropped
                // page comes back with the file's bytes: no reference ever sees other contents than the file's.
                let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, len) };
            }
        }
        #[cfg(not(unix))]
        let _ = range;
    }

    /// The map, when there is one and a range of `len` bytes is worth a word.
    #[cfg(unix)]
    fn map(&self, len: usize) -> Option<&Mmap> {
        match self {
            Source::Mapped(map) if len > 0 => Some(map),
            _ => None,
        }
    }
}

#[cfg(unix)]
fn page_bytes() -> usize {
    // SAFETY: sysconf only reads a constant of the system.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096).max(1)
}
