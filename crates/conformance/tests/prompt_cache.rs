//! The prompt cache gives rows back and never shows: hybrids and windows hit it as plain models do.

use std::sync::Arc;

use firth_conformance::answers::{Answer, answer, answers, fixed};
use firth_conformance::cut_law::{ids, vocab};
use firth_conformance::fixture;
use firth_conformance::models::{self, Random};
use firth_cpu::Level;
use firth_engine::{
    DraftLength, Drafter, EngineOptions, Request, Scheduler, SpecMode, SpecOptions, StopReason,
};
use firth_gguf::Gguf;
use firth_sampling::Params;

const HYBRID: &str = "qwen35-tiny-mtp-Q4_0.gguf";
const HEAD: SpecOptions = SpecOptions { mode: SpecMode::Mtp, max: 3, length: DraftLength::Fixed };

fn scheduler(file: &Arc<Gguf>, spec: SpecOptions, parallel: usize, cache_bytes: u64) -> Scheduler {
    let options = EngineOptions {
        ctx: Some(1600),
        parallel,
        batch: 128,
        spec,
        cache_bytes,
        ..EngineOptions::default()
    };
    Scheduler::new(models::engine(file, &options, Level::detect(), 2))
}

fn request(ids: &[u32], marks: &[usize]) -> Request {
    let params = Params { temperature: 0.7, seed: 5, ..Params::default() };
    let mut r = Request::new(ids.to_vec(), params, 12);
    r.marks = marks.to_vec();
    r
}

/// The answer that a scheduler without a cache gives.
fn cold(file: &Arc<Gguf>, ids: &[u32]) -> Answer {
    answer(&mut scheduler(file, SpecOptions::default(), 1, 0), request(ids, &[]))
}

const CACHE: u64 = 64 << 20;

#[test]
fn a_second_turn_finds_the_first_in_every_architecture() {
    for (name, file) in fixture::with_states() {
        let all = ids(260, vocab(&file));
        let mut s = scheduler(&file, SpecOptions::default(), 1, CACHE);
        let (first, reply) = (&all[..200], &all[200..230]);
        answer(&mut s, fixed(request(first, &[90, 197]), reply.to_vec()));
        let warm = answer(&mut s, request(&all, &[90, 197, 230, 257]));
        let found = warm.timings.cached_n;
        assert!(found * 10 >= first.len() * 9, "{name}: {found} of {} rows were found", first.len());
        assert_eq!(warm.ids, cold(&file, &all).ids, "{name}");
    }
}

/// One system prompt, another question: all of the system prompt is found, be it short or long.
#[test]
fn a_shared_beginning_is_found_up_to_its_mark() {
    let Some(file) = models::tiny(HYBRID) else { return };
    for system in [20, 100, 1000] {
        let all = ids(system + 60, vocab(&file));
        let (a, b) = (&all[..system + 30], [&all[..system], &all[system + 30..]].concat());
        let mut s = scheduler(&file, HEAD, 1, CACHE);
        answer(&mut s, request(a, &[system, system + 27]));
        let warm = answer(&mut s, request(&b, &[system, system + 27]));
        assert_eq!(warm.timings.cached_n, system);
        assert_eq!(warm.ids, cold(&file, &b).ids, "{system} tokens in common");
    }
}

/// Without a mark there is the prompt's end, also where the prompt is short.
#[test]
fn a_prompt_that_goes_on_is_found() {
    let Some(file) = models::tiny(HYBRID) else { return };
    let all = ids(60, vocab(&file));
    let mut s = scheduler(&file, HEAD, 1, CACHE);
    answer(&mut s, request(&all[..40], &[]));
    let warm = answer(&mut s, request(&all, &[]));
    assert!(warm.timings.cached_n >= 39, "{} rows were found", warm.timings.cached_n);
    assert_eq!(warm.ids, cold(&file, &all).ids);
}

/// No mark says what two prompts share; once the second has shown it, the third is served up to there.
#[test]
fn a_beginning_that_came_twice_is_found_the_third_time() {
    let Some(file) = models::tiny(HYBRID) else { return };
    for shared in [40, 100, 300] {
        let all = ids(shared + 90, vocab(&file));
        let tail = |i: usize| &all[shared + 30 * i..shared + 30 * (i + 1)];
        let mut s = scheduler(&file, HEAD, 1, CACHE);
        for i in 0..3 {
            let prompt = [&all[..shared], tail(i)].concat();
            let warm = answer(&mut s, request(&prompt, &[]));
            let (found, known) = (warm.timings.cached_n, warm.timings.known_n);
            let least = if i == 2 { shared } else { 0 };
            assert!(found >= least, "{found} of {shared} shared tokens were found, {known} known");
            assert_eq!(warm.ids, cold(&file, &prompt).ids, "{shared} tokens in common");
        }
    }
}

