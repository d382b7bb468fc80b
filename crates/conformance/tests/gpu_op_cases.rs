//! Every op on the GPU against its reference; a case that the device cannot run fails.

use std::collections::BTreeSet;
use std::sync::Mutex;

use firth_conformance::harness::Case;
use firth_conformance::{cases, gpu, wgsl};

/// Checks a group of cases; with `FIRTH_CASE` only those whose name contains it, each with its time.
fn group(name: &str) {
    let Some(device) = gpu::device() else { return };
    let only = std::env::var("FIRTH_CASE").ok();
    let mut all = cases::group(name);
    all.retain(|c| only.as_ref().is_none_or(|o| c.name.contains(o)));
    let one = |c: &Case| {
        let start = std::time::Instant::now();
        let failed = gpu::check(c, &device).err();
        if only.is_some() {
            println!("{}: {:.2} s", c.name, start.elapsed().as_secs_f64());
        }
        failed
    };
    let failed: Vec<String> = all.iter().filter_map(one).collect();
    audit_kernels();
    assert!(failed.is_empty(), "{} of {} cases failed:\n{}", failed.len(), all.len(), failed.join("\n"));
}

/// Every kernel made so far keeps to the base.
fn audit_kernels() {
    static SEEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let kernels = gpu::shared().map(|d| d.kernels()).unwrap_or_default();
    wgsl::dump(&kernels);
    let mut wrong = Vec::new();
    for (name, text) in kernels {
        let new = SEEN.lock().expect("no test panics in here").insert(text.clone());
        if let Some(Err(e)) = new.then(|| wgsl::audit(&text)) {
            wrong.push(format!("{name}: {e}"));
        }
    }
    assert!(wrong.is_empty(), "kernels beyond the base of WebGPU:\n{}", wrong.join("\n"));
}

/// The same ids as the host's sampler draws: ties, -inf, top-k beyond the vocabulary, p of 0 and 1.
#[test]
fn sampler_draws_as_the_host() {
    let Some(device) = gpu::device() else { return };
    let case = cases::many_samples(10_000);
    if let Err(e) = gpu::check_once(&case, &device) {
        panic!("{e}");
    }
}

firth_conformance::test_groups!(group);
