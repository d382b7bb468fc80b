//! An allocator that counts, on all threads, while it is asked to.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

static COUNTING: AtomicBool = AtomicBool::new(false);
static SHOWN: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicUsize = AtomicUsize::new(0);

struct Counter;

#[global_allocator]
static ALLOCATOR: Counter = Counter;

#[cold]
fn note() {
    // The first one is shown; what showing it allocates is not counted.
    if !SHOWN.swap(true, Ordering::SeqCst) {
        COUNTING.store(false, Ordering::SeqCst);
        eprintln!("first allocation:\n{}", std::backtrace::Backtrace::force_capture());
        COUNTING.store(true, Ordering::SeqCst);
    }
    COUNT.fetch_add(1, Ordering::SeqCst);
}

fn count() {
    if COUNTING.load(Ordering::Relaxed) {
        note();
    }
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(p, layout) }
    }

    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(p, layout, size) }
    }
}

/// Runs `f` and returns what it returned with the allocations of all threads meanwhile.
pub fn counted<T>(f: impl FnOnce() -> T) -> (T, usize) {
    let before = COUNT.load(Ordering::SeqCst);
    COUNTING.store(true, Ordering::SeqCst);
    let out = f();
    COUNTING.store(false, Ordering::SeqCst);
    (out, COUNT.load(Ordering::SeqCst) - before)
}

/// The counter counts, on this thread and on others.
pub fn check() {
    SHOWN.store(true, Ordering::SeqCst);
    let ((), here) = counted(|| drop(std::hint::black_box(vec![1u8; 100])));
    let (_, there) = counted(|| {
        let other = std::thread::spawn(|| drop(std::hint::black_box(vec![1u8; 100])));
        other.join().expect("it only allocates")
    });
    let spawning = counted(|| std::thread::spawn(|| ()).join().expect("it does nothing")).1;
    SHOWN.store(false, Ordering::SeqCst);
    assert!(here == 1 && there > spawning, "the counter counts: {here}, {there} beside {spawning}");
}