/// Prompts that share beginnings of any length, one after another in one scheduler with a drafting head.
#[test]
fn departures_anywhere_give_the_answer_of_a_cold_run() {
    let Some(file) = models::tiny(HYBRID) else { return };
    let mut random = Random(3);
    let mut s = scheduler(&file, HEAD, 1, CACHE);
    let all = ids(700, vocab(&file));
    let mut found = 0;
    for _ in 0..50 {
        let (cut, from) = (1 + random.below(400), 400 + random.below(250));
        let prompt = [&all[..cut], &all[from..from + 1 + random.below(50)]].concat();
        let warm = answer(&mut s, request(&prompt, &[cut.min(random.below(cut + 1))]));
        found += usize::from(warm.timings.cached_n > 0);
        assert_eq!(warm.ids, cold(&file, &prompt).ids, "{cut} tokens in common");
    }
    assert!(found > 10, "the cache was of use {found} times");
}

/// The same prompt ten times, with a long stranger between: nothing of one request reaches another.
#[test]
fn the_same_prompt_again_gives_the_same_answer() {
    let Some(file) = models::tiny(HYBRID) else { return };
    let all = ids(900, vocab(&file));
    let (stranger, prompt) = all.split_at(800);
    let expected = cold(&file, prompt).ids;
    let mut s = scheduler(&file, HEAD, 1, CACHE);
    answer(&mut s, request(stranger, &[]));
    for turn in 0..10 {
        assert_eq!(answer(&mut s, request(prompt, &[])).ids, expected, "time {turn}");
    }
}

/// How many sequences draft at once does not change what a head guesses for each.
#[test]
fn drafts_do_not_depend_on_company() {
    let Some(file) = models::tiny(HYBRID) else { return };
    let all = ids(400, vocab(&file));
    let drafts = |parallel: usize| {
        let mut s = scheduler(&file, HEAD, parallel, 0);
        let requests = all.chunks(50).map(|ids| request(ids, &[])).collect();
        let counts = |a: Answer| (a.ids, a.timings.draft_n, a.timings.draft_n_accepted);
        answers(&mut s, requests).into_iter().map(counts).collect::<Vec<_>>()
    };
    let alone = drafts(1);
    assert!(alone.iter().any(|(_, _, accepted)| *accepted > 0), "some guesses are right");
    for parallel in [4, 8] {
        assert_eq!(drafts(parallel), alone, "{parallel} sequences");
    }
}

/// Guesses a given text to its end and beyond.
struct Replay(Vec<u32>);

impl Drafter for Replay {
    fn propose(&mut self, ids: &[u32], n: usize, draft: &mut Vec<u32>) {
        if let Some(rest) = self.0.strip_prefix(ids) {
            draft.extend(rest.iter().take(n));
        }
    }
}

/// A draft of an end token and more: the answer ends there, and what stood behind it is not in the cache.
#[test]
fn nothing_behind_an_end_token_is_kept() {
    let Some(file) = models::tiny(HYBRID) else { return };
    let prompt = ids(50, vocab(&file));
    let text = cold(&file, &prompt).ids;
    // The first token of the answer that did not come before it.
    let at = (3..text.len()).find(|i| !text[..*i].contains(&text[*i])).expect("a text of several tokens");
    let whole = [&prompt[..], &text].concat();
    let mut s = scheduler(
        &file,
        SpecOptions { mode: SpecMode::Custom, max: 8, length: DraftLength::Fixed },
        1,
        CACHE,
    );
    s.set_drafter(Box::new(Replay(whole.clone())));
    let mut ends = request(&prompt, &[]);
    ends.end_ids = vec![text[at]];
    let ended = answer(&mut s, ends);
    assert_eq!((&ended.ids[..], ended.stop), (&text[..at], StopReason::Eos));
    assert!(ended.timings.draft_n > 0);
    let again = answer(&mut s, request(&whole, &[]));
    assert!(again.timings.cached_n <= prompt.len() + at, "{} rows were found", again.timings.cached_n);
    assert_eq!(again.ids, cold(&file, &whole).ids);
}
