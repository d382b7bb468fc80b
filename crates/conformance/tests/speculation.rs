//! Speculation never shows: the same ids whoever drafts, how long, and beside whom.

use std::sync::Arc;

use firth_conformance::answers::answers;
use firth_conformance::models::{self, Random};
use firth_cpu::Level;
use firth_engine::{
    DraftLength, Drafter, EngineOptions, Request, Scheduler, SpecMode, SpecOptions, StopReason,
};
use firth_gguf::Gguf;
use firth_sampling::{Constraint, ConstraintError, Dry, Mirostat, Params, Stage};

fn scheduler(file: &Arc<Gguf>, spec: SpecOptions, parallel: usize) -> Scheduler {
    let options = EngineOptions { ctx: Some(256), parallel, batch: 64, spec, ..EngineOptions::default() };
    Scheduler::new(models::engine(file, &options, Level::detect(), 2))
}

/// What came of one request: its ids and how it ended.
type Outcome = (Vec<u32>, StopReason);

fn run(s: &mut Scheduler, requests: Vec<Request>) -> (Vec<Outcome>, usize, usize) {
    let answers = answers(s, requests);
    let drafted = answers.iter().map(|a| a.timings.draft_n).sum();
    let accepted = answers.iter().map(|a| a.timings.draft_n_accepted).sum();
    (answers.into_iter().map(|a| (a.ids, a.stop)).collect(), drafted, accepted)
}

fn prompts(n: usize) -> Vec<Vec<u32>> {
    let mut r = Random(7);
    let one = |_| {
        // A phrase that comes again, so that n-grams find something.
        let phrase: Vec<u32> = (0..2 + r.below(5)).map(|_| 300 + r.below(3000) as u32).collect();
        phrase.repeat(1 + r.below(4))
    };
    (0..n).map(one).collect()
}

fn request(ids: &[u32], temperature: f32, edit: &dyn Fn(&mut Request)) -> Request {
    let params = Params { temperature, seed: ids.iter().map(|i| u64::from(*i)).sum(), ..Params::default() };
    let mut r = Request::new(ids.to_vec(), params, 40);
    r.end_ids = vec![4095, 4093];
    edit(&mut r);
    r
}

/// Only ids that leave the same remainder as their place in the answer.
struct Comb(u32);

impl Constraint for Comb {
    fn mask(&mut self, out: &mut [u32]) -> Result<(), ConstraintError> {
        for (i, word) in out.iter_mut().enumerate() {
            *word = (0..32).filter(|b| (i as u32 * 32 + b) % 3 == self.0 % 3).fold(0, |w, b| w | 1 << b);
        }
        Ok(())
    }

    fn accept(&mut self, id: u32) -> Result<(), ConstraintError> {
        if id % 3 != self.0 % 3 {
            return Err(ConstraintError::Refused { id });
        }
        self.0 += 1;
        Ok(())
    }

    fn rollback(&mut self, n: usize) {
        self.0 -= n as u32;
    }
}

/// Knows the answers and errs now and then.
struct Oracle {
    texts: Vec<Vec<u32>>,
    random: Random,
}

impl Drafter for Oracle {
    fn propose(&mut self, ids: &[u32], n: usize, draft: &mut Vec<u32>) {
        let Some(text) = self.texts.iter().find(|t| t.starts_with(ids)) else { return };
        for id in text[ids.len()..].iter().take(n) {
            let wrong = self.random.below(4) == 0;
            draft.push(if wrong { self.random.below(5000) as u32 } else { *id });
        }
    }
}

/// Prompts of a whole run: `FIRTH_PROMPTS`, with every length of drafts.
fn whole() -> Option<usize> {
    std::env::var("FIRTH_PROMPTS").ok().and_then(|n| n.parse().ok())
}

fn lengths() -> Vec<(usize, DraftLength)> {
    let all = (1..=8).map(|n| (n, DraftLength::Fixed));
    let some = [(1, DraftLength::Fixed), (8, DraftLength::Fixed)];
    let fixed: Vec<_> = if whole().is_some() { all.collect() } else { some.into() };
    let clocks = [(3, DraftLength::Adaptive), (8, DraftLength::Random(5))];
    fixed.into_iter().chain(clocks).collect()
}

/// Every way to draft against none.
#[track_caller]
fn check(file: &Arc<Gguf>, modes: &[SpecMode], n: usize, temperature: f32, edit: &dyn Fn(&mut Request)) {
    check_with(file, None, modes, n, temperature, edit);
}

#[track_caller]
fn check_with(
    file: &Arc<Gguf>,
    draft: Option<&Arc<Gguf>>,
    modes: &[SpecMode],
    n: usize,
    temperature: f32,
    edit: &dyn Fn(&mut Request),
) {
    let prompts = prompts(whole().unwrap_or(n));
    let asked = || prompts.iter().map(|p| request(p, temperature, edit)).collect::<Vec<_>>();
    let (base, ..) = run(&mut scheduler(file, SpecOptions::default(), 1), asked());
    let texts: Vec<Vec<u32>> = prompts.iter().zip(&base).map(|(p, (t, _))| [&p[..], t].concat()).collect();
    for &mode in modes {
        for (max, length) in lengths() {
            for parallel in [1, 4] {
                let mut s = scheduler(file, SpecOptions { mode, max, length }, parallel);
                if mode == SpecMode::Custom {
                    s.set_drafter(Box::new(Oracle { texts: texts.clone(), random: Random(3) }));
                }
                if let Some(draft) = draft {
                    let options = EngineOptions {
                        ctx: Some(256),
                        parallel: 2 * parallel,
                        batch: 64,
                        cache_bytes: 0,
                        ..EngineOptions::default()
                    };
                    s.set_draft_model(models::engine(draft, &options, Level::detect(), 2));
                }
                let (found, drafted, accepted) = run(&mut s, asked());
                let how = format!(
                    "{mode:?}, {length:?} up to {max}, {parallel} sequences, temperature {temperature}"
                );
                assert_eq!(found, base, "{how}");
                eprintln!("{how}: {accepted} of {drafted} accepted");
                let must = length != DraftLength::Adaptive;
                assert!(drafted > 0 || !must, "{how}: nothing was drafted");
            }
        }
    }
}

