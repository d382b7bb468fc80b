//! A step that is started before the one before it was read: the same texts as without, whatever ends in mid flight.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use firth::{DraftLength, EngineOptions, Params, SpecMode, SpecOptions, StopReason};
use firth_conformance::changed::Changed;
use firth_conformance::models::Random;
use firth_conformance::{cut_law, fixture, gpu, models};
use firth_engine::{Engine, EngineError, Event, JobId, Request, Scheduler};
use firth_gguf::Gguf;
use firth_graph::{Device, Extents, HostValues, LoadError, Lost, Program, Ticket};
use firth_sampling::{Verdict, Watch};

/// What programs did, and what they are to do.
#[derive(Default)]
struct Book {
    under_way: AtomicUsize,
    /// Steps submitted while another was under way.
    ahead: AtomicUsize,
    /// The run that fails: when the count comes to 0.
    fails: AtomicUsize,
}

/// A program of the GPU that is looked at; without `carries` it is asked for one step at a time.
struct Watched {
    program: Box<dyn Program>,
    carries: bool,
    book: Arc<Book>,
}

impl Program for Watched {
    fn submit(&mut self, step: Extents, host: &mut HostValues) -> Result<Ticket, Lost> {
        if self.book.under_way.fetch_add(1, Relaxed) > 0 {
            assert!(!host.carried().is_empty(), "a step ahead takes something from the one before it");
            self.book.ahead.fetch_add(1, Relaxed);
        }
        self.program.submit(step, host)
    }

    fn finish(&mut self, ticket: Ticket, host: &mut HostValues) -> Result<(), Lost> {
        self.book.under_way.fetch_sub(1, Relaxed);
        self.program.finish(ticket, host)?;
        match self.book.fails.fetch_sub(1, Relaxed) {
            1 => Err(Lost { device: "gpu".into(), reason: "as the test wishes".into() }),
            _ => Ok(()),
        }
    }

    fn carries(&mut self, from: usize, to: usize) -> Result<bool, LoadError> {
        Ok(self.carries && self.program.carries(from, to)?)
    }

    fn scratch_bytes(&self) -> u64 {
        self.program.scratch_bytes()
    }
}

/// A model on the GPU, with or without steps ahead.
struct Side {
    s: Scheduler,
    book: Arc<Book>,
}

fn options() -> EngineOptions {
    EngineOptions { ctx: Some(160), parallel: 3, batch: 24, cache_bytes: 1 << 20, ..EngineOptions::default() }
}

fn side(file: &Arc<Gguf>, device: &Arc<dyn Device>, carries: bool, options: &EngineOptions) -> Side {
    let book = Arc::new(Book::default());
    book.fails.store(usize::MAX, Relaxed);
    let kept = book.clone();
    let watched = Changed::wrapped(device.clone(), move |program| {
        Box::new(Watched { program, carries, book: kept.clone() })
    });
    let on = &mut |_| ControlFlow::Continue(());
    let engine = Engine::load(file, vec![watched], options, on).expect("a model of the tests loads");
    Side { s: Scheduler::new(engine), book }
}

/// What became of a request: its text, and how it ended.
type Outcome = (Vec<u32>, Option<StopReason>);

/// What happens to requests from outside, between ticks.
#[derive(Clone, Copy, Default)]
struct Meddling {
    /// The last request comes after so many ticks, not with the others.
    late: usize,
    /// Request 0 is cancelled after so many tokens, from outside.
    cancel: Option<usize>,
    /// Request 1 is ended by whom it is told to, at so many tokens.
    enough: Option<usize>,
    /// Somebody looks at the engine after each so many ticks.
    look: Option<usize>,
}

