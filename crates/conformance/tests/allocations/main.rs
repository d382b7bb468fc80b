//! Law 2: steps allocate nothing, on any thread, whatever they carry.
//!
//! A program without the test harness, whose own threads would be counted.

mod counter;
mod gpu;
mod requests;
mod steps;

use std::sync::Arc;

use firth::SpecMode;
use firth_conformance::{fixture, models};
use firth_gguf::Gguf;

/// Steps before the count: everything has happened once.
const FIRST: usize = 400;
const STEPS: usize = 2000;

fn check(name: &str, file: &Arc<Gguf>, windows: bool) {
    let mut steps = steps::Steps::new(file);
    steps.warm_up(FIRST);
    steps.check_seen(windows);
    assert_eq!(steps.run(STEPS), None, "{name}: a step allocated; the place is shown above");
    steps.check_seen(windows);
    check_ticks(name, file, SpecMode::None, STEPS);
    println!("{name}: {STEPS} steps without an allocation");
}

fn check_ticks(name: &str, file: &Arc<Gguf>, mode: SpecMode, n: usize) {
    let mut requests = requests::Requests::new(file, mode);
    requests.warm_up(FIRST);
    assert_eq!(requests.run(n), None, "{name}, {mode:?}: a tick allocated; the place is shown above");
    requests.check_seen();
    println!("{name}, drafts by {mode:?}: {n} ticks without an allocation");
}

fn main() {
    // Where it is asked for, wgpu traces each of its locks, and a trace within a trace waits for ever.
    // SAFETY: there is no other thread yet.
    unsafe { std::env::set_var("RUST_LIB_BACKTRACE", "0") };
    counter::check();
    let Some(shared) = fixture::shared() else { return };
    let tiny = |name| models::tiny(name).expect("the fixtures are there");
    let plain = tiny("qwen3-tiny-Q8_0.gguf");
    gpu::check("qwen3-tiny", &plain);
    gpu::check("qwen35-tiny", &tiny("qwen35-tiny-mtp-Q4_0.gguf"));
    for name in ["gemma3-dense", "llama-moe"] {
        let f = fixture::read(&shared.join("fixtures/arch"), name);
        check(name, &f.file, name.starts_with("gemma3"));
    }
    check("qwen3-tiny", &plain, false);
    check_ticks("qwen3-tiny", &plain, SpecMode::Ngram, STEPS);
    // Snapshots of a recurrence serve few lengths: it takes longer until some were found.
    check_ticks("qwen35-tiny", &tiny("qwen35-tiny-mtp-Q4_0.gguf"), SpecMode::Mtp, 2 * STEPS);
}