#[test]
fn ids_are_those_without_speculation() {
    let Some(file) = models::tiny("qwen3-tiny-Q8_0.gguf") else { return };
    for temperature in [0.0, 0.7, 1.3] {
        check(&file, &[SpecMode::Ngram, SpecMode::Custom], 12, temperature, &|_| {});
    }
}

#[test]
fn hybrids_with_a_head() {
    for name in ["qwen35-tiny-mtp-Q4_0.gguf", "qwen35moe-tiny-mtp-F16.gguf"] {
        let Some(file) = models::tiny(name) else { return };
        for temperature in [0.0, 0.7, 1.3] {
            check(&file, &[SpecMode::Mtp, SpecMode::Custom], 6, temperature, &|_| {});
        }
        check(&file, &[SpecMode::Mtp], 4, 0.7, &|r| r.params.repeat_penalty = 1.3);
        check(&file, &[SpecMode::Mtp], 4, 0.7, &|r| r.constraint = Some(Box::new(Comb(0))));
    }
}

/// Stages that run on the host, one that learns from its draws among them.
#[test]
fn samplers_on_the_host() {
    let (dense, hybrid) = ("qwen3-tiny-Q8_0.gguf", "qwen35-tiny-mtp-Q4_0.gguf");
    let edits: [&dyn Fn(&mut Params); 6] = [
        &|p| p.mirostat = Some(Mirostat { tau: 3.0, ..Mirostat::default() }),
        &|p| p.dry = Dry { multiplier: 0.8, last_n: 200, allowed_length: 1, ..Dry::default() },
        &|p| (p.xtc_probability, p.xtc_threshold) = (0.5, 0.05),
        &|p| (p.typical_p, p.top_n_sigma) = (0.9, 1.5),
        &|p| (p.dynatemp_range, p.repeat_penalty) = (0.5, 1.2),
        &|p| {
            p.adaptive_target = 0.3;
            p.order = vec![Stage::Temperature, Stage::MinP, Stage::Penalties, Stage::AdaptiveP];
        },
    ];
    for (name, mode) in [(dense, SpecMode::Custom), (hybrid, SpecMode::Mtp)] {
        let Some(file) = models::tiny(name) else { return };
        for edit in edits {
            check(&file, &[mode], 3, 0.7, &|r| edit(&mut r.params));
        }
        check(&file, &[mode], 3, 0.7, &|r| {
            edits[0](&mut r.params);
            r.constraint = Some(Box::new(Comb(0)));
        });
    }
}

/// As many biases as the main program takes, and penalties over a window as long as the context.
#[test]
fn long_lists_fit_a_head() {
    let Some(file) = models::tiny("qwen35-tiny-mtp-Q4_0.gguf") else { return };
    check(&file, &[SpecMode::Mtp], 2, 0.7, &|r| {
        r.params.bias = (0..3000).map(|id| (id, 0.25)).collect();
        (r.params.repeat_penalty, r.params.penalty_last_n) = (1.2, 1000);
    });
}

#[test]
fn convolutions_alone() {
    let Some(file) = models::tiny("lfm2-tiny-F32.gguf") else { return };
    check(&file, &[SpecMode::Ngram, SpecMode::Custom], 6, 0.0, &|_| {});
}

/// qwen3-tiny drafts for qwen35-tiny, and the other way round: a draft model with states in slots.
#[test]
fn another_model_drafts() {
    for (name, draft) in [
        ("qwen35-tiny-mtp-Q4_0.gguf", "qwen3-tiny-Q8_0.gguf"),
        ("qwen3-tiny-Q8_0.gguf", "qwen35-tiny-mtp-Q4_0.gguf"),
    ] {
        let (Some(file), Some(draft)) = (models::tiny(name), models::tiny(draft)) else { return };
        check_with(&file, Some(&draft), &[SpecMode::Draft], 6, 0.0, &|_| {});
        check_with(&file, Some(&draft), &[SpecMode::Draft], 6, 0.7, &|_| {});
    }
}

#[test]
fn penalties_constraints_and_limits_inside_drafts() {
    let Some(file) = models::tiny("qwen3-tiny-Q8_0.gguf") else { return };
    let modes = [SpecMode::Custom];
    check(&file, &modes, 4, 0.0, &|r| r.params.repeat_penalty = 1.3);
    check(&file, &modes, 4, 0.7, &|r| r.params.presence_penalty = 0.8);
    check(&file, &modes, 4, 0.7, &|r| r.constraint = Some(Box::new(Comb(0))));
    check(&file, &modes, 4, 0.0, &|r| r.max_tokens = 5 + r.ids.len() % 3);
    // Common ids as end tokens, so that ends fall inside drafts.
    check(&file, &modes, 8, 0.7, &|r| r.end_ids.extend((0..4096).filter(|id| id % 7 == 0)));
}
