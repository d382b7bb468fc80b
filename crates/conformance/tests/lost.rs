//! A device that fails in the middle of anything: the error is a value, and what it spoilt is computed again.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use firth::{DraftLength, EngineOptions, Params, SpecMode, SpecOptions};
use firth_conformance::changed::Changed;
use firth_conformance::models;
use firth_cpu::Level;
use firth_engine::{Engine, Event, Request, Scheduler};
use firth_gguf::Gguf;
use firth_graph::{Extents, HostValues, Lost, Program, Ticket};

/// A program that fails once: when the count of runs comes to 0.
struct Failing {
    program: Box<dyn Program>,
    left: Arc<AtomicUsize>,
}

impl Program for Failing {
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
    let count = left.clone();
    let wrap = move |program| -> Box<dyn Program> { Box::new(Failing { program, left: count.clone() }) };
    let failing = Changed::wrapped(models::cpu(Level::detect(), 2), wrap);
    let spec = SpecOptions { mode, max: 3, length: DraftLength::Fixed };
    let options = EngineOptions { ctx: Some(128), parallel: 3, batch: 32, spec, ..EngineOptions::default() };
    let on = &mut |_| ControlFlow::Continue(());
    let engine = Engine::load(file, vec![failing], &options, on).expect("a tiny model");
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
