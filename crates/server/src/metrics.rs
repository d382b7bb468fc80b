//! What is measured, in Prometheus' text form.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use firth::Finished;

/// Measurements of the wire; the engine's are in its own counts.
#[derive(Default)]
pub struct Metrics {
    first: Histogram,
    gap: Histogram,
    queue: Histogram,
    whole: Histogram,
    /// Requests by path and status.
    requests: Mutex<BTreeMap<(String, u16), u64>>,
}

/// Upper ends of buckets, in seconds.
const ENDS: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0];

#[derive(Default)]
struct Histogram {
    buckets: [AtomicU64; ENDS.len()],
    n: AtomicU64,
    micros: AtomicU64,
}

impl Histogram {
    fn note(&self, d: Duration) {
        let seconds = d.as_secs_f64();
        if let Some(i) = ENDS.iter().position(|end| seconds <= *end) {
            self.buckets[i].fetch_add(1, Relaxed);
        }
        self.n.fetch_add(1, Relaxed);
        self.micros.fetch_add(d.as_micros() as u64, Relaxed);
    }

    fn write(&self, prefix: &str, name: &str, help: &str, out: &mut String) {
        let name = format!("{prefix}:{name}");
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} histogram");
        let mut sum = 0;
        for (end, bucket) in ENDS.iter().zip(&self.buckets) {
            sum += bucket.load(Relaxed);
            let _ = writeln!(out, "{name}_bucket{{le=\"{end}\"}} {sum}");
        }
        let n = self.n.load(Relaxed);
        let seconds = self.micros.load(Relaxed) as f64 / 1e6;
        let _ = writeln!(out, "{name}_bucket{{le=\"+Inf\"}} {n}\n{name}_sum {seconds}\n{name}_count {n}");
    }
}

impl Metrics {
    /// A request came to its first token after `d`.
    pub fn note_first(&self, d: Duration) {
        self.first.note(d);
    }

    /// Between two tokens of a request `d` went by.
    pub fn note_gap(&self, d: Duration) {
        self.gap.note(d);
    }

    /// A generation that began at `start` has ended.
    pub fn note_end(&self, f: &Finished, start: Instant) {
        self.queue.note(Duration::from_secs_f64(f.timings.queue_seconds));
        self.whole.note(start.elapsed());
    }

    /// A request was answered. Paths that do not exist count as one.
    pub fn note_request(&self, path: &str, status: u16) {
        let path = if status == 404 { "other" } else { path };
        let path: String = path.split('/').take(4).collect::<Vec<_>>().join("/");
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        if requests.len() < 512 {
            *requests.entry((path, status)).or_default() += 1;
        }
    }

    /// Appends all to `out`, under names that begin with `prefix`.
    pub fn write(&self, prefix: &str, out: &mut String) {
        self.first.write(prefix, "time_to_first_token_seconds", "From the request to its first token.", out);
        self.gap.write(prefix, "inter_token_seconds", "Between two tokens of a request.", out);
        self.queue.write(prefix, "queue_seconds", "In the queue before the first step.", out);
        self.whole.write(prefix, "request_seconds", "Of whole generations.", out);
        let name = format!("{prefix}:http_requests_total");
        let _ = writeln!(out, "# HELP {name} Requests by path and status.\n# TYPE {name} counter");
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        for ((path, status), n) in requests.iter() {
            let path = path.replace(['\\', '"', '\n'], "_");
            let _ = writeln!(out, "{name}{{path=\"{path}\",status=\"{status}\"}} {n}");
        }
    }
}
