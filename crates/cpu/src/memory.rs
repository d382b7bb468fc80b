//! Large memory: anonymous pages, huge where the system gives them.

use std::ptr::NonNull;

/// Bytes zeroed on first touch, aligned to 2 MiB where the system can. Not initialised eagerly, so a pool of
/// pages costs nothing until it is used.
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    map: (NonNull<u8>, usize),
}

// SAFETY: a region owns its memory; access is governed by the borrows of `as_slice` and by the contract of `ptr`.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

const HUGE: usize = 2 << 20;

impl Region {
    /// `len` zeroed bytes, or `None` when the system has none left.
    pub fn new(len: usize) -> Option<Region> {
        let padded = len.max(1).checked_add(if len >= HUGE { HUGE } else { 0 })?;
        #[cfg(unix)]
        {
            // SAFETY: a fresh anonymous mapping; nothing else knows its address.
            let p = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    padded,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                    -1,
                    0,
                )
            };
            if p == libc::MAP_FAILED {
                return None;
            }
            let map = NonNull::new(p.cast::<u8>())?;
            let skip = if len >= HUGE { map.as_ptr().align_offset(HUGE) } else { 0 };
            // SAFETY: `skip` is below the padding.
            let base = unsafe { map.add(skip) };
            #[cfg(target_os = "linux")]
            if len >= HUGE {
                // SAFETY: the range lies in the mapping; the advice changes no content.
                unsafe { libc::madvise(base.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
            }
            Some(Region { base, len, map: (map, padded) })
        }
        #[cfg(not(unix))]
        {
            let layout = std::alloc::Layout::from_size_align(padded, 64).ok()?;
            // SAFETY: the layout has a size above 0.
            let map = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
            Some(Region { base: map, len, map: (map, padded) })
        }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The start. Writers of disjoint ranges may share the region through it.
    pub fn ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// All bytes. Nothing may write through [`Region::ptr`] meanwhile.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `len` bytes from `base` are mapped and initialised (zeros until written).
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let (map, len) = self.map;
        #[cfg(unix)]
        // SAFETY: exactly the mapping made in `new`, unmapped once.
        unsafe {
            libc::munmap(map.as_ptr().cast(), len);
        }
        #[cfg(not(unix))]
        // SAFETY: the same layout as in `new`.
        unsafe {
            std::alloc::dealloc(map.as_ptr(), std::alloc::Layout::from_size_align_unchecked(len, 64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_zero_and_aligned() {
        for len in [0, 1, 4096, HUGE, HUGE + 1] {
            let r = Region::new(len).unwrap();
            assert_eq!(r.as_slice().len(), len);
            assert!(r.as_slice().iter().all(|b| *b == 0));
            assert_eq!(r.ptr().align_offset(if len >= HUGE { HUGE } else { 64 }), 0);
        }
    }

    #[test]
    fn a_size_beyond_the_address_space_is_refused() {
        assert!(Region::new(usize::MAX - 10).is_none());
    }
}
