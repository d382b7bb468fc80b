//! Every op on the GPU against its reference.

use firth_conformance::harness::Case;
use firth_conformance::{cases, gpu};
use firth_graph::{OpNode, Type};

/// Ops without a kernel on the GPU: those of single architectures, which run on the CPU.
const LACKING: &[&str] =
    &["attend_chosen", "hyper_weights", "ngram_rows", "pool_keys", "stream_mix", "top_k_select"];

/// Checks a group of cases; with `FIRTH_CASE` only those whose name contains it, each with its time.
fn group(name: &str) {
    let Some(device) = gpu::device() else { return };
    let only = std::env::var("FIRTH_CASE").ok();
    let all = cases::group(name);
    // What the device says it lacks is no failure, but is told.
    let lacks = |c: &Case| {
        let types = |o: &OpNode| o.inputs.iter().map(|n| c.graph.values[n.idx()].ty).collect::<Vec<Type>>();
        c.graph.ops.iter().any(|o| LACKING.contains(&o.op.name()) && !device.supports(&o.op, &types(o)))
    };
    let (without, with): (Vec<Case>, Vec<Case>) = all.into_iter().partition(|c| lacks(c));
    without.iter().for_each(|c| println!("not on the GPU: {}", c.name));
    let mut all = with;
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
