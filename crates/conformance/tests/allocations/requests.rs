//! Random requests of a scheduler: more than fit, so that they wait, are parked and come back.

use std::ops::ControlFlow;
use std::sync::Arc;

use firth::{DraftLength, Dry, EngineOptions, Params, Pooling, SpecMode, SpecOptions};
use firth_conformance::models::{self, Random};
use firth_cpu::Level;
use firth_engine::{Event, JobId, Request, Scheduler};
use firth_gguf::Gguf;
use firth_sampling::{Constraint, ConstraintError, Verdict, Watch};

use crate::counter::counted;

/// Allows every second id.
struct Even(u32);

impl Constraint for Even {
    fn mask(&mut self, out: &mut [u32]) -> Result<(), ConstraintError> {
        out.fill(0x5555_5555);
        Ok(())
    }

    fn accept(&mut self, id: u32) -> Result<(), ConstraintError> {
        self.0 += 1;
        if id.is_multiple_of(2) { Ok(()) } else { Err(ConstraintError::Refused { id }) }
    }

    fn rollback(&mut self, n: usize) {
        self.0 -= n as u32;
    }
}

/// Stops at ids of a kind.
struct Stop;

impl Watch for Stop {
    fn push(&mut self, ids: &[u32]) -> Verdict {
        ids.iter().position(|id| id.is_multiple_of(37)).map_or(Verdict::Continue, Verdict::StopAfter)
    }
}

/// A scheduler under more requests than it has pages for.
pub struct Requests {
    scheduler: Scheduler,
    r: Random,
    shared: Vec<u32>,
    newest: Option<JobId>,
    tokens: usize,
    ends: usize,
    embedded: usize,
    drafted: usize,
    drafts: bool,
}

impl Requests {
    pub fn new(file: &Arc<Gguf>, mode: SpecMode) -> Requests {
        let spec = SpecOptions { mode, max: 4, length: DraftLength::Random(3) };
        let mut options = EngineOptions {
            spec,
            ctx: Some(256),
            parallel: 4,
            batch: 48,
            cache_bytes: 0,
            embeddings: true,
            pooling: Some(Pooling::Mean),
            ..EngineOptions::default()
        };
        let devices = vec![models::cpu(Level::detect(), 1)];
        let plan = firth_engine::plan_only(file, &devices, &options).expect("a model of the tests");
        // A quarter of the pages of four whole sequences, and a little more.
        let slots = plan.slot_bytes * 2 * options.parallel as u64;
        let pages = plan.states.iter().map(|(_, bytes, n)| (bytes * n) as u64).sum::<u64>() - slots;
        let fixed = plan.weight_bytes[0] + plan.scratch_bytes + slots;
        options.max_bytes = Some(fixed + pages * 2 / 5);
        options.cache_bytes = pages / 4;
        let engine = models::engine(file, &options, Level::detect(), 3);
        let n_vocab = engine.info().n_vocab;
        let mut r = Random(11);
        let shared = (0..256).map(|_| r.below(n_vocab) as u32).collect();
        Requests {
            scheduler: Scheduler::new(engine),
            r,
            shared,
            newest: None,
            tokens: 0,
            ends: 0,
            embedded: 0,
            drafted: 0,
            drafts: mode != SpecMode::None,
        }
    }

    /// Submits what is missing and runs a tick, `n` times; what they allocate is not counted.
    pub fn warm_up(&mut self, n: usize) {
        for _ in 0..n {
            self.submit();
            self.tick();
        }
    }

    /// Submits what is missing and runs a tick, `n` times and on until everything was seen: the pace of prompts and
    /// drafts follows measured times, so how soon that is differs. The number of the first tick that allocated.
    pub fn run(&mut self, n: usize) -> Option<usize> {
        for i in 0..10 * n {
            if i >= n && self.seen() {
                break;
            }
            self.submit();
            if counted(|| self.tick()).1 > 0 {
                return Some(i);
            }
        }
        None
    }

    /// Fails unless jobs waited, were parked, found a prefix, spoke, were embedded and ended.
    pub fn check_seen(&mut self) {
        assert!(self.seen(), "parked, attached, evicted, spoken, ended, embedded: {:?}", self.counts());
        assert_eq!(self.drafted > 10, self.drafts, "{} tokens drafted", self.drafted);
    }

    fn seen(&mut self) -> bool {
        self.counts().iter().all(|n| *n > 10) && (self.drafted > 10 || !self.drafts)
    }

    fn counts(&mut self) -> [usize; 6] {
        let stats = self.scheduler.engine().memory().stats();
        let parked = self.scheduler.parked() as usize;
        [parked, stats.attached as usize, stats.evictions as usize, self.tokens, self.ends, self.embedded]
    }

    fn submit(&mut self) {
        while self.scheduler.waiting() < 3 {
            let n = 1 + self.r.below(180);
            let mut ids = self.shared[..n].to_vec();
            ids.push(self.r.below(64) as u32);
            if self.r.below(6) == 0 {
                self.newest = Some(self.scheduler.submit(Request::embedding(ids)).expect("a good text"));
                continue;
            }
            let seed = self.r.draw();
            let host = seed.is_multiple_of(3);
            let params = Params {
                typical_p: if host { 0.9 } else { 1.0 },
                dry: Dry { multiplier: if host { 0.8 } else { 0.0 }, last_n: 200, ..Dry::default() },
                seed,
                temperature: [0.0, 0.9][self.r.below(2)],
                repeat_penalty: [1.0, 1.2][self.r.below(2)],
                bias: (0..self.r.below(50) as u32).map(|i| (i, 0.1)).collect(),
                ..Params::default()
            };
            let mut request = Request::new(ids, params, 1 + self.r.below(70));
            request.domain = self.r.below(2) as u64;
            request.cache = self.r.below(4) > 0;
            request.end_ids = vec![self.r.below(64) as u32];
            // A list of likely tokens would be an allocation of its own, for whoever is told.
            request.logprobs = seed.is_multiple_of(5).then_some(0);
            request.prompt_logprobs = !request.cache && seed.is_multiple_of(2);
            if self.r.below(3) == 0 {
                request.constraint = Some(Box::new(Even(0)));
            }
            if self.r.below(3) == 0 {
                request.watch = Some(Box::new(Stop));
            }
            self.newest = Some(self.scheduler.submit(request).expect("a good request"));
        }
    }

    fn tick(&mut self) {
        let cancelled = if self.r.below(40) == 0 { self.newest.take() } else { None };
        if let Some(id) = cancelled {
            self.scheduler.cancel(id);
        }
        let hear = self.r.below(100) > 0;
        let (tokens, ends, drafted) = (&mut self.tokens, &mut self.ends, &mut self.drafted);
        let embedded = &mut self.embedded;
        let on = &mut |_, event| {
            match event {
                Event::Token(_) => *tokens += 1,
                Event::Embedding(_) => *embedded += 1,
                Event::Done(f) => {
                    *ends += 1;
                    *drafted += f.timings.draft_n;
                }
                Event::Failed(e) => panic!("{e}"),
                _ => {}
            }
            if hear { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        self.scheduler.tick(on).expect("a step");
    }
}

/// Allocates once: for the counter's own check.
pub fn something() {
    drop(std::hint::black_box(vec![1u8; 100]));
}
