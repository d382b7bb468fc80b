//! What a service counts while it works, readable at any time.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use firth_engine::DRAFT_PLACES;

/// What a sequence of the engine is doing.
#[derive(Clone, Copy, Debug, Default)]
pub struct SlotStatus {
    /// The request at work, or the last one; 0 before the first.
    pub task: u64,
    /// Whether it is at work.
    pub busy: bool,
    /// Tokens of its prompt.
    pub n_prompt: usize,
    /// Those that came from the cache.
    pub n_cached: usize,
    /// Those in memory.
    pub n_done: usize,
    /// Tokens generated.
    pub n_said: usize,
}

/// Counts since the start.
#[derive(Debug, Default)]
pub struct Counts {
    /// Steps.
    pub steps: AtomicU64,
    /// Busy sequences, summed over steps.
    pub busy_in_steps: AtomicU64,
    /// Prompt tokens that were computed.
    pub prompt_tokens: AtomicU64,
    /// Prompt tokens taken from the cache.
    pub cached_tokens: AtomicU64,
    /// Microseconds spent on prompts, summed over requests.
    pub prompt_micros: AtomicU64,
    /// Tokens generated.
    pub predicted_tokens: AtomicU64,
    /// Microseconds spent on generating, summed over requests.
    pub predicted_micros: AtomicU64,
    /// Times that tokens were guessed.
    pub drafts: AtomicU64,
    /// Tokens that were guessed.
    pub draft_tokens: AtomicU64,
    /// Those that were right.
    pub draft_accepted: AtomicU64,
    /// Guesses that were right, by their place in the draft.
    pub draft_accepted_at: [AtomicU64; DRAFT_PLACES],
    /// Allocations of steps on the engine's thread, without those of texts; 0 where nothing counts them.
    pub allocations: AtomicU64,
    /// Allocations of grammars and stop texts within steps.
    pub text_allocations: AtomicU64,
    /// Longest sequence so far.
    pub most_tokens: AtomicU64,
    /// Requests that were put back for want of memory.
    pub parked: AtomicU64,
    /// Requests that ended, whatever the reason.
    pub ended: AtomicU64,
    /// Bytes that only the prefix tree holds.
    pub cache_bytes: AtomicU64,
    /// Snapshots in the prefix tree.
    pub snapshots: AtomicU64,
    /// Snapshots dropped.
    pub evictions: AtomicU64,
    /// Pages of keys and values in use, and all.
    pub pages: [AtomicU64; 2],
    /// Requests in the queue.
    pub waiting: AtomicUsize,
    /// Requests at work.
    pub active: AtomicUsize,
}

/// What others read while the engine works.
pub(crate) struct Board {
    pub counts: Counts,
    /// Requests that were taken and have not ended.
    pub taken: AtomicUsize,
    slots: Mutex<Vec<SlotStatus>>,
    start: Instant,
    /// Milliseconds from the start to the last sign of life.
    beat: AtomicU64,
    dead: Mutex<Option<String>>,
}

impl Board {
    pub fn new(slots: usize) -> Board {
        Board {
            counts: Counts::default(),
            taken: AtomicUsize::new(0),
            slots: Mutex::new(vec![SlotStatus::default(); slots]),
            start: Instant::now(),
            beat: AtomicU64::new(0),
            dead: Mutex::new(None),
        }
    }

    /// A sign of life of the engine's loop.
    pub fn beat(&self) {
        self.beat.store(self.start.elapsed().as_millis() as u64, Relaxed);
    }

    /// Time since the last sign of life.
    pub fn silence(&self) -> Duration {
        self.start.elapsed().saturating_sub(Duration::from_millis(self.beat.load(Relaxed)))
    }

    /// Says that the loop has ended, and why.
    pub fn die(&self, why: String) {
        self.dead.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
    }

    /// Why the loop has ended, if it has.
    pub fn death(&self) -> Option<String> {
        self.dead.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn slots(&self) -> Vec<SlotStatus> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn slot_of(&self, task: u64) -> Option<usize> {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.iter().position(|s| s.task == task)
    }

    pub fn show(&self, slots: impl Iterator<Item = SlotStatus>) {
        let mut shown = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        shown.iter_mut().zip(slots).for_each(|(to, from)| *to = from);
    }
}

/// Adds seconds to a count of microseconds.
pub(crate) fn add_seconds(to: &AtomicU64, seconds: f64) {
    to.fetch_add((seconds * 1e6) as u64, Relaxed);
}
