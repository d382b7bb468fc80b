//! Requests beside each other: each gets what it would get alone, and a failure reaches the one who caused it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::thread::sleep;
use std::time::Duration;

use firth::{EngineError, EngineOptions, Params, StopReason};
use firth_conformance::changed::Changed;
use firth_conformance::models::{self, Random};
use firth_cpu::Level;
use firth_engine::{Engine, Event, Feed, JobId, Request, Scheduler, Want};
use firth_graph::{Extents, HostValues, Lost, Program, Ticket};
use firth_sampling::{Constraint, ConstraintError, Verdict, Watch};

/// What became of a request: its text, and how it ended.
type Outcome = (Vec<u32>, Result<StopReason, String>);

fn scheduler(options: &EngineOptions) -> Scheduler {
    let file = firth::bundled().expect("the bundled model");
    Scheduler::new(models::engine(&file, options, Level::detect(), 2))
}

fn options() -> EngineOptions {
    EngineOptions { ctx: Some(256), parallel: 4, cache_bytes: 0, ..EngineOptions::default() }
}

/// Runs all requests to their ends.
fn run(s: &mut Scheduler, requests: Vec<Request>) -> Vec<Outcome> {
    let jobs: Vec<JobId> = requests.into_iter().map(|r| s.submit(r).expect("a good request")).collect();
    let mut texts: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    let mut ends = BTreeMap::new();
    s.run_all(&mut |id, event| {
        let first = match event {
            Event::Token(t) => {
                texts.entry(id.0).or_default().push(t);
                None
            }
            Event::Done(f) => ends.insert(id.0, Ok(f.stop)),
            Event::Failed(e) => ends.insert(id.0, Err(e.to_string())),
            _ => None,
        };
        assert!(first.is_none(), "a request ends once");
        ControlFlow::Continue(())
    })
    .expect("the device is there");
    jobs.iter()
        .map(|j| (texts.remove(&j.0).unwrap_or_default(), ends.remove(&j.0).expect("an end")))
        .collect()
}

/// A request with a text of its own.
fn request(i: u64, n: usize, max_tokens: usize) -> Request {
    let mut r = Random(i);
    let ids = (0..n).map(|_| r.below(4096) as u32).collect();
    let temperature = if i.is_multiple_of(2) { 0.0 } else { 0.8 };
    Request::new(ids, Params { temperature, seed: i, repeat_penalty: 1.1, ..Params::default() }, max_tokens)
}

/// Requests together under `o` against each alone.
#[track_caller]
fn check_as_alone(o: &EngineOptions, make: &dyn Fn() -> Vec<Request>) -> Scheduler {
    let mut s = scheduler(o);
    let together = run(&mut s, make());
    let mut one = scheduler(&options());
    for (i, (request, found)) in make().into_iter().zip(together).enumerate() {
        assert_eq!(found, run(&mut one, vec![request]).remove(0), "request {i}");
    }
    s
}

fn six() -> Vec<Request> {
    (0..6).map(|i| request(i, 30 + 23 * i as usize, 40)).collect()
}

/// A limit that leaves `share` of 100 of the pages that four whole sequences need.
fn crowded(share: u64) -> EngineOptions {
    let file = firth::bundled().expect("the bundled model");
    let mut o = options();
    let plan = firth_engine::plan_only(&file, &[models::cpu(Level::detect(), 1)], &o).expect("it fits");
    let states: u64 = plan.states.iter().map(|(_, bytes, n)| (bytes * n) as u64).sum();
    // Slots are there for every sequence, whatever the pages.
    let slots = plan.slot_bytes * 2 * o.parallel as u64;
    let pages = states - slots;
    let fixed = plan.weight_bytes[0] + plan.scratch_bytes + slots;
    o.max_bytes = Some(fixed + pages * share / 100);
    o
}

#[test]
fn beside_others_as_alone() {
    check_as_alone(&options(), &six);
    check_as_alone(&EngineOptions { batch: 1, ..options() }, &six);
    check_as_alone(&EngineOptions { parallel: 1, batch: 7, ..options() }, &six);
    check_as_alone(&EngineOptions { cache_bytes: 1 << 20, ..options() }, &|| {
        six().into_iter().chain(six()).collect()
    });
}

#[test]
fn parked_as_alone() {
    let s = check_as_alone(&crowded(30), &six);
    assert!(s.parked() > 0, "nothing was parked");
}

