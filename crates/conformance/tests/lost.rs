//! A device that fails in the middle of anything: the error is a value, and what it spoilt is computed again.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use firth::{Device, DraftLength, EngineOptions, Params, SpecMode, SpecOptions};
use firth_conformance::models;
use firth_cpu::Level;
use firth_engine::{Engine, Event, Request, Scheduler};
use firth_gguf::Gguf;
use firth_graph::*;

/// A CPU whose programs fail once: when the count of runs comes to 0.
struct Failing {
    cpu: Arc<dyn Device>,
    left: Arc<AtomicUsize>,
}

struct FailingProgram {
    program: Box<dyn Program>,
    left: Arc<AtomicUsize>,
}

impl Device for Failing {
    fn info(&self) -> &DeviceInfo {
        self.cpu.info()
    }

    fn supports(&self, op: &Op, inputs: &[Type]) -> bool {
        self.cpu.supports(op, inputs)
    }

    fn weight_bytes(&self, w: &WeightSpec) -> u64 {
        self.cpu.weight_bytes(w)
    }

    fn load(
        &self,
        w: &WeightSpec,
        src: &dyn WeightBytes,
        on: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<WeightId, LoadError> {
        self.cpu.load(w, src, on)
    }

    fn state(&self, spec: &StateSpec, n: usize) -> Result<StateId, LoadError> {
        self.cpu.state(spec, n)
    }

    fn copy_page(&self, state: StateId, from: usize, to: usize, rows: usize) -> Result<(), Lost> {
        self.cpu.copy_page(state, from, to, rows)
    }

    fn read_page(&self, state: StateId, page: usize, out: &mut [u8]) -> Result<(), Lost> {
        self.cpu.read_page(state, page, out)
    }

    fn write_page(&self, state: StateId, page: usize, bytes: &[u8]) -> Result<(), Lost> {
        self.cpu.write_page(state, page, bytes)
    }

    fn compile(&self, segment: &Segment) -> Result<Box<dyn Program>, LoadError> {
        let program = self.cpu.compile(segment)?;
        Ok(Box::new(FailingProgram { program, left: self.left.clone() }))
    }
}

impl Program for FailingProgram {
    fn submit(&mut self, step: Extents, host: &mut HostValues) -> Result<Ticket, Lost> {
        self.program.submit(step, host)
    }

    fn finish(&mut self, ticket: Ticket, host: &mut HostValues) -> Result<(), Lost> {
        // The step has written all that it writes, and nobody learns of it.
        self.program.finish(ticket, host)?;
        match self.left.fetch_sub(1, Relaxed) {
            1 => Err(Lost { device: "cpu".into(), reason: "as the test wishes".into() }),
            _ => Ok(()),
        }
    }

    fn scratch_bytes(&self) -> u64 {
        self.program.scratch_bytes()
    }
}

fn requests() -> Vec<Request> {
    let one = |i: u32| {
        let params = Params { temperature: 0.7, seed: u64::from(i), ..Params::default() };
        Request::new((0..20 + 9 * i).map(|t| 300 + t * 7 % 900).collect(), params, 12)
    };
    (0..3).map(one).collect()
}

/// Texts of all requests where run number `fails` fails, and whether one did.
fn texts(file: &Arc<Gguf>, mode: SpecMode, fails: usize) -> (Vec<Vec<u32>>, bool) {
    let left = Arc::new(AtomicUsize::new(usize::MAX));
    let failing = Failing { cpu: models::cpu(Level::detect(), 2), left: left.clone() };
    let spec = SpecOptions { mode, max: 3, length: DraftLength::Fixed };
    let options = EngineOptions { ctx: Some(128), parallel: 3, batch: 32, spec, ..EngineOptions::default() };
    let on = &mut |_| ControlFlow::Continue(());
    let engine = Engine::load(file, vec![Arc::new(failing)], &options, on).expect("a tiny model");
    let mut s = Scheduler::new(engine);
    let ids: Vec<_> = requests().into_iter().map(|r| s.submit(r).expect("a fair request")).collect();
    let mut texts = vec![Vec::new(); ids.len()];
    left.store(fails, Relaxed);
    let mut failed = false;
    while !s.is_idle() {
        let ticked = s.tick(&mut |id, event| {
            let at = ids.iter().position(|i| *i == id).expect("one of ours");
            match event {
                Event::Token(t) => texts[at].push(t),
                Event::Failed(e) => panic!("request {at}: {e}"),
                _ => {}
            }
            ControlFlow::Continue(())
        });
        failed |= ticked.is_err();
    }
    (texts, failed)
}

#[track_caller]
fn check(name: &str, mode: SpecMode) {
    let Some(file) = models::tiny(name) else { return };
    let (base, failed) = texts(&file, SpecMode::None, usize::MAX);
    assert!(!failed);
    for fails in 1.. {
        let (found, failed) = texts(&file, mode, fails);
        assert_eq!(found, base, "{name}, {mode:?}: run {fails} failed");
        if !failed {
            assert!(fails > 10, "{name}, {mode:?}: only {fails} runs");
            return;
        }
    }
}

#[test]
fn attention() {
    check("qwen3-tiny-Q8_0.gguf", SpecMode::None);
}

/// States are written in place, and a drafting head has programs of its own that fail.
#[test]
fn recurrences_and_drafts() {
    check("qwen35-tiny-mtp-Q4_0.gguf", SpecMode::None);
    check("qwen35-tiny-mtp-Q4_0.gguf", SpecMode::Mtp);
}
