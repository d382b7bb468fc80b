//! The thread pool: each thread starts on a share of its own and then helps the others; a waiting thread fetches
//! what it will read next, spins briefly, then sleeps on a futex.
//!
//! Who computes a chunk never changes its bits, so chunks go to whoever comes. A thread's own share is one run of
//! chunks: its reads stay one stream. A waiting thread never yields to the scheduler, which on current kernels
//! gives a whole time slice away.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use firth_simd::prefetch_far;

/// Spins before a thread sleeps: about 50 microseconds, longer than nearly every gap between two phases.
const SPINS: u32 = 2000;
/// Chunks of one phase at most: what fits a share.
const MAX_CHUNKS: usize = 0xffff;
/// Bytes that a waiting thread fetches at most: a part of the second-level cache.
const AHEAD_BYTES: usize = 384 << 10;
/// Bytes of a cache line.
const LINE: usize = 64;

/// Work of phases.
pub trait Work: Sync {
    /// Does chunk `chunk` of phase `tag` on thread `thread`.
    fn run(&self, tag: usize, chunk: usize, thread: usize);
}

/// Work of one phase.
struct Once<'a>(&'a (dyn Fn(usize, usize) + Sync));

impl Work for Once<'_> {
    fn run(&self, _tag: usize, chunk: usize, thread: usize) {
        (self.0)(chunk, thread);
    }
}

/// A part of a phase of more chunks than a share holds: the work, and the first chunk.
struct Part<'a, W>(&'a W, usize);

impl<W: Work> Work for Part<'_, W> {
    fn run(&self, tag: usize, chunk: usize, thread: usize) {
        self.0.run(tag, self.1 + chunk, thread);
    }
}

/// Memory that a thread will read first in a later phase, by thread and number of threads. Only fetched to the
/// cache, never looked at.
pub type Ahead<'a> = &'a dyn Fn(usize, usize) -> (*const u8, usize);

/// One phase as threads see it: a function, the work that it takes, and the phase's tag.
#[derive(Clone, Copy)]
struct Job {
    call: unsafe fn(*const (), usize, usize, usize),
    work: *const (),
    tag: usize,
}

/// # Safety
/// `work` is a live `W`.
unsafe fn call<W: Work>(work: *const (), tag: usize, chunk: usize, thread: usize) {
    // SAFETY: by the contract.
    unsafe { &*work.cast::<W>() }.run(tag, chunk, thread);
}

/// Phase (32 bits), end and next chunk (16 each) of a thread's share in one word, so that a claim is one
/// compare-and-swap and a thread that comes late can never claim from a phase that it has not read.
#[derive(Clone, Copy)]
struct Share(u64);

impl Share {
    fn new(phase: u32, chunks: std::ops::Range<usize>) -> Self {
        Share((phase as u64) << 32 | (chunks.end as u64) << 16 | chunks.start as u64)
    }

    fn phase(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn chunks(self) -> std::ops::Range<usize> {
        (self.0 & 0xffff) as usize..(self.0 >> 16 & 0xffff) as usize
    }

    /// The chunk at the front and what is left.
    fn first(self) -> (usize, Share) {
        (self.chunks().start, Share(self.0 + 1))
    }

    /// The chunk at the back and what is left.
    fn last(self) -> (usize, Share) {
        (self.chunks().end - 1, Share(self.0 - (1 << 16)))
    }
}

/// What the pool keeps for a thread, on lines of its own: all that the start of a phase has to bring to it, since each
/// line of another core costs as much as some kilobytes of weights.
#[repr(align(128))]
struct Lane {
    share: AtomicU64,
    /// The [`Job`] that the share is of.
    call: AtomicPtr<()>,
    work: AtomicPtr<()>,
    tag: AtomicUsize,
    /// What to fetch while waiting.
    ahead: AtomicPtr<u8>,
    ahead_len: AtomicUsize,
}

impl Lane {
    /// Makes a share of a job; the one before is done.
    fn give(&self, share: Share, job: &Job) {
        self.call.store(job.call as *mut (), Ordering::Relaxed);
        self.work.store(job.work.cast_mut(), Ordering::Relaxed);
        self.tag.store(job.tag, Ordering::Relaxed);
        self.share.store(share.0, Ordering::Release);
    }

