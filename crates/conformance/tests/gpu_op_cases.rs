//! Every op on the GPU against its reference; a case that the device cannot run fails.

use firth_conformance::harness::Case;
use firth_conformance::{cases, gpu};

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
    assert!(failed.is_empty(), "{} of {} cases failed:\n{}", failed.len(), all.len(), failed.join("\n"));
}

#[test]
fn elementwise() {
    group("elementwise");
}

#[test]
fn layouts() {
    group("layouts");
}

#[test]
fn rows() {
    group("rows");
}

#[test]
fn experts() {
    group("experts");
}

#[test]
fn products() {
    group("products");
}

#[test]
fn attention() {
    group("attention");
}

#[test]
fn recurrent() {
    group("recurrent");
}
