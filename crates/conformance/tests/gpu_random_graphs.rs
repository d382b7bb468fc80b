//! Random graphs over a GPU and a CPU with kernels missing at random: what the reference says, or a refusal.

use std::sync::Arc;

use firth_conformance::changed::Changed;
use firth_conformance::data::Rng;
use firth_conformance::harness::{against_reference, cpu, load, run};
use firth_conformance::{gpu, random};
use firth_cpu::Level;
use firth_graph::*;

/// As many as fit a test; `FIRTH_GRAPHS` asks for another number.
const GRAPHS: usize = 400;

#[derive(Default, Debug)]
struct Tally {
    loaded: usize,
    refused: usize,
    /// Programs with something that crosses between devices.
    crossed: usize,
    failed: Vec<String>,
}

fn one(seed: usize, device: &Arc<dyn Device>, tally: &mut Tally) {
    let case = random::case(seed);
    // An expert chosen by a rounding is another function.
    if case.graph.ops.iter().any(|o| o.op.name() == "router") {
        return;
    }
    let mut rng = Rng::new(&format!("gpu {seed}"));
    let mut lacking = |inner: Arc<dyn Device>| {
        let missing = Op::NAMES.iter().copied().filter(|_| rng.once_in(10)).collect();
        Changed::without(inner, missing)
    };
    let level = Level::available().last().expect("a level");
    let devices = vec![lacking(device.clone()), lacking(cpu("cpu", level, 1, Vec::new()))];
    let bits = rng.bits();
    let prefer = |p: Part| Rng::new(&format!("{p:?} {bits}")).below(2);
    let policy = Policy { prefer: &prefer, allow_transfers: !seed.is_multiple_of(4) };
    let weights = case.weights();
    match load(&case.graph, &weights, case.pages, devices, &policy) {
        Err(_) => tally.refused += 1,
        Ok(mut runner) => {
            tally.loaded += 1;
            tally.crossed += usize::from(runner.plan().transfers().next().is_some());
            let found = run(&case, &mut runner, 0);
            let judged = found.and_then(|bits| against_reference(&case, &weights, &bits, 2e-2));
            tally.failed.extend(judged.err());
        }
    }
}

#[test]
fn graphs_over_both_agree_with_the_reference() {
    let Some(device) = gpu::device() else { return };
    let graphs = std::env::var("FIRTH_GRAPHS").ok().and_then(|n| n.parse().ok()).unwrap_or(GRAPHS);
    let mut tally = Tally::default();
    (0..graphs).for_each(|seed| one(seed, &device, &mut tally));
    println!("{} loaded, {} crossed, {} refused", tally.loaded, tally.crossed, tally.refused);
    assert!(tally.failed.is_empty(), "{} failed:\n{}", tally.failed.len(), tally.failed.join("\n"));
    assert!(3 * tally.loaded >= graphs / 2 && 3 * tally.crossed >= tally.loaded, "{tally:?}");
    assert!(tally.refused > 0, "{tally:?}");
}
