//! Random steps of an engine: rows of every kind, then what changes sequences between steps.

use std::sync::Arc;

use firth::{EngineOptions, Params};
use firth_conformance::models::{self, Random};
use firth_cpu::Level;
use firth_engine::{Engine, EngineError, Feed, Sampler, Seq, Want};
use firth_gguf::Gguf;
use firth_memory::Memory;

use crate::counter::counted;

/// What a run must have seen; the counts say how often.
const KINDS: [&str; 16] = [
    "prefill",
    "decode",
    "no output",
    "as many outputs as fit",
    "ready rows",
    "page copy",
    "fork",
    "rollback",
    "window freed",
    "snapshot",
    "attach",
    "eviction",
    "start",
    "end",
    "list without room",
    "sampled",
];

struct Live {
    seq: Seq,
    /// Which text it says.
    text: usize,
}

/// An engine with sequences that grow, branch and end at random.
pub struct Steps {
    engine: Engine,
    r: Random,
    live: Vec<Live>,
    texts: [Vec<u32>; 3],
    rows: Vec<f32>,
    samplers: Vec<Sampler>,
    seen: [usize; KINDS.len()],
    parallel: usize,
}

/// One sampler of each kind, and one that uses every stage.
fn samplers(n_vocab: usize) -> Vec<Sampler> {
    let off = Params { top_k: 0, top_p: 1.0, min_p: 0.0, ..Params::default() };
    let bias: Vec<(u32, f32)> = (0..100).map(|i| (i, i as f32 / 50.0)).collect();
    let kinds = [
        Params { temperature: 0.0, ..off.clone() },
        Params { temperature: 1.5, ..off.clone() },
        Params { top_k: 7, ..off.clone() },
        Params { top_p: 0.6, ..off.clone() },
        Params { min_p: 0.2, ..off.clone() },
        Params { repeat_penalty: 1.3, frequency_penalty: 0.1, presence_penalty: 0.2, ..off.clone() },
        Params { bias: bias.clone(), ..off.clone() },
        Params { seed: 9, ..off.clone() },
        Params { repeat_penalty: 1.1, bias, ..Params::default() },
        // More biases than a step holds twice; ids beyond the vocabulary have no effect.
        Params { bias: (0..4000).map(|i| (i, 0.5)).collect(), ..off },
    ];
    let mut out: Vec<Sampler> = kinds.into_iter().map(|p| Sampler::new(p, 0, 0)).collect();
    for masked in [7, 8] {
        out[masked].mask = Some((0..n_vocab.div_ceil(32)).map(|i| 0x5555_5555 + i as u32).collect());
    }
    out
}

impl Steps {
    pub fn new(file: &Arc<Gguf>) -> Steps {
        let parallel = 5;
        let options = EngineOptions {
            ctx: Some(400),
            parallel,
            batch: 60,
            outputs: Some(12),
            // Of the tiny models a page of all layers takes 128 KiB to 1 MiB.
            cache_bytes: 4 << 20,
            ..EngineOptions::default()
        };
        let engine = models::engine(file, &options, Level::detect(), 3);
        let mut r = Random(5);
        let (n_vocab, width) = (engine.info().n_vocab, engine.info().width);
        let mut text = |shared: &[u32]| {
            let mut t = shared.to_vec();
            t.resize_with(400, || r.below(n_vocab) as u32);
            t
        };
        let first = text(&[]);
        let texts = [text(&first[..90]), text(&first[..230]), first];
        let rows = (0..60 * width).map(|i| (i % 17) as f32 / 17.0 - 0.5).collect();
        Steps {
            samplers: samplers(n_vocab),
            engine,
            r,
            live: Vec::with_capacity(parallel),
            texts,
            rows,
            seen: [0; KINDS.len()],
            parallel,
        }
    }

    /// Runs `n` steps; what they allocate is not counted.
    pub fn warm_up(&mut self, n: usize) {
        (0..n).for_each(|_| self.one());
    }

    /// Runs `n` steps and returns the number of the first that allocated.
    pub fn run(&mut self, n: usize) -> Option<usize> {
        (0..n).find(|_| counted(|| self.one()).1 > 0)
    }

    /// Fails unless everything happened, and forgets it.
    pub fn check_seen(&mut self, windows: bool) {
        for (kind, n) in KINDS.iter().zip(&self.seen) {
            let possible = windows || *kind != "window freed";
            assert!(*n > 0 || !possible, "no {kind} among the steps: {:?}", self.seen);
        }
        self.seen = [0; KINDS.len()];
    }

    fn saw(&mut self, kind: &str, n: usize) {
        let i = KINDS.iter().position(|k| *k == kind).expect("a kind of the list");
        self.seen[i] += n;
    }