#[test]
fn a_context_that_was_not_asked_for_is_cut_to_the_memory() {
    let file = firth::bundled().expect("the bundled model");
    let limit = crowded(40).max_bytes;
    let o = EngineOptions {
        parallel: 1,
        max_bytes: limit,
        ctx: None,
        cache_bytes: 0,
        ..EngineOptions::default()
    };
    let mut s = scheduler(&o);
    let ctx = s.engine().ctx();
    assert!((128..640).contains(&ctx), "{ctx}");
    let o = EngineOptions { ctx: Some(2 * ctx), ..o };
    let e = firth_engine::plan_only(&file, &[models::cpu(Level::detect(), 1)], &o).err().expect("too much");
    assert!(e.to_string().contains(&format!("a sequence of {} tokens needs", 2 * ctx)), "{e}");
}

/// Pages that somebody else holds: the oldest finds none even alone and fails, the one beside it goes on.
#[test]
fn want_of_pages_fails_who_wants_them() {
    let mut s = scheduler(&crowded(50));
    let engine = s.engine();
    let held = [engine.open(0).expect("room"), engine.open(0).expect("room")];
    let ids = vec![7; 64];
    for i in 0.. {
        if engine.memory().free_pages(0).0 == 3 {
            break;
        }
        let feed = Feed { seq: held[i % 2], ids: &ids, embeds: None, want: Want::None, sampler: None };
        engine.step(&[feed]).expect("room");
    }
    let found = run(&mut s, vec![request(0, 230, 10), request(1, 20, 10)]);
    assert!(matches!(&found[0].1, Err(e) if e.contains("no memory for keys and values")), "{:?}", found[0]);
    let mut alone = scheduler(&options());
    assert_eq!(found[1], run(&mut alone, vec![request(1, 20, 10)]).remove(0));
}

/// Fails at a token, by the mask or by refusing it.
struct FailsAt(usize, bool);

impl Constraint for FailsAt {
    fn mask(&mut self, out: &mut [u32]) -> Result<(), ConstraintError> {
        out.fill(u32::MAX);
        if self.0 == 0 && self.1 { Err(ConstraintError::NoContinuation) } else { Ok(()) }
    }

    fn accept(&mut self, id: u32) -> Result<(), ConstraintError> {
        if self.0 == 0 {
            return Err(ConstraintError::Refused { id });
        }
        self.0 -= 1;
        Ok(())
    }

    fn rollback(&mut self, n: usize) {
        self.0 += n;
    }
}

#[test]
fn a_failure_reaches_the_one_who_caused_it() {
    for (culprit, by_mask) in [(0, true), (1, true), (1, false), (3, true), (3, false)] {
        let mut s = scheduler(&options());
        let mut requests: Vec<Request> = six().into_iter().take(4).collect();
        requests[culprit].constraint = Some(Box::new(FailsAt(3, by_mask)));
        let found = run(&mut s, requests);
        let mut alone = scheduler(&options());
        for (i, (request, found)) in six().into_iter().zip(found).enumerate() {
            if i == culprit {
                assert_eq!(found.0.len(), 3, "what was said before stays");
                assert!(found.1.is_err_and(|e| e.contains("allowed here")));
            } else {
                assert_eq!(found, run(&mut alone, vec![request]).remove(0), "beside {culprit}");
            }
        }
        assert_eq!(s.engine().memory().stats().sequences, 0, "all sequences have ended");
    }
}

#[test]
fn long_lists_wait_for_room_or_are_refused() {
    let o = EngineOptions { outputs: Some(4), ..options() };
    let biased = |i: u64, n: u32| {
        let mut r = request(i, 20, 12);
        r.params.bias = (0..n).map(|id| (id, -0.5)).collect();
        r
    };
    // Of 2,048 biases that a step holds: one request at a time.
    check_as_alone(&o, &|| (0..4).map(|i| biased(i, 1500)).collect());
    let mut s = scheduler(&o);
    let e = s.submit(biased(0, 3000)).expect_err("too many");
    assert!(matches!(e, EngineError::Room { list: "biases", needed: 3000, all: 2048, .. }), "{e}");
    // No window is longer than the context.
    let mut wide = request(0, 200, 12);
    wide.params.penalty_last_n = u32::MAX;
    assert!(run(&mut s, vec![wide])[0].1.is_ok());
}

/// Stops when it has seen so many ids, and keeps so many of the last call's.
struct StopsAt(usize, usize);

impl Watch for StopsAt {
    fn push(&mut self, ids: &[u32]) -> Verdict {
        self.0 -= ids.len();
        if self.0 == 0 { Verdict::StopAfter(self.1) } else { Verdict::Continue }
    }
}

