//! Sequences that decode, draft, take back, fork, are cached and dropped, in any order: the logits of every row that
//! counts are bit for bit those of a run that did nothing of the kind.

use std::sync::Arc;

use firth::EngineOptions;
use firth_conformance::models::{self, Random, hash};
use firth_cpu::Level;
use firth_engine::{Engine, Feed, Seq, SpecMode, SpecOptions, Want};
use firth_gguf::Gguf;

/// Tokens of a text; windows and pages are passed.
const LONG: usize = 150;
/// Texts, which share beginnings.
const TEXTS: usize = 5;
/// The longest draft.
const DRAFT: usize = 4;
const PARALLEL: usize = 4;

/// Operations on each model: `FIRTH_OPERATIONS`, else enough for every kind to happen often.
fn operations() -> usize {
    std::env::var("FIRTH_OPERATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(1500)
}

struct Live {
    seq: Seq,
    text: usize,
}

struct Test {
    engine: Engine,
    texts: Vec<Vec<u32>>,
    /// Hashes of the logits of every token of every text.
    expected: Vec<Vec<u64>>,
    live: Vec<Live>,
    r: Random,
    seen: std::collections::BTreeMap<&'static str, usize>,
    what: String,
}

fn options(cache_bytes: u64) -> EngineOptions {
    let spec = SpecOptions { mode: SpecMode::Custom, max: DRAFT, ..SpecOptions::default() };
    EngineOptions {
        ctx: Some(LONG + 8),
        parallel: PARALLEL,
        batch: LONG + 8,
        outputs: Some(LONG + 8),
        cache_bytes,
        spec,
        ..EngineOptions::default()
    }
}

impl Test {
    fn new(file: &Arc<Gguf>, what: &str, seed: u64) -> Test {
        let mut r = Random(seed);
        let vocab = file.tensor("token_embd.weight").expect("an embedding").shape[1] as usize;
        let mut texts: Vec<Vec<u32>> = Vec::new();
        for i in 0..TEXTS {
            let mut text: Vec<u32> = (0..LONG).map(|_| r.below(vocab) as u32).collect();
            if i > 0 {
                let shared = r.below(LONG);
                text[..shared].copy_from_slice(&texts[i - 1][..shared]);
            }
            texts.push(text);
        }
        let mut base = models::engine(file, &options(0), Level::detect(), 2);
        let expected = texts.iter().map(|t| models::row_hashes(&mut base, t, &[], 0)).collect();
        // The cache is small, so that snapshots are dropped.
        let engine = models::engine(file, &options(3 << 20), Level::detect(), 2);
        Test { engine, texts, expected, live: Vec::new(), r, seen: Default::default(), what: what.into() }
    }

    fn saw(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn run(&mut self, n: usize) {
        for _ in 0..n {
            match self.r.below(10) {
                0 => self.start(),
                1..6 => self.step(),
                6 => self.fork(),
                7 => self.snapshot(),
                8 => self.roll_back(),
                _ => self.drop_one(),
            }
        }
    }

    fn start(&mut self) {
        if self.live.len() == PARALLEL {
            return;
        }
        let text = self.r.below(TEXTS);
        let seq = self.engine.open(0).expect("fewer are open");
        let most = 1 + self.r.below(LONG - 1);
        if let Some((snapshot, len)) = self.engine.memory().find(0, &self.texts[text][..most]) {
            self.engine.memory().attach(seq, snapshot, len).expect("it was just found");
            self.saw("begun from the cache");
        }
        self.live.push(Live { seq, text });
    }

    /// A step over all sequences: some rows, then guesses of which the first are right.
    fn step(&mut self) {
        let mut planned = Vec::new();
        self.engine.begin();
        for i in 0..self.live.len() {
            let len = self.engine.len(self.live[i].seq);
            let left = LONG - len;
            if left == 0 || self.r.below(4) == 0 {
                continue;
            }
            let certain = [1, 1, 1 + self.r.below(30)][self.r.below(3)].min(left);
            let drafted = self.r.below(DRAFT + 1).min(left - certain);
            self.engine.reserve(self.live[i].seq, certain, drafted);
            // A drafter may find less than was reserved for it.
            planned.push((i, len, certain, self.r.below(drafted + 1)));
        }
        if planned.is_empty() {
            return;
        }
        self.engine.plan().expect("every sequence has its pages");
        if self.r.below(20) == 0 {
            self.engine.abandon();
            self.saw("planned and abandoned");
            return;
        }
        let mut accepted = Vec::new();
        for &(i, len, certain, drafted) in &planned {
            let Live { seq, text } = self.live[i];
            let mut ids = self.texts[text][len..len + certain + drafted].to_vec();
            let right = self.r.below(drafted + 1);
            ids[certain + right..].iter_mut().for_each(|id| *id ^= 1);
            let feed = Feed { seq, ids: &ids, embeds: None, want: Want::All, sampler: None };
            self.engine.feed_planned(&feed, drafted).expect("ids of the vocabulary");
            accepted.push(right);
            self.saw(if drafted > right { "wrong guesses" } else { "no wrong guess" });
        }
        self.engine.compute().expect("the device works");
        for (feed, &(i, len, certain, _)) in planned.iter().enumerate() {
            let kept = certain + accepted[feed];
            self.engine.keep(feed, kept);
            for o in 0..kept {
                let found = hash(self.engine.logits(feed, o));
                let expected = self.expected[self.live[i].text][len + o];
                assert_eq!(found, expected, "{}: text {}, token {}", self.what, self.live[i].text, len + o);
            }
        }
    }

    fn fork(&mut self) {
        if self.live.is_empty() || self.live.len() == PARALLEL {
            return;
        }
        let Live { seq, text } = self.live[self.r.below(self.live.len())];
        let seq = self.engine.fork(seq).expect("fewer are open");
        // It may go on with another text that has the same beginning.
        let len = self.engine.len(seq);
        let same = |t: &usize| self.texts[*t][..len] == self.texts[text][..len];
        let others: Vec<usize> = (0..TEXTS).filter(same).collect();
        let text = others[self.r.below(others.len())];
        self.live.push(Live { seq, text });
        self.saw("forked");
    }

    fn snapshot(&mut self) {
        if !self.live.is_empty() {
            let seq = self.live[self.r.below(self.live.len())].seq;
            self.engine.memory().snapshot(seq);
            self.saw("snapshot");
        }
    }

    fn roll_back(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let seq = self.live[self.r.below(self.live.len())].seq;
        let (len, lowest) = (self.engine.len(seq), self.engine.memory().lowest(seq));
        let to = len - self.r.below(DRAFT + 3).min(len);
        match self.engine.rollback(seq, to) {
            Ok(()) => {
                assert!(to == 0 || to >= lowest, "{}: {len} to {to}, lowest {lowest}", self.what);
                self.saw("rolled back");
            }
            Err(e) => {
                assert!(to < lowest, "{}: {e}", self.what);
                self.saw("too far back, refused");
            }
        }
    }

    fn drop_one(&mut self) {
        if !self.live.is_empty() {
            let at = self.r.below(self.live.len());
            let seq = self.live.swap_remove(at).seq;
            self.engine.close(seq);
            self.saw("dropped");
        }
    }
}

#[track_caller]
fn check(name: &str, kinds: &[&str]) {
    let Some(file) = models::tiny(name) else { return };
    let mut test = Test::new(&file, name, 11);
    test.run(operations());
    println!("{name}: {:?}", test.seen);
    for kind in kinds {
        assert!(test.seen.contains_key(kind), "{name}: never {kind}: {:?}", test.seen);
    }
}

const ALWAYS: &[&str] =
    &["begun from the cache", "forked", "snapshot", "rolled back", "wrong guesses", "planned and abandoned"];

#[test]
fn attention() {
    check("qwen3-tiny-Q8_0.gguf", ALWAYS);
}

#[test]
fn recurrences() {
    check("qwen35-tiny-mtp-Q4_0.gguf", &[ALWAYS, &["too far back, refused"]].concat());
}

#[test]
fn convolutions() {
    check("lfm2-tiny-F32.gguf", &[ALWAYS, &["too far back, refused"]].concat());
}