    fn one(&mut self) {
        let before = self.engine.memory().stats();
        self.open();
        self.step();
        self.change();
        let after = self.engine.memory().stats();
        self.saw("eviction", (after.evictions - before.evictions) as usize);
        let groups = self.engine.info().groups.len();
        let freed =
            |memory: &mut Memory, seq| (0..groups).any(|g| memory.page_table(seq, g).first() == Some(&-1));
        let n = self.live.iter().filter(|l| freed(self.engine.memory(), l.seq)).count();
        self.saw("window freed", n);
    }

    fn open(&mut self) {
        if self.live.len() == self.parallel || (!self.live.is_empty() && self.r.below(4) > 0) {
            return;
        }
        let text = self.r.below(3);
        let seq = self.engine.open(0).expect("fewer are open than may be");
        self.saw("start", 1);
        let most = 1 + self.r.below(300);
        if let Some((snapshot, len)) = self.engine.memory().find(0, &self.texts[text][..most]) {
            self.engine.memory().attach(seq, snapshot, len).expect("it was just found");
            self.saw("attach", 1);
        }
        self.live.push(Live { seq, text });
    }

    fn step(&mut self) {
        let bounds = self.engine.bounds();
        let (mut rows, mut outputs, mut feeds) = (bounds.t, bounds.o, 0);
        self.engine.begin();
        for i in 0..self.live.len() {
            let Live { seq, text } = self.live[i];
            let len = self.engine.len(seq);
            let wished = [0, 1, 1, 1, self.r.below(8), self.r.below(60)][self.r.below(6)];
            let most = wished.min(rows).min(self.engine.ctx() - len);
            let (want, n, out) = match self.r.below(3) {
                0 => (Want::All, most.min(outputs), most.min(outputs)),
                1 if outputs > 0 => (Want::Last, most, most.min(1)),
                _ => (Want::None, most, 0),
            };
            let ready = n > 0 && self.r.below(6) == 0;
            let width = self.rows.len() / bounds.t;
            // The last, whose list is long, more often than others.
            let which = self.r.below(self.samplers.len() + 2).min(self.samplers.len() - 1);
            let feed = Feed {
                seq,
                ids: &self.texts[text][len..len + n],
                embeds: ready.then_some(&self.rows[..n * width]),
                want,
                sampler: [None, Some(&self.samplers[which])][self.r.below(2)],
            };
            match self.engine.feed(&feed) {
                Ok(()) => {}
                Err(EngineError::Room { .. }) => {
                    self.saw("list without room", 1);
                    continue;
                }
                Err(e) => panic!("{e}"),
            }
            feeds += 1;
            (rows, outputs) = (rows - n, outputs - out);
            self.saw(if n > 1 { "prefill" } else { "decode" }, usize::from(n > 0));
            self.saw("ready rows", usize::from(ready));
        }
        self.saw("no output", usize::from(outputs == bounds.o));
        self.saw("as many outputs as fit", usize::from(outputs == 0));
        self.engine.run().expect("every sequence has its pages");
        let copies = self.engine.memory().copies().len();
        self.saw("page copy", copies);
        self.take(feeds, bounds.o - outputs);
    }

    /// Looks at what was sampled, and lets the samplers hear of it.
    fn take(&mut self, feeds: usize, outputs: usize) {
        if feeds == 0 || outputs == 0 {
            return;
        }
        for o in 0..outputs {
            // The first feed's rows and those after it lie behind each other.
            let id = self.engine.sampled(0, o).expect("something is allowed");
            self.samplers.iter_mut().for_each(|s| s.push(id));
        }
        self.saw("sampled", outputs);
    }

    fn change(&mut self) {
        let Some(i) = (!self.live.is_empty()).then(|| self.r.below(self.live.len())) else { return };
        let Live { seq, text } = self.live[i];
        let len = self.engine.len(seq);
        match self.r.below(12) {
            0..4 => {
                self.engine.memory().snapshot(seq);
                self.saw("snapshot", 1);
            }
            4..6 => {
                let back = self.r.below(30).min(len);
                if self.engine.rollback(seq, len - back).is_ok() {
                    // It goes on with another text, so that a shared page is written.
                    self.live[i].text = self.r.below(3);
                    self.saw("rollback", 1);
                }
            }
            6 if self.live.len() < self.parallel => {
                let seq = self.engine.fork(seq).expect("fewer are open than may be");
                self.live.push(Live { seq, text: (text + 1) % 3 });
                self.saw("fork", 1);
            }
            7 | 8 => {
                self.engine.close(seq);
                self.live.swap_remove(i);
                self.saw("end", 1);
            }
            _ => {}
        }
    }
}
