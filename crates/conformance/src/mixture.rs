//! Random mixtures of everything that sequences do beside each other; each row of logits must have the bits of its
//! text computed alone and at once.

use std::sync::Arc;

use firth::{Dtype, EngineOptions};
use firth_cpu::Level;
use firth_engine::{Engine, EngineError, Feed, Want};
use firth_gguf::Gguf;

use crate::cut_law::{ids, vocab};
use crate::models::{self, Random};

/// Texts that are computed side by side.
const TEXTS: usize = 4;

/// A model, texts, and the hashes of their logits computed alone.
pub struct Mixtures {
    file: Arc<Gguf>,
    options: EngineOptions,
    texts: Vec<Vec<u32>>,
    base: Vec<Vec<u64>>,
}

/// What a mixture did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Did {
    /// Steps.
    pub steps: usize,
    /// Sequences that were shortened.
    pub rollbacks: usize,
    /// Sequences that were split off another.
    pub forks: usize,
    /// Sequences that began with a cached prefix.
    pub cached: usize,
    /// Sequences that ended before their text.
    pub restarts: usize,
}

impl Did {
    /// Counts what another did too.
    pub fn add(&mut self, other: &Did) {
        self.steps += other.steps;
        self.rollbacks += other.rollbacks;
        self.forks += other.forks;
        self.cached += other.cached;
        self.restarts += other.restarts;
    }
}

/// Why a mixture failed.
#[derive(Debug, thiserror::Error)]
pub enum MixtureError {
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Bits that differ.
    #[error("row {row} of text {text} differs from the text computed alone")]
    Differs {
        /// The text.
        text: usize,
        /// Index of the token.
        row: usize,
    },
}

/// A running mixture: sequence `i` is at some prefix of text `of[i]`.
struct Run<'a> {
    m: &'a Mixtures,
    r: Random,
    engine: Engine,
    seqs: Vec<firth_engine::Seq>,
    of: Vec<usize>,
    did: Did,
}

impl Mixtures {
    /// Texts of `n` tokens and a few more.
    pub fn new(file: &Arc<Gguf>, kv: Dtype, n: usize) -> Result<Mixtures, EngineError> {
        let texts: Vec<Vec<u32>> = (0..TEXTS).map(|i| ids(n + i, vocab(file))).collect();
        let options = EngineOptions {
            ctx: Some(n + TEXTS),
            parallel: TEXTS + 1,
            batch: 2 * n,
            outputs: Some(2 * n),
            kv,
            cache_bytes: 64 << 20,
            ..EngineOptions::default()
        };
        let mut alone = models::try_engine(file, &options, Level::detect(), 2)?;
        let base = texts.iter().map(|t| models::row_hashes(&mut alone, t, &[], 0)).collect();
        Ok(Mixtures { file: Arc::clone(file), options, texts, base })
    }

    /// Runs one mixture until every sequence is at the end of its text.
    pub fn run(&self, seed: u64, level: Level, threads: usize) -> Result<Did, MixtureError> {
        let mut engine = models::try_engine(&self.file, &self.options, level, threads)?;
        let seqs = (0..TEXTS).map(|_| engine.open(0)).collect::<Result<Vec<_>, _>>()?;
        let of = (0..TEXTS).collect();
        let mut run = Run { m: self, r: Random(seed), engine, seqs, of, did: Did::default() };
        while (0..TEXTS).any(|i| run.left(i) > 0) {
            run.step()?;
            run.disturb()?;
        }
        Ok(run.did)
    }
}

impl Run<'_> {
    fn left(&self, i: usize) -> usize {
        self.m.texts[self.of[i]].len() - self.engine.len(self.seqs[i])
    }

    /// A step over some of the sequences, by random cuts.
    fn step(&mut self) -> Result<(), MixtureError> {
        let most = self.m.texts[0].len() / 4;
        let mut feeds = Vec::new();
        let mut which = Vec::new();
        for i in 0..TEXTS {
            let (done, text) = (self.engine.len(self.seqs[i]), self.of[i]);
            let largest = [1, 2, 20, most][self.r.below(4)];
            let n = self.r.below(largest + 1).min(self.left(i));
            if n > 0 {
                which.push((text, done, n));
                let ids = &self.m.texts[text][done..done + n];
                feeds.push(Feed { seq: self.seqs[i], ids, embeds: None, want: Want::All, sampler: None });
            }
        }
        self.engine.step(&feeds)?;
        self.did.steps += 1;
        for (f, (text, done, n)) in which.into_iter().enumerate() {
            for o in 0..n {
                if models::hash(self.engine.logits(f, o)) != self.m.base[text][done + o] {
                    return Err(MixtureError::Differs { text, row: done + o });
                }
            }
        }
        Ok(())
    }

    /// Something that must not show: a rollback, a fork in the place of another sequence, a snapshot, a sequence
    /// that begins again, from the cache where it can.
    fn disturb(&mut self) -> Result<(), MixtureError> {
        let i = self.r.below(TEXTS);
        let seq = self.seqs[i];
        match self.r.below(12) {
            0..=3 => {
                let back = self.engine.len(seq).saturating_sub(1 + self.r.below(5));
                // How far back is possible is the model's affair.
                self.did.rollbacks += usize::from(self.engine.rollback(seq, back).is_ok());
            }
            4 => {
                let j = (i + 1) % TEXTS;
                self.engine.close(self.seqs[j]);
                (self.seqs[j], self.of[j]) = (self.engine.fork(seq)?, self.of[i]);
                self.did.forks += 1;
            }
            5..=6 => _ = self.engine.memory().snapshot(seq),
            7 => {
                self.engine.close(seq);
                self.of[i] = self.r.below(TEXTS);
                self.seqs[i] = self.engine.open(0)?;
                self.did.restarts += 1;
                let text = &self.m.texts[self.of[i]];
                let memory = self.engine.memory();
                if let Some((id, n)) = memory.find(0, &text[..text.len() - 1]) {
                    memory.attach(self.seqs[i], id, n).expect("it was just found");
                    self.did.cached += 1;
                }
            }
            _ => {}
        }
        Ok(())
    }
}