impl Side {
    /// Runs requests to their ends; a failed tick is tried again.
    fn run(&mut self, requests: Vec<Request>, m: Meddling) -> Vec<Outcome> {
        let mut out: Vec<Outcome> = vec![(Vec::new(), None); requests.len()];
        let mut ids: Vec<JobId> = Vec::new();
        let mut queue = requests.into_iter().peekable();
        for tick in 0.. {
            while queue.peek().is_some() && (queue.len() > 1 || tick >= m.late) {
                ids.extend(queue.next().map(|r| self.s.submit(r).expect("a fair request")));
            }
            if self.s.is_idle() {
                return out;
            }
            // One that fails is tried again.
            let _ = self.s.tick(&mut |id, event| {
                let at = ids.iter().position(|i| *i == id).expect("one of ours");
                match event {
                    Event::Token(t) => out[at].0.push(t),
                    Event::Done(f) => out[at].1 = Some(f.stop),
                    Event::Failed(e) => panic!("request {at}: {e}"),
                    _ => {}
                }
                match at == 1 && m.enough == Some(out[at].0.len()) {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            });
            if m.cancel == Some(out[0].0.len())
                && let Some(f) = self.s.cancel(ids[0])
            {
                out[0].1 = Some(f.stop);
            }
            if m.look.is_some_and(|n| tick % n == 0) {
                let engine = self.s.engine();
                if let Ok(seq) = engine.open(9) {
                    engine.close(seq);
                }
            }
        }
        unreachable!("it returns")
    }

    fn ahead(&self) -> usize {
        self.book.ahead.load(Relaxed)
    }
}

fn requests(n: usize, vocab: usize) -> Vec<Request> {
    let mut r = Random(3);
    let mut one = |i: usize| {
        let ids = (0..3 + 19 * i).map(|_| r.below(vocab) as u32).collect();
        let temperature = if i == 1 { 0.0 } else { 0.9 };
        Request::new(ids, Params { temperature, seed: i as u64, ..Params::default() }, 13 + 2 * i)
    };
    (0..n).map(&mut one).collect()
}

/// Ends a text before its token number `n`.
struct Before(usize);

impl Watch for Before {
    fn push(&mut self, ids: &[u32]) -> Verdict {
        match self.0.checked_sub(ids.len()) {
            Some(left) => {
                self.0 = left;
                Verdict::Continue
            }
            None => Verdict::StopAfter(0),
        }
    }
}

const MODELS: [&str; 2] = ["qwen3-tiny-Q8_0.gguf", "qwen35-tiny-mtp-Q4_0.gguf"];

/// Cuts, mates, ends by a token, from within and from outside; what the cache holds afterwards serves as it should.
#[test]
fn texts_are_those_of_single_steps() {
    let Some(device) = gpu::device() else { return };
    for (name, cases) in MODELS.into_iter().zip([5, 2]) {
        let Some(file) = models::tiny(name) else { return };
        check(name, &file, &device, 4000, cases);
    }
    // Keys and values in a window.
    let Some(shared) = fixture::shared() else { return };
    let f = fixture::read(&shared.join("fixtures/arch-route"), "gemma3-dense");
    check("gemma3-dense", &f.file, &device, cut_law::vocab(&f.file), 1);
}

/// The first so many of the cases.
fn check(name: &str, file: &Arc<Gguf>, device: &Arc<dyn Device>, vocab: usize, cases: usize) {
    let mut plain = side(file, device, false, &options());
    let mut ahead = side(file, device, true, &options());
    let base = plain.run(requests(4, vocab), Meddling::default());
    // Each text ends at a token of its own, too: while another step is under way.
    let ending = || {
        let mut all = requests(4, vocab);
        all.iter_mut().zip(&base).skip(1).for_each(|(r, (ids, _))| r.end_ids = vec![ids[6]]);
        all
    };
    let watched = || {
        let mut all = requests(4, vocab);
        all[2].watch = Some(Box::new(Before(7)));
        all
    };
    let penalised = || {
        let mut all = requests(4, vocab);
        all[1].params.repeat_penalty = 1.3;
        all
    };
    let m = Meddling::default();
    type Make<'a> = &'a dyn Fn() -> Vec<Request>;
    let plainly: Make = &|| requests(4, vocab);
    let all: [(&str, Make, Meddling); 5] = [
        ("end tokens, and enough", &ending, Meddling { enough: Some(4), ..m }),
        ("late, and cancelled", plainly, Meddling { late: 6, cancel: Some(6), ..m }),
        ("a watch", &watched, m),
        ("a look", plainly, Meddling { look: Some(3), ..m }),
        ("a penalty", &penalised, m),
    ];
    for (i, (case, make, meddling)) in all.into_iter().take(cases).enumerate() {
        let expected = plain.run(make(), meddling);
        let before = ahead.ahead();
        let found = ahead.run(make(), meddling);
        assert_eq!(found, expected, "{name}: {case}");
        assert!(ahead.ahead() > before + 2, "{name}: {case}: {} steps ahead", ahead.ahead() - before);
        assert_eq!(ahead.s.memory().stats().sequences, 0, "{name}: {case}: all sequences have ended");
        if i > 0 {
            continue;
        }
        // What was said goes on from the cache.
        let next = || {
            let both = make().into_iter().zip(&expected);
            let again = both.map(|(r, (said, _))| {
                let ids = [&r.ids[..], said, &[5, 6]].concat();
                Request::new(ids, r.params, 3)
            });
            again.collect::<Vec<_>>()
        };
        let expected = plain.run(next(), m);
        assert_eq!(ahead.run(next(), m), expected, "{name}: {case}, the next turn");
    }
    assert_eq!(plain.ahead(), 0);
}

/// Who guesses sees what was sampled first.
#[test]
fn a_drafting_head_has_one_step_at_a_time() {
    let (Some(file), Some(device)) = (models::tiny(MODELS[1]), gpu::device()) else { return };
    let spec = SpecOptions { mode: SpecMode::Mtp, max: 2, length: DraftLength::Fixed };
    let base = side(&file, &device, true, &options()).run(requests(3, 4000), Meddling::default());
    let mut drafting = side(&file, &device, true, &EngineOptions { spec, ..options() });
    assert_eq!(drafting.run(requests(3, 4000), Meddling::default()), base);
    assert_eq!(drafting.ahead(), 0);
}

/// A failure of either of two steps that are under way, with one request ending in mid flight.
#[test]
fn what_fails_in_flight_is_computed_again() {
    let Some(device) = gpu::device() else { return };
    for name in MODELS {
        let Some(file) = models::tiny(name) else { return };
        let base = side(&file, &device, true, &options()).run(requests(3, 4000), Meddling::default());
        let make = || {
            let mut all = requests(3, 4000);
            all[1].end_ids = vec![base[1].0[5]];
            all
        };
        let looks = [None, Some(2)].map(|look| Meddling { look, ..Meddling::default() });
        let expected = side(&file, &device, false, &options()).run(make(), looks[0]);
        let mut sides = side(&file, &device, true, &options());
        for (fails, m) in (1..18).step_by(3).map(|n| (n, looks[n % 2])) {
            sides.book.fails.store(fails, Relaxed);
            sides.s.engine().memory().clear_snapshots();
            assert_eq!(sides.run(make(), m), expected, "{name}: run {fails} failed");
        }
        assert!(sides.ahead() > 30, "{}", sides.ahead());
        assert!(sides.book.fails.load(Relaxed) > 32, "the last failure came to pass");
    }
}

/// Pages that run out while a step is under way: who is parked says the same.
#[test]
fn who_is_parked_in_flight_says_the_same() {
    let (Some(file), Some(device)) = (models::tiny(MODELS[0]), gpu::device()) else { return };
    // Two pages each for the prompts, and a third for the texts.
    let make = || -> Vec<Request> {
        let mut r = Random(5);
        let mut one = |i: u64| {
            let ids = (0..100 + 7 * i).map(|_| r.below(4000) as u32).collect();
            Request::new(ids, Params { temperature: 0.9, seed: i, ..Params::default() }, 45)
        };
        (0..3).map(&mut one).collect()
    };
    let expected = side(&file, &device, false, &options()).run(make(), Meddling::default());
    let mut few = EngineOptions { cache_bytes: 0, ..options() };
    let plan = firth_engine::plan_only(&file, std::slice::from_ref(&device), &few).expect("it fits");
    let pages: u64 = plan.states.iter().map(|(_, bytes, n)| (bytes * n) as u64).sum();
    few.max_bytes = Some(plan.weight_bytes.iter().sum::<u64>() + plan.scratch_bytes + pages * 2 / 3);
    let mut few = side(&file, &device, true, &few);
    assert_eq!(few.run(make(), Meddling::default()), expected);
    assert!(few.s.parked() > 0 && few.ahead() > 30, "{} parked, {} ahead", few.s.parked(), few.ahead());
    assert_eq!(few.s.memory().stats().sequences, 0);
}

/// A lost adapter ends both steps.
#[test]
fn an_adapter_lost_in_flight_is_an_error() {
    let Some(file) = models::tiny(MODELS[0]) else { return };
    let Some(lost) = gpu::open(firth_gpu::GpuOptions::default()).map(Arc::new) else { return };
    let device: Arc<dyn Device> = lost.clone();
    let mut side = side(&file, &device, true, &options());
    let all: Vec<_> =
        requests(2, 4000).into_iter().map(|r| side.s.submit(r).expect("a fair request")).collect();
    let mut n = 0;
    let failed = loop {
        let ticked = side.s.tick(&mut |_, event| {
            n += usize::from(matches!(event, Event::Token(_)));
            ControlFlow::Continue(())
        });
        if n >= 12 {
            lost.lose();
        }
        if let Err(e) = ticked {
            break e;
        }
    };
    assert!(matches!(failed, EngineError::Lost(_)), "{failed}");
    assert!(side.ahead() > 0 && n < 40);
    assert!(all.into_iter().all(|job| side.s.cancel(job).is_some()), "they can be ended");
    assert_eq!(side.s.memory().stats().sequences, 0);
}
