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
    Mapped(Mmap, File),
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
        Ok(Source::Mapped(map, file))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Source::Mapped(map, _) => map,
            Source::Memory(bytes) => bytes,
            Source::Made(bytes, make) => bytes.get_or_init(make),
        }
    }

    /// Brings a range from the disk into the system's cache, `scratch` by `scratch`, unless it is there. A failure is
    /// left to whoever reads the map.
    pub(crate) fn read_ahead(&self, range: Range<usize>, scratch: &mut [u8]) {
        #[cfg(unix)]
        if let Source::Mapped(map, file) = self
            && !is_cached(map, range.clone())
        {
            // Read, since advice (`WillNeed`) brings a cold file at half the rate.
            for start in range.clone().step_by(scratch.len().max(1)) {
                let part = scratch.len().min(range.end - start);
                let _ = std::os::unix::fs::FileExt::read_at(file, &mut scratch[..part], start as u64);
            }
        }
        #[cfg(not(unix))]
        let _ = (range, scratch);
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
            Source::Mapped(map, _) if len > 0 => Some(map),
            _ => None,
        }
    }
}

/// Whether a range of a mapped file lies in the system's cache, by a look at some of its pages; said of all files that
/// are not one's own.
#[cfg(target_os = "linux")]
fn is_cached(map: &Mmap, range: Range<usize>) -> bool {
    let page = page_bytes();
    let is_resident = |at: usize| {
        let mut resident = 0u8;
        // SAFETY: the page lies in the map, `at` is its start, and there is a byte to tell of it.
        let told = unsafe { libc::mincore(map.as_ptr().add(at).cast_mut().cast(), 1, &mut resident) };
        told == 0 && resident & 1 == 1
    };
    let last = range.end.min(map.len()).saturating_sub(1);
    let pages = (range.start / page..last / page).step_by(LOOKS).chain([last / page]);
    pages.map(|p| p * page).all(is_resident)
}

/// Of so many pages one is looked at: systems read files by more at once.
#[cfg(target_os = "linux")]
const LOOKS: usize = 128;

#[cfg(all(unix, not(target_os = "linux")))]
fn is_cached(_: &Mmap, _: Range<usize>) -> bool {
    false
}

#[cfg(unix)]
fn page_bytes() -> usize {
    // SAFETY: sysconf only reads a constant of the system.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096).max(1)
}
