//! Memory that reading a header takes is bounded by the bytes of the file, whatever its counts say.
#![allow(missing_docs)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use common::Raw;
use firth_gguf::Gguf;

/// Bytes held, the most ever held, and the largest single request.
static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);
static LARGEST: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call is passed on to the system's allocator unchanged; only numbers are kept beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Relaxed) + layout.size();
        MOST.fetch_max(held, Relaxed);
        LARGEST.fetch_max(layout.size(), Relaxed);
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the pointer came from `alloc` above, which is the system's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Most bytes held and largest request while a file is read.
fn read(raw: Raw) -> (usize, usize) {
    let before = HELD.load(Relaxed);
    MOST.store(before, Relaxed);
    LARGEST.store(0, Relaxed);
    let _ = Gguf::from_bytes(raw.0, "m");
    (MOST.load(Relaxed) - before, LARGEST.load(Relaxed))
}

/// Checks that reading takes at most `factor` times the file and a little for errors and names.
#[track_caller]
fn check(raw: Raw, factor: usize) {
    let n = raw.0.len();
    let (most, largest) = read(raw);
    let limit = n * factor + 4096;
    assert!(most <= limit, "{most} bytes held for a file of {n}, expected at most {limit}");
    assert!(largest <= limit, "{largest} bytes at once for a file of {n}, expected at most {limit}");
}

/// One test, so that no other thread allocates meanwhile.
#[test]
fn memory_is_bounded_by_the_file() {
    // The measure itself: a vector of this size must be seen.
    let seen = read(Raw::new(3, 0, 1).key_array("a", 4, 25_000).data(1, 100_000));
    assert!(seen.0 >= 100_000 && seen.1 >= 100_000, "{seen:?}");

    for n in [1 << 30, 1 << 59, u64::MAX] {
        check(Raw::new(3, n, 0).data(1, 1000), 1);
        check(Raw::new(3, 0, n).data(1, 1000), 1);
        check(Raw::new(3, 0, 1).u64(n).data(1, 1000), 1);
        check(Raw::new(3, 0, 1).string(b"s").u32(8).u64(n).data(1, 1000), 1);
        for element_type in [0, 2, 4, 7, 8, 10] {
            check(Raw::new(3, 0, 1).key_array("a", element_type, n).data(1, 1000), 1);
        }
        check(Raw::new(3, 1, 0).tensor("w", &[n / 4], 0, 0).data(32, 1000), 1);
    }

    // Much of everything that a byte of file may cost, in files that are read or broken at their end.
    let (keys, tensors) = (20_000, 20_000);
    let many_keys = (0..keys)
        .fold(Raw::new(3, 0, keys), |raw, i| raw.string(&format!("{i:x}").into_bytes()).u32(0).bytes(&[0]));
    check(many_keys, 24);
    let many_tensors =
        (0..tensors).fold(Raw::new(3, tensors, 0), |raw, i| raw.tensor(&format!("{i:x}"), &[0], 0, 0));
    check(many_tensors, 16);
    let empty_strings = Raw::new(3, 0, 1).key_array("a", 8, 100_000).data(1, 800_000);
    check(empty_strings, 2);
    let cut_strings = Raw::new(3, 0, 1).key_array("a", 8, 100_000).data(1, 800_000).u32(1);
    check(Raw(cut_strings.0[..800_000].to_vec()), 1);
    // Counts that the file's data would allow: nothing may be reserved for them.
    check(Raw::new(3, 30_000, 0).data(1, 1_000_000), 1);
    check(Raw::new(3, 0, 70_000).data(1, 1_000_000), 1);
    // Damaged text grows threefold when it is repaired.
    check(Raw::new(3, 0, 1).string(b"s").u32(8).string(&[0xff; 100_000]), 6);
}
