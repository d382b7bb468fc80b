//! Random graphs over a GPU and a CPU with kernels missing at random: what the reference says, or a refusal.

use std::ops::ControlFlow;
use std::sync::Arc;

use firth_conformance::data::Rng;
use firth_conformance::harness::{against_reference, cpu, load, run};
use firth_conformance::{gpu, random};
use firth_cpu::Level;
use firth_graph::*;

/// As many as fit a test; `FIRTH_GRAPHS` asks for another number.
const GRAPHS: usize = 400;

/// A device without some of its kernels.
struct Lacking {
    inner: Arc<dyn Device>,
    missing: Vec<&'static str>,
}

impl Device for Lacking {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn supports(&self, op: &Op, inputs: &[Type]) -> bool {
        !self.missing.contains(&op.name()) && self.inner.supports(op, inputs)
    }

    fn weight_bytes(&self, w: &WeightSpec) -> u64 {
        self.inner.weight_bytes(w)
    }

    fn load(
        &self,
        w: &WeightSpec,
        src: &dyn WeightBytes,
        on: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<WeightId, LoadError> {
        self.inner.load(w, src, on)
    }

    fn state(&self, spec: &StateSpec, n: usize) -> Result<StateId, LoadError> {
        self.inner.state(spec, n)
    }

    fn copy_page(&self, state: StateId, from: usize, to: usize, rows: usize) -> Result<(), Lost> {
        self.inner.copy_page(state, from, to, rows)
    }

    fn read_page(&self, state: StateId, page: usize, out: &mut [u8]) -> Result<(), Lost> {
        self.inner.read_page(state, page, out)
    }

    fn write_page(&self, state: StateId, page: usize, bytes: &[u8]) -> Result<(), Lost> {
        self.inner.write_page(state, page, bytes)
    }

    fn compile(&self, segment: &Segment) -> Result<Box<dyn Program>, LoadError> {
        self.inner.compile(segment)
    }
}

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
    let mut lacking = |inner: Arc<dyn Device>| -> Arc<dyn Device> {
        let missing = Op::NAMES.iter().copied().filter(|_| rng.once_in(10)).collect();
        Arc::new(Lacking { inner, missing })
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
