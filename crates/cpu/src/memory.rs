//! Large memory: anonymous pages, huge where the system gives them.

use std::ptr::NonNull;
use std::sync::{Arc, Weak};

/// Bytes zeroed on first touch, aligned to 2 MiB where the system can. Not initialised eagerly, so a pool of
/// pages costs nothing until it is used.
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    /// The mapping that it lies in, alone or with neighbours.
    map: Arc<Mapping>,
}

// SAFETY: a region owns its range of the mapping; access is governed by the borrows of `as_slice` and by the
// contract of `ptr`.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// A range of addresses from the system, given back when the last region in it is gone.
struct Mapping {
    start: NonNull<u8>,
    len: usize,
    /// Where in it the region begins that it was made for, and that region's bytes.
    used: (usize, usize),
}

// SAFETY: only an address and a length; the regions govern access.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

const HUGE: usize = 2 << 20;

impl Region {
    /// `len` zeroed bytes in huge pages, or `None` when the system has none left.
    pub fn new(len: usize) -> Option<Region> {
        let region = Region::small(len)?;
        if len >= HUGE {
            region.map.advise_huge();
        }
        Some(region)
    }

    /// `len` zeroed bytes, in small pages until [`Region::enlarging`] makes them huge: so that what is touched here and
    /// there takes no more than that.
    pub fn small(len: usize) -> Option<Region> {
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
            Some(Region { base, len, map: Arc::new(Mapping { start: map, len: padded, used: (skip, len) }) })
        }
        #[cfg(not(unix))]
        {
            let layout = std::alloc::Layout::from_size_align(padded, 64).ok()?;
            // SAFETY: the layout has a size above 0.
            let map = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
            Some(Region {
                base: map,
                len,
                map: Arc::new(Mapping { start: map, len: padded, used: (0, len) }),
            })
        }
    }

    /// What makes huge pages of the mapping that it lies in.
    pub fn enlarging(&self) -> Enlarging {
        Enlarging(Arc::downgrade(&self.map))
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

/// A mapping, of which it does not matter whether it is still there, that may be given huge pages.
pub struct Enlarging(Weak<Mapping>);

impl Enlarging {
    /// Whether both are of one mapping.
    pub fn is_of(&self, other: &Enlarging) -> bool {
        self.0.ptr_eq(&other.0)
    }

    /// Asks for huge pages: where small ones are in use they are copied, now. The bytes stay what they are.
    pub fn enlarge(&self) {
        if let Some(map) = self.0.upgrade().filter(|map| map.used.1 >= HUGE) {
            map.advise_huge();
            #[cfg(target_os = "linux")]
            map.advise(libc::MADV_COLLAPSE);
        }
    }
}

/// Regions one after the other in mappings of [`SLAB`] bytes: what is too small for a huge page of its own shares
/// one with its neighbours.
pub struct Slabs {
    make: fn(usize) -> Option<Region>,
    last: Option<(Region, usize)>,
}

/// Bytes of a shared mapping.
const SLAB: usize = 32 << 20;

impl Slabs {
    /// Mappings by `make`.
    pub fn of(make: fn(usize) -> Option<Region>) -> Slabs {
        Slabs { make, last: None }
    }

    /// `len` zeroed bytes, or `None` when the system has none left.
    pub fn take(&mut self, len: usize) -> Option<Region> {
        if len > SLAB / 4 {
            return (self.make)(len);
        }
        // The gap keeps the ends of neighbours on lines of their own.
        let padded = len.next_multiple_of(ALIGN) + ALIGN;
        if self.last.as_ref().is_none_or(|(_, used)| used + padded > SLAB) {
            self.last = Some(((self.make)(SLAB)?, 0));
        }
        let (slab, used) = self.last.as_mut()?;
        // SAFETY: `used + len` is at most the slab's length.
        let base = unsafe { slab.base.add(*used) };
        *used += padded;
        Some(Region { base, len, map: slab.map.clone() })
    }
}

/// Regions in a slab start at multiples of this.
const ALIGN: usize = 128;

impl Mapping {
    /// Asks for huge pages where none are in use yet.
    fn advise_huge(&self) {
        #[cfg(target_os = "linux")]
        self.advise(libc::MADV_HUGEPAGE);
    }

    /// Advice that changes no content, nor which addresses are whose; a system that does not know it goes on as it was.
    #[cfg(target_os = "linux")]
    fn advise(&self, advice: i32) {
        let (skip, len) = self.used;
        // SAFETY: the range lies in the mapping, and only pages change that its bytes lie in.
        unsafe {
            libc::madvise(self.start.as_ptr().add(skip).cast(), len, advice);
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let Mapping { start, len, .. } = *self;
        #[cfg(unix)]
        // SAFETY: exactly the mapping made in `new`, unmapped once.
        unsafe {
            libc::munmap(start.as_ptr().cast(), len);
        }
        #[cfg(not(unix))]
        // SAFETY: the same layout as in `new`.
        unsafe {
            std::alloc::dealloc(start.as_ptr(), std::alloc::Layout::from_size_align_unchecked(len, 64));
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
    fn regions_of_a_slab_do_not_meet_and_outlive_it() {
        let mut slabs = Slabs::of(Region::new);
        let lens = [1, 64, 100_000, 3 << 20, 9 << 20, 7 << 20, 8 << 20, 8 << 20, 8 << 20, 5];
        let regions: Vec<Region> = lens.iter().map(|len| slabs.take(*len).unwrap()).collect();
        drop(slabs);
        for (i, r) in regions.iter().enumerate() {
            assert_eq!(r.len(), lens[i]);
            // SAFETY: the region is this test's alone.
            unsafe { r.ptr().write_bytes(i as u8 + 1, r.len()) };
        }
        for (i, r) in regions.iter().enumerate() {
            assert!(r.as_slice().iter().all(|b| *b == i as u8 + 1), "region {i}");
            assert_eq!(r.ptr().align_offset(64), 0);
        }
    }

    #[test]
    fn enlarging_keeps_bytes_and_outlives_the_region() {
        let region = Region::small(3 * HUGE + 5).unwrap();
        let enlarging = region.enlarging();
        for at in [0, 4096, HUGE, 3 * HUGE + 4] {
            // SAFETY: the region is this test's alone.
            unsafe { region.ptr().add(at).write(7) };
        }
        enlarging.enlarge();
        assert_eq!(region.as_slice().iter().filter(|b| **b == 7).count(), 4);
        assert_eq!(region.as_slice().iter().filter(|b| **b == 0).count(), region.len() - 4);
        assert!(region.as_slice()[HUGE] == 7 && region.as_slice()[3 * HUGE + 4] == 7);
        drop(region);
        enlarging.enlarge();
    }

    #[test]
    fn a_size_beyond_the_address_space_is_refused() {
        assert!(Region::new(usize::MAX - 10).is_none());
    }
}
