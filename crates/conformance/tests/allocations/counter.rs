//! An allocator that counts, on all threads, while it is asked to.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

static COUNTING: AtomicBool = AtomicBool::new(false);
static SHOWN: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicUsize = AtomicUsize::new(0);
static TRACING: AtomicBool = AtomicBool::new(false);
/// Backtraces of what was allocated while that was asked for.
static TRACES: Mutex<Vec<String>> = Mutex::new(Vec::new());

thread_local! {
    /// Whether this thread is tracing an allocation.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

struct Counter;

#[global_allocator]
static ALLOCATOR: Counter = Counter;

#[cold]
fn note() {
    if TRACING.load(Ordering::SeqCst) {
        // What tracing allocates is nobody's.
        if !INSIDE.replace(true) {
            let trace = std::backtrace::Backtrace::force_capture().to_string();
            TRACES.lock().expect("nothing panics while it holds this").push(trace);
            INSIDE.set(false);
        }
        return;
    }
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

/// The allocations of all threads while `f` runs, where some are expected: none is shown.
pub fn expected(f: impl FnOnce()) -> usize {
    SHOWN.store(true, Ordering::SeqCst);
    let (_, n) = counted(f);
    SHOWN.store(false, Ordering::SeqCst);
    n
}

/// Runs `f` and returns the crate that each allocation was made for: of its callers the nearest outside the standard
/// library.
pub fn owners(f: impl FnOnce()) -> Vec<String> {
    TRACING.store(true, Ordering::SeqCst);
    COUNTING.store(true, Ordering::SeqCst);
    f();
    COUNTING.store(false, Ordering::SeqCst);
    TRACING.store(false, Ordering::SeqCst);
    let traces = std::mem::take(&mut *TRACES.lock().expect("nothing panics while it holds this"));
    traces.iter().map(|t| owner(t)).collect()
}

/// The crate that a backtrace's allocation was made for, by the files of its frames: `firth` for all of ours.
fn owner(trace: &str) -> String {
    const PASSED_OVER: [&str; 4] = ["/rustc/", "/library/", "/rust/deps/", "tests/allocations/counter.rs"];
    let files = trace.lines().filter_map(|l| l.trim().strip_prefix("at "));
    let mut files = files.filter(|f| !PASSED_OVER.iter().any(|p| f.contains(p)));
    files.next().map_or("nobody".into(), |file| match file.split_once("/registry/src/") {
        Some((_, krate)) => krate.split('/').nth(1).unwrap_or(krate).into(),
        None => format!("firth, {file}"),
    })
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
    let own = owners(crate::requests::something);
    assert!(own.len() == 1 && own[0].starts_with("firth, "), "{own:?}");
    assert!(here == 1 && there > spawning, "the counter counts: {here}, {there} beside {spawning}");
}