    /// The job of a share that was seen. Belongs together only if the share is still there afterwards.
    fn job(&self) -> (*mut (), *const (), usize) {
        let call = self.call.load(Ordering::Relaxed);
        (call, self.work.load(Ordering::Relaxed), self.tag.load(Ordering::Relaxed))
    }
}

/// A word on a line of its own.
#[repr(align(128))]
struct Own<T>(T);

struct Shared {
    lanes: Box<[Lane]>,
    done: Own<AtomicU32>,
    caller_sleeps: AtomicBool,
    /// Counts phases; workers that sleep do so on it.
    phase: Own<AtomicU32>,
    sleepers: AtomicU32,
    stop: AtomicBool,
    panicked: AtomicBool,
}

impl Shared {
    /// Claims a chunk: the next of the thread's own, else the last of another's. The job is the chunk's.
    fn claim(&self, thread: usize) -> Option<(usize, Job)> {
        let n = self.lanes.len();
        for i in 0..n {
            let lane = &self.lanes[(thread + i) % n];
            let mut seen = Share(lane.share.load(Ordering::Acquire));
            while !seen.chunks().is_empty() {
                let (call, work, tag) = lane.job();
                let (chunk, rest) = if i == 0 { seen.first() } else { seen.last() };
                match lane.share.compare_exchange(seen.0, rest.0, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => {
                        // SAFETY: stored before the share by `Lane::give`, as a function of this type. The share was
                        // there all the while, so its phase was not over and the next one's job not stored.
                        let call = unsafe {
                            std::mem::transmute::<*mut (), unsafe fn(*const (), usize, usize, usize)>(call)
                        };
                        return Some((chunk, Job { call, work, tag }));
                    }
                    Err(now) => seen = Share(now),
                }
            }
        }
        None
    }

    /// Claims and runs chunks until none is left.
    fn help(&self, thread: usize) {
        let mut ran = 0;
        while let Some((chunk, job)) = self.claim(thread) {
            // SAFETY: the claim succeeded, so this phase has an unfinished chunk; the caller of `run` stays in
            // it, and with it the work alive, until every claimed chunk is done.
            let run = || unsafe { (job.call)(job.work, job.tag, chunk, thread) };
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err() {
                self.panicked.store(true, Ordering::Release);
            }
            ran += 1;
        }
        if ran > 0 {
            self.done.0.fetch_add(ran, Ordering::SeqCst);
            if self.caller_sleeps.load(Ordering::SeqCst) {
                futex_wake(&self.done.0);
            }
        }
    }

    fn worker(&self, thread: usize) {
        let mut seen = 0;
        loop {
            seen = self.await_phase(seen, thread);
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            self.help(thread);
        }
    }