#[test]
fn ends() {
    let mut s = scheduler(&options());
    let mut check = |max_tokens, watch: Option<StopsAt>, n: usize, stop| {
        let mut r = request(0, 200, max_tokens);
        r.watch = watch.map(|w| Box::new(w) as Box<dyn Watch>);
        let found = run(&mut s, vec![r]).remove(0);
        assert_eq!((found.0.len(), found.1), (n, Ok(stop)));
    };
    check(5, None, 5, StopReason::Limit);
    check(56, None, 56, StopReason::Limit);
    check(57, None, 56, StopReason::Context);
    check(usize::MAX, None, 56, StopReason::Context);
    check(50, Some(StopsAt(4, 1)), 4, StopReason::Word);
    check(50, Some(StopsAt(4, 0)), 3, StopReason::Word);
}

/// The caller is asked after every step: before the first token, too.
#[test]
fn a_long_prompt_can_be_ended() {
    let file = firth::bundled().expect("the bundled model");
    let o = EngineOptions { batch: 16, ..options() };
    let devices = vec![models::cpu(Level::detect(), 2)];
    let mut model =
        firth::Model::load(file, devices, &o, &mut |_| ControlFlow::Continue(())).expect("it loads");
    let prompt = || firth::Prompt { ids: (0..200).collect() };
    let mut asked = 0;
    let answer = model.generate(prompt(), &Default::default(), &mut |text| {
        asked += 1;
        assert!(text.is_empty());
        if asked == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(answer.expect("an answer without a token").ids.is_empty());
    assert!(model.scheduler().is_idle());
    let again = model.generate(prompt(), &Default::default(), &mut |_| ControlFlow::Continue(()));
    assert!(!again.expect("an answer").ids.is_empty());
}

/// One prompt in eight sequences at once: one text, that of one sequence.
#[test]
fn one_prompt_eight_times() {
    let Some(file) = models::real(models::SMOLLM2) else { return };
    let texts = |parallel: usize| {
        let o = EngineOptions { ctx: Some(320), parallel, cache_bytes: 0, ..EngineOptions::default() };
        let mut s = Scheduler::new(models::engine(&file, &o, Level::detect(), 2));
        let params = Params { temperature: 0.0, ..Params::default() };
        let ids: Vec<u32> = (0..40).map(|i| 1000 + 37 * i).collect();
        run(&mut s, (0..parallel).map(|_| Request::new(ids.clone(), params.clone(), 96)).collect())
    };
    let alone = texts(1).remove(0);
    assert_eq!(alone.0.len(), 96);
    for (i, text) in texts(8).into_iter().enumerate() {
        assert_eq!(text, alone, "sequence {i} of 8");
    }
}

/// Everything a request tells, beside others.
fn all_events(s: &mut Scheduler, requests: Vec<Request>) -> Vec<Vec<Event>> {
    let jobs: Vec<JobId> = requests.into_iter().map(|r| s.submit(r).expect("a good request")).collect();
    let mut told: Vec<Vec<Event>> = jobs.iter().map(|_| Vec::new()).collect();
    s.run_all(&mut |id, event| {
        told[jobs.iter().position(|j| *j == id).expect("one of ours")].push(event);
        ControlFlow::Continue(())
    })
    .expect("the device is there");
    told
}

/// What is told of the prompt and of the text are the logits of one run over both, whatever was cut and cached.
#[test]
fn logprobs_are_those_of_the_logits() {
    for batch in [512, 7] {
        let o = EngineOptions { cache_bytes: 1 << 20, batch, outputs: Some(5), ..options() };
        let mut s = scheduler(&o);
        let make = || {
            let mut r = request(2, 90, 10);
            (r.logprobs, r.prompt_logprobs) = (Some(3), true);
            r
        };
        let plain = run(&mut s, vec![request(2, 90, 10), request(1, 60, 20)]).remove(0);
        let told = all_events(&mut s, vec![make(), request(1, 60, 20)]).remove(0);
        let said: Vec<u32> =
            told.iter().filter_map(|e| if let Event::Token(id) = e { Some(*id) } else { None }).collect();
        assert_eq!(said, plain.0, "asking does not change the answer");
        let ids = [&make().ids[..], &said].concat();
        let mut expected = Vec::new();
        firth::logits(s.engine(), &ids, &Default::default(), &mut |row, logits| {
            if let Some(id) = ids.get(row + 1) {
                expected.push(firth_engine::Logprobs::new(logits, *id, 3));
            }
        })
        .expect("it runs");
        let thought = |e: Event| match e {
            Event::PromptLogprobs(p) | Event::Logprobs(p) => Some(p),
            _ => None,
        };
        let found: Vec<_> = told.into_iter().filter_map(thought).collect();
        assert_eq!(found, expected, "batch {batch}");
    }
}

#[test]
fn no_token_and_another_choice() {
    let mut s = scheduler(&EngineOptions { cache_bytes: 1 << 20, ..options() });
    let none = run(&mut s, vec![request(1, 50, 0)]).remove(0);
    assert_eq!(none, (vec![], Ok(StopReason::Limit)));
    let choices = (0..3).map(|choice| {
        let mut r = request(1, 50, 12);
        r.choice = choice;
        r
    });
    let found = run(&mut s, choices.collect());
    assert_ne!(found[0], found[1]);
    assert_ne!(found[1], found[2]);
    assert_eq!(found[0], run(&mut s, vec![request(1, 50, 12)]).remove(0), "the first is what one alone gets");
}

/// A prompt beside one that decodes goes on in pieces, and a short one does not wait for a long one.
#[test]
fn prompts_share_steps() {
    let o = EngineOptions { batch: 64, ..options() };
    let mut s = scheduler(&o);
    let talker = s.submit(request(0, 8, 150)).expect("a good request");
    let mut said = 0;
    while said < 4 {
        s.tick(&mut |_, e| {
            said += usize::from(matches!(e, Event::Token(_)));
            ControlFlow::Continue(())
        })
        .expect("a step");
    }
    let long = s.submit(request(2, 240, 4)).expect("a good request");
    let short = s.submit(request(4, 12, 4)).expect("a good request");
    let mut order = Vec::new();
    let (mut beside, mut largest, mut last) = (0, 0, 0);
    s.run_all(&mut |id, e| {
        match e {
            Event::Token(_) if id == talker && order.len() < 2 => beside += 1,
            Event::Token(_) if id != talker && !order.contains(&id) => order.push(id),
            Event::Prompt(n) if id == long => {
                largest = largest.max(n - last);
                last = n;
            }
            _ => {}
        }
        ControlFlow::Continue(())
    })
    .expect("the device is there");
    assert_eq!(order, [short, long]);
    assert!(largest <= 63 && beside >= 4, "pieces of up to {largest}, {beside} tokens beside");
}

/// A program whose rows take long, but for the first of a step.
struct Slow(Box<dyn Program>);

const ROW: Duration = Duration::from_millis(60);

impl Program for Slow {
    fn submit(&mut self, step: Extents, host: &mut HostValues) -> Result<Ticket, Lost> {
        sleep(ROW * (step.t as u32 - 1));
        self.0.submit(step, host)
    }

    fn finish(&mut self, ticket: Ticket, host: &mut HostValues) -> Result<(), Lost> {
        self.0.finish(ticket, host)
    }

    fn scratch_bytes(&self) -> u64 {
        self.0.scratch_bytes()
    }
}

/// Where one row of a prompt costs more than a step may grow, each step beside decoding takes one, and the next one
/// again: a step that took one is not mistaken for one that only decodes.
#[test]
fn slow_prompts_go_on_row_by_row() {
    let file = firth::bundled().expect("the bundled model");
    let device = Changed::wrapped(models::cpu(Level::detect(), 2), |program| Box::new(Slow(program)));
    let engine = Engine::load(&file, vec![device], &options(), &mut |_| ControlFlow::Continue(()));
    let mut s = Scheduler::new(engine.expect("the bundled model loads"));
    let talker = s.submit(request(0, 4, 150)).expect("a good request");
    let mut said = 0;
    while said < 8 {
        s.tick(&mut |_, e| {
            said += usize::from(matches!(e, Event::Token(_)));
            ControlFlow::Continue(())
        })
        .expect("a step");
    }
    let long = s.submit(request(2, 40, 4)).expect("a good request");
    let short = s.submit(request(4, 6, 1)).expect("a good request");
    let (mut done, mut spoke) = (Vec::new(), false);
    while done.len() < 20 {
        s.tick(&mut |id, e| {
            assert!(id != talker || matches!(e, Event::Token(_)), "{e:?}");
            match e {
                Event::Prompt(n) if id == long => done.push(n),
                Event::Token(_) if id == short => spoke = true,
                _ => {}
            }
            ControlFlow::Continue(())
        })
        .expect("a step");
    }
    assert_eq!(done, (0..20).collect::<Vec<_>>());
    assert!(spoke, "a short prompt does not wait for a long one");
}
