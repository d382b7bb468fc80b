//! Law 2: steps allocate nothing, on any thread, whatever they carry.
//!
//! A program without the test harness, whose own threads would be counted.

mod counter;
mod requests;
mod steps;

use std::sync::Arc;

use firth_conformance::fixture;
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
    let mut requests = requests::Requests::new(file);
    requests.warm_up(FIRST);
    assert_eq!(requests.run(STEPS), None, "{name}: a tick allocated; the place is shown above");
    requests.check_seen();
    println!("{name}: {STEPS} steps and {STEPS} ticks without an allocation");
}

fn main() {
    counter::check();
    let Some(shared) = fixture::shared() else { return };
    for name in ["gemma3-dense", "llama-moe"] {
        let f = fixture::read(&shared.join("fixtures/arch"), name);
        check(name, &f.file, name.starts_with("gemma3"));
    }
    let tiny = shared.join("fixtures/tiny/qwen3-tiny-Q8_0.gguf");
    check("qwen3-tiny", &Arc::new(Gguf::open(&tiny).expect("a tiny model")), false);
}