    /// Waits until `over` says so, fetching ahead and spinning; false when it took too long.
    fn spin(&self, thread: usize, over: impl Fn() -> bool) -> bool {
        let lane = &self.lanes[thread];
        let (from, len) = (lane.ahead.load(Ordering::Relaxed), lane.ahead_len.load(Ordering::Relaxed));
        let mut at = 0;
        while at < len.min(AHEAD_BYTES) {
            for line in 0..4 {
                prefetch_far(from.wrapping_add(at + line * LINE));
            }
            at += 4 * LINE;
            if over() {
                return true;
            }
        }
        for _ in 0..SPINS {
            if over() {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    /// Waits for a share of another phase than `seen`; returns its phase.
    fn await_phase(&self, seen: u32, thread: usize) -> u32 {
        let now = || Share(self.lanes[thread].share.load(Ordering::Acquire)).phase();
        if self.spin(thread, || now() != seen) {
            return now();
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        loop {
            // Shares are stored before phases are counted: who misses the share here is woken.
            let counted = self.phase.0.load(Ordering::SeqCst);
            if now() != seen {
                break;
            }
            futex_wait(&self.phase.0, counted);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        now()
    }

    /// Gives shares of a job to the first `threads` threads and wakes those that sleep.
    fn start(&self, threads: usize, share: impl Fn(usize) -> Share, job: &Job) {
        for (i, lane) in self.lanes.iter().enumerate().take(threads) {
            lane.give(share(i), job);
        }
        self.phase.0.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            futex_wake(&self.phase.0);
        }
    }

    fn await_done(&self, n: u32) {
        if self.done.0.load(Ordering::Acquire) == n
            || self.spin(0, || self.done.0.load(Ordering::Acquire) == n)
        {
            return;
        }
        self.caller_sleeps.store(true, Ordering::SeqCst);
        loop {
            let done = self.done.0.load(Ordering::SeqCst);
            if done == n {
                break;
            }
            futex_wait(&self.done.0, done);
        }
        self.caller_sleeps.store(false, Ordering::SeqCst);
    }
}

/// Threads that run phases together with the caller.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// One phase at a time; also guards against two callers.
    busy: Mutex<u32>,
    phases: AtomicUsize,
}

impl Pool {
    /// A pool of `threads` threads, the caller of [`Pool::run`] among them.
    pub fn new(threads: usize) -> Self {
        let lane = |_| Lane {
            share: AtomicU64::new(0),
            call: AtomicPtr::new(std::ptr::null_mut()),
            work: AtomicPtr::new(std::ptr::null_mut()),
            tag: AtomicUsize::new(0),
            ahead: AtomicPtr::new(std::ptr::null_mut()),
            ahead_len: AtomicUsize::new(0),
        };
        let shared = Arc::new(Shared {
            lanes: (0..threads.max(1)).map(lane).collect(),
            done: Own(AtomicU32::new(0)),
            caller_sleeps: AtomicBool::new(false),
            phase: Own(AtomicU32::new(0)),
            sleepers: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
        });
        let spawn = |i: usize| {
            let shared = shared.clone();
            let name = format!("firth-cpu-{i}");
            std::thread::Builder::new().name(name).spawn(move || shared.worker(i)).ok()
        };
        // A machine that refuses a thread gets a smaller pool: slower, same results.
        let workers = (1..threads.max(1)).map_while(spawn).collect();
        Pool { shared, workers, busy: Mutex::new(0), phases: AtomicUsize::new(0) }
    }

    /// Threads, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Phases that woke the pool so far.
    pub fn phases(&self) -> usize {
        self.phases.load(Ordering::Relaxed)
    }

    /// Runs `work(chunk, thread)` for every chunk in `0..n`, each once, on all threads; returns when all are
    /// done. A single chunk runs on the caller alone. Panics if a chunk panicked.
    pub fn run(&self, n: usize, work: &(dyn Fn(usize, usize) + Sync)) {
        self.run_ahead(n, 0, &Once(work), &|_, _| (std::ptr::null(), 0));
    }

    /// [`Pool::run`] for phase `tag` of some work; threads that wait in it and after it fetch what `ahead` names.
    pub fn run_ahead<W: Work>(&self, n: usize, tag: usize, work: &W, ahead: Ahead) {
        if n <= 1 || self.workers.is_empty() {
            (0..n).for_each(|i| work.run(tag, i, 0));
            return;
        }
        // A chunk's panic is passed on below, after the phase; the lock guards no data that it could break.
        let mut phase = self.busy.lock().unwrap_or_else(|e| e.into_inner());
        for (i, lane) in self.shared.lanes.iter().enumerate().take(self.threads()) {
            let (from, len) = ahead(i, self.threads());
            lane.ahead.store(from.cast_mut(), Ordering::Relaxed);
            lane.ahead_len.store(len, Ordering::Relaxed);
        }
        let mut first = 0;
        while first < n {
            let len = (n - first).min(MAX_CHUNKS);
            *phase = phase.wrapping_add(1);
            match first == 0 {
                true => self.phase(*phase, len, tag, work),
                false => self.phase(*phase, len, tag, &Part(work, first)),
            }
            first += len;
        }
        self.phases.fetch_add(1, Ordering::Relaxed);
        // Looked at before it is written: workers read the line.
        let panicked = &self.shared.panicked;
        assert!(
            !panicked.load(Ordering::Acquire) || !panicked.swap(false, Ordering::AcqRel),
            "a kernel panicked"
        );
    }

    fn phase<W: Work>(&self, phase: u32, n: usize, tag: usize, work: &W) {
        let (s, threads) = (&*self.shared, self.threads());
        s.done.0.store(0, Ordering::Relaxed);
        let job = Job { call: call::<W>, work: (&raw const *work).cast(), tag };
        s.start(threads, |i| Share::new(phase, own_chunks(n, i, threads)), &job);
        s.help(0);
        s.await_done(n as u32);
    }
}

/// The chunks of `n` that thread `i` of `threads` starts with.
pub fn own_chunks(n: usize, i: usize, threads: usize) -> std::ops::Range<usize> {
    n * i / threads..n * (i + 1) / threads
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        let phase = self.busy.get_mut().unwrap_or_else(|e| e.into_inner()).wrapping_add(1);
        let job = Job { call: call::<Once>, work: std::ptr::null(), tag: 0 };
        self.shared.start(self.shared.lanes.len(), |_| Share::new(phase, 0..0), &job);
        for w in self.workers.drain(..) {
            // A worker catches panics of its chunks, so it ends in order.
            let _ = w.join();
        }
    }
}

#[cfg(target_os = "linux")]
fn futex_wait(word: &AtomicU32, expected: u32) {
    // SAFETY: the word is a live aligned u32; the kernel only reads it. No timeout.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            expected,
            std::ptr::null::<libc::timespec>(),
        );
    }
}

#[cfg(target_os = "linux")]
fn futex_wake(word: &AtomicU32) {
    // SAFETY: the word is a live aligned u32, used as an address only.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, i32::MAX);
    }
}

