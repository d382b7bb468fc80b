//! The bytes of a file: mapped, or owned. The only unsafe code of this crate.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;

use memmap2::{Advice, Mmap};

/// The bytes of one file.
pub(crate) enum Bytes {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl Bytes {
    /// Maps `file` for reading.
    ///
    /// The file must not be changed while it is mapped: a shortened file kills the process at the next read past
    /// its end, as with every program that maps files.
    pub(crate) fn map(file: &File) -> io::Result<Bytes> {
        // SAFETY: the mapping is read-only and private to us; that nobody writes to a model file while it is in
        // use is the condition stated above, and the parser never reads a byte twice expecting the same value
        // for memory safety: all ranges are checked against the length of the mapping.
        let map = unsafe { Mmap::map(file)? };
        Ok(Bytes::Mapped(map))
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Owned(bytes) => bytes,
        }
    }

    /// Asks the system to read `range` ahead. A hint: failures change nothing but speed.
    pub(crate) fn prefetch(&self, range: Range<usize>) {
        if let Bytes::Mapped(map) = self {
            let _ = map.advise_range(Advice::WillNeed, range.start, range.len());
        }
    }

    /// Drops the whole pages within `range` from memory; they are read from the file again when touched.
    pub(crate) fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        if let Bytes::Mapped(map) = self {
            let page = page_bytes();
            let start = range.start.next_multiple_of(page);
            let end = range.end / page * page;
            if start < end {
                // SAFETY: the mapping is of a file and never written, so a dropped page comes back from the file
                // with the bytes it had; no reference into it can see a difference.
                let _ = unsafe {
                    map.unchecked_advise_range(
                        memmap2::UncheckedAdvise::DontNeed,
                        start,
                        end - start,
                    )
                };
            }
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}

#[cfg(unix)]
fn page_bytes() -> usize {
    // SAFETY: sysconf has no preconditions.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096).max(1)
}
