//! The thread pool: chunks claimed from a counter, spin briefly, then sleep on a futex.
//!
//! Who computes a chunk never changes its bits, so chunks are handed out as threads come. A waiting thread
//! spins for some tens of microseconds and then sleeps; it never yields to the scheduler, which on current
//! kernels gives a whole time slice away.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Spins before a thread sleeps: about 50 microseconds, longer than nearly every gap between two phases.
const SPINS: u32 = 2000;
/// Chunks of one phase at most: what fits the ticket.
const MAX_CHUNKS: usize = (1 << 20) - 1;

/// Work of one phase: called with the chunk and the thread.
type Work<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// One phase as workers see it.
struct Job<'a>(Work<'a>);

/// Phase, number of chunks and next chunk in one word, so that a claim is one compare-and-swap and a thread
/// that comes late can never claim from a phase that it has not read.
#[derive(Clone, Copy)]
struct Ticket(u64);

impl Ticket {
    fn new(phase: u64, n: usize) -> Self {
        Ticket((phase & 0xff_ffff) << 40 | (n as u64) << 20)
    }

    fn next(self) -> Option<usize> {
        let (n, i) = ((self.0 >> 20) & MAX_CHUNKS as u64, self.0 & MAX_CHUNKS as u64);
        (i < n).then_some(i as usize)
    }
}

struct Shared {
    ticket: AtomicU64,
    job: AtomicPtr<Job<'static>>,
    done: AtomicU32,
    caller_sleeps: AtomicBool,
    /// Counts phases; workers sleep on it.
    phase: AtomicU32,
    sleepers: AtomicU32,
    stop: AtomicBool,
    panicked: AtomicBool,
}

impl Shared {
    /// Claims and runs chunks until none is left. Returns how many it ran.
    fn help(&self, thread: usize) -> usize {
        let mut ran = 0;
        loop {
            let seen = self.ticket.load(Ordering::Acquire);
            let Some(chunk) = Ticket(seen).next() else { return ran };
            let job = self.job.load(Ordering::Acquire);
            if self.ticket.compare_exchange(seen, seen + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                continue;
            }
            // SAFETY: the claim succeeded, so this phase has an unfinished chunk; the caller of `run` stays in
            // it, and with it the job alive, until every claimed chunk is done. The pointer was read after the
            // ticket of the same phase, and the job of the next phase is stored only when this one is done.
            let work = unsafe { (*job).0 };
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(chunk, thread))).is_err() {
                self.panicked.store(true, Ordering::Release);
            }
            ran += 1;
            self.done.fetch_add(1, Ordering::AcqRel);
            if self.caller_sleeps.load(Ordering::SeqCst) {
                futex_wake(&self.done);
            }
        }
    }

    fn worker(&self, thread: usize) {
        let mut seen = 0;
        loop {
            self.await_phase(seen);
            seen = self.phase.load(Ordering::Acquire);
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            self.help(thread);
        }
    }

    fn await_phase(&self, seen: u32) {
        for _ in 0..SPINS {
            if self.phase.load(Ordering::Acquire) != seen {
                return;
            }
            std::hint::spin_loop();
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while self.phase.load(Ordering::SeqCst) == seen {
            futex_wait(&self.phase, seen);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    fn await_done(&self, n: u32) {
        for _ in 0..SPINS {
            if self.done.load(Ordering::Acquire) == n {
                return;
            }
            std::hint::spin_loop();
        }
        self.caller_sleeps.store(true, Ordering::SeqCst);
        loop {
            let done = self.done.load(Ordering::SeqCst);
            if done == n {
                break;
            }
            futex_wait(&self.done, done);
        }
        self.caller_sleeps.store(false, Ordering::SeqCst);
    }
}

/// Threads that run phases together with the caller.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// One phase at a time; also guards against two callers.
    busy: Mutex<u64>,
    phases: AtomicUsize,
}

impl Pool {
    /// A pool of `threads` threads, the caller of [`Pool::run`] among them.
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            ticket: AtomicU64::new(0),
            job: AtomicPtr::new(std::ptr::null_mut()),
            done: AtomicU32::new(0),
            caller_sleeps: AtomicBool::new(false),
            phase: AtomicU32::new(0),
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
        if n <= 1 || self.workers.is_empty() {
            (0..n).for_each(|i| work(i, 0));
            return;
        }
        // A chunk's panic is passed on below, after the phase; the lock guards no data that it could break.
        let mut phase = self.busy.lock().unwrap_or_else(|e| e.into_inner());
        let mut first = 0;
        while first < n {
            let len = (n - first).min(MAX_CHUNKS);
            *phase += 1;
            self.phase(*phase, len, &|chunk, thread| work(first + chunk, thread));
            first += len;
        }
        self.phases.fetch_add(1, Ordering::Relaxed);
        assert!(!self.shared.panicked.swap(false, Ordering::AcqRel), "a kernel panicked");
    }

    fn phase(&self, phase: u64, n: usize, work: Work) {
        let s = &*self.shared;
        let mut job = Job(work);
        s.done.store(0, Ordering::Relaxed);
        s.job.store((&raw mut job).cast(), Ordering::Release);
        s.ticket.store(Ticket::new(phase, n).0, Ordering::Release);
        s.phase.fetch_add(1, Ordering::SeqCst);
        if s.sleepers.load(Ordering::SeqCst) > 0 {
            futex_wake(&s.phase);
        }
        s.help(0);
        s.await_done(n as u32);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.phase.fetch_add(1, Ordering::SeqCst);
        futex_wake(&self.shared.phase);
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