#[cfg(not(target_os = "linux"))]
fn futex_wait(word: &AtomicU32, expected: u32) {
    if word.load(Ordering::SeqCst) == expected {
        std::thread::sleep(std::time::Duration::from_micros(50));
    }
}

#[cfg(not(target_os = "linux"))]
fn futex_wake(_word: &AtomicU32) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chunk_runs_once() {
        for threads in [1, 2, 3, 8] {
            let pool = Pool::new(threads);
            for n in [0, 1, 2, 3, 17, 1000] {
                let counts: Vec<AtomicU32> = (0..n).map(|_| AtomicU32::new(0)).collect();
                pool.run(n, &|chunk, thread| {
                    assert!(thread < threads);
                    counts[chunk].fetch_add(1, Ordering::Relaxed);
                });
                assert!(
                    counts.iter().all(|c| c.load(Ordering::Relaxed) == 1),
                    "{threads} threads, {n} chunks"
                );
            }
        }
    }

    #[test]
    fn phases_follow_each_other_without_mixing() {
        let pool = Pool::new(4);
        let sum = AtomicUsize::new(0);
        for phase in 0..20_000 {
            pool.run(3, &|chunk, _| {
                sum.fetch_add(phase * 3 + chunk, Ordering::Relaxed);
            });
        }
        let n = 60_000;
        assert_eq!(sum.load(Ordering::Relaxed), n * (n - 1) / 2);
    }

    #[test]
    fn workers_that_slept_wake_up() {
        let pool = Pool::new(3);
        for _ in 0..5 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            let seen = AtomicUsize::new(0);
            pool.run(64, &|_, _| {
                seen.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(seen.load(Ordering::Relaxed), 64);
        }
    }

    #[test]
    #[should_panic(expected = "a kernel panicked")]
    fn a_panic_reaches_the_caller() {
        Pool::new(2).run(8, &|chunk, _| assert_ne!(chunk, 5));
    }
}
