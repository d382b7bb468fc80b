//! Steps on a GPU: nothing of firth allocates, and what the library does is the same every step.

use std::ops::ControlFlow;
use std::sync::Arc;

use firth::{Device, EngineOptions, Params};
use firth_conformance::gpu;
use firth_engine::{Engine, Feed, Request, Sampler, Scheduler, Seq, Want};
use firth_gguf::Gguf;

use crate::counter::{expected, owners};

const FIRST: usize = 40;
const STEPS: usize = 60;

/// A sequence that decodes.
struct Decoding {
    engine: Engine,
    seq: Seq,
    sampler: Sampler,
    id: u32,
}

impl Decoding {
    fn new(file: &Arc<Gguf>, device: Arc<dyn Device>) -> Decoding {
        let options = EngineOptions {
            ctx: Some(FIRST + STEPS + 8),
            batch: 8,
            cache_bytes: 0,
            ..EngineOptions::default()
        };
        let on = &mut |_| ControlFlow::Continue(());
        let mut engine = Engine::load(file, vec![device], &options, on).expect("a model of the tests loads");
        let seq = engine.open(0).expect("there is room for one");
        Decoding { engine, seq, sampler: Sampler::new(Params { seed: 3, ..Params::default() }, 0, 0), id: 1 }
    }

    fn one(&mut self) {
        let (ids, sampler) = (&[self.id], Some(&self.sampler));
        let feed = Feed { seq: self.seq, ids, embeds: None, want: Want::Last, sampler };
        self.engine.step(&[feed]).expect("the device works");
        self.id = self.engine.sampled(0, 0).expect("something is allowed");
        self.sampler.push(self.id);
    }
}

/// Ticks of a scheduler, whose steps start before those before them are read.
fn check_ahead(name: &str, file: &Arc<Gguf>, device: Arc<dyn Device>) {
    let Decoding { mut engine, seq, .. } = Decoding::new(file, device);
    engine.close(seq);
    let mut s = Scheduler::new(engine);
    let params = Params { seed: 3, ..Params::default() };
    s.submit(Request::new(vec![1], params, FIRST + STEPS)).expect("a fair request");
    let mut tick = || s.tick(&mut |_, _| ControlFlow::Continue(())).expect("the device works");
    (0..FIRST).for_each(|_| tick());
    let ours: Vec<String> = owners(&mut tick).into_iter().filter(|o| o.starts_with("firth")).collect();
    assert!(ours.is_empty(), "{name}: a tick on the GPU allocated in {ours:?}");
}

/// Decoded tokens of a model on the first adapter.
pub fn check(name: &str, file: &Arc<Gguf>) {
    let Some(device) = gpu::device() else { return };
    check_ahead(name, file, device.clone());
    let mut d = Decoding::new(file, device);
    (0..FIRST).for_each(|_| d.one());
    let ours: Vec<String> = owners(|| d.one()).into_iter().filter(|o| o.starts_with("firth")).collect();
    assert!(ours.is_empty(), "{name}: a step on the GPU allocated in {ours:?}");
    let counts: Vec<usize> = (1..STEPS).map(|_| expected(|| d.one())).collect();
    println!("{name} on a GPU: {} allocations a step, all of them the library's", counts[0]);
    assert!(counts.iter().all(|n| *n == counts[0]), "{name}: allocations of steps differ: {counts:?}");
}
