//! The cut law on this machine and this model: the same bits alone, batched, cut, cached, at every instruction
//! set.

use std::ops::ControlFlow;
use std::sync::Arc;

use firth_engine::{Engine, EngineError, EngineOptions, Feed, Want};
use firth_gguf::Gguf;
use firth_graph::Device;

use crate::logits::{LogitsOptions, logits};

/// What to check with.
pub struct CheckOptions<'a> {
    /// Tokens of the sequence.
    pub ids: Vec<u32>,
    /// Settings of every engine; sequences, batch and outputs are set by the check.
    pub engine: EngineOptions,
    /// Instruction sets to compare, the first is the base's.
    pub levels: Vec<String>,
    /// Makes the devices for an instruction set and a number of threads.
    pub devices: &'a dyn Fn(&str, usize) -> Vec<Arc<dyn Device>>,
    /// Threads of the base.
    pub threads: usize,
}

/// The outcome of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// All bits equal.
    Equal,
    /// The first row of logits that differs, and in how many values.
    Differs {
        /// Index of the token.
        row: usize,
        /// Values of the row that differ.
        values: usize,
    },
    /// Not possible yet.
    NotInThisBuild,
}

/// A row of the table.
#[derive(Clone, Debug)]
pub struct CheckRow {
    /// What was varied.
    pub what: String,
    /// What came of it.
    pub verdict: Verdict,
}

/// Logits of all tokens as bits.
type Bits = Vec<Vec<u32>>;

struct Check<'a> {
    o: &'a CheckOptions<'a>,
    base: Bits,
    on: &'a mut dyn FnMut(&CheckRow),
    rows: Vec<CheckRow>,
}

/// Runs the check; `on` gets each row as it is known.
pub fn check(
    file: &Arc<Gguf>,
    options: &CheckOptions,
    on: &mut dyn FnMut(&CheckRow),
) -> Result<Vec<CheckRow>, EngineError> {
    let first = options.levels[0].clone();
    let base = {
        let mut engine = load(file, options, &first, options.threads, 1)?;
        collect(&mut engine, &options.ids, &LogitsOptions::default())?
    };
    let mut c = Check { o: options, base, on, rows: Vec::new() };
    let mut engine = load(file, options, &first, options.threads, 4)?;
    c.compare("batched with 3 other sequences", &mut engine, &[], 3)?;
    c.compare("cut into single tokens", &mut engine, &[1], 0)?;
    c.compare("cut into 17, 1, 1, 30, beside others", &mut engine, &[17, 1, 1, 30], 2)?;
    c.cached(&mut engine)?;
    c.forked(&mut engine)?;
    drop(engine);
    for threads in [1, 2, 3] {
        if threads != options.threads {
            let mut engine = load(file, options, &first, threads, 1)?;
            c.compare(&format!("{threads} threads"), &mut engine, &[], 0)?;
        }
    }
    for level in &options.levels[1..] {
        let mut engine = load(file, options, level, options.threads, 1)?;
        c.compare(&format!("instruction set {level}"), &mut engine, &[], 0)?;
    }
    for what in ["saved and restored", "drafted", "gpu"] {
        c.note(what, Verdict::NotInThisBuild);
    }
    Ok(c.rows)
}

fn load(
    file: &Arc<Gguf>,
    o: &CheckOptions,
    level: &str,
    threads: usize,
    parallel: usize,
) -> Result<Engine, EngineError> {
    let n = o.ids.len();
    let options = EngineOptions {
        ctx: Some(n + 8),
        parallel,
        batch: n + parallel,
        outputs: Some(n),
        ..o.engine.clone()
    };
    Engine::load(file, (o.devices)(level, threads), &options, &mut |_| ControlFlow::Continue(()))
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|z| z.to_bits()).collect()
}

fn collect(engine: &mut Engine, ids: &[u32], o: &LogitsOptions) -> Result<Bits, EngineError> {
    let mut out = Vec::with_capacity(ids.len());
    logits(engine, ids, o, &mut |_, row| out.push(bits(row)))?;
    Ok(out)
}

impl Check<'_> {
    fn note(&mut self, what: &str, verdict: Verdict) {
        let row = CheckRow { what: what.into(), verdict };
        (self.on)(&row);
        self.rows.push(row);
    }

    fn judge(&mut self, what: &str, first: usize, found: &Bits) {
        let differing = (found.iter().zip(&self.base[first..]).enumerate()).find(|(_, (a, b))| a != b);
        let verdict = match differing {
            None => Verdict::Equal,
            Some((i, (a, b))) => {
                Verdict::Differs { row: first + i, values: a.iter().zip(b).filter(|(x, y)| x != y).count() }
            }
        };
        self.note(what, verdict);
    }

    fn compare(
        &mut self,
        what: &str,
        engine: &mut Engine,
        cuts: &[usize],
        mates: usize,
    ) -> Result<(), EngineError> {
        let found = collect(engine, &self.o.ids, &LogitsOptions { cuts: cuts.to_vec(), mates })?;
        self.judge(what, 0, &found);
        Ok(())
    }

    /// A prefix from the tree, the rest computed.
    fn cached(&mut self, engine: &mut Engine) -> Result<(), EngineError> {
        let ids = self.o.ids.clone();
        let half = ids.len() / 2;
        let seq = engine.open(0)?;
        engine.step(&[Feed { seq, ids: &ids[..half], embeds: None, want: Want::None, sampler: None }])?;
        engine.memory().snapshot(seq);
        engine.close(seq);
        let seq = engine.open(0)?;
        let Some((snapshot, len)) = engine.memory().find(0, &ids[..ids.len() - 1]) else {
            engine.close(seq);
            self.note("prefix from the cache", Verdict::Differs { row: 0, values: 0 });
            return Ok(());
        };
        engine.memory().attach(seq, snapshot, len).expect("a snapshot just found is there");
        let found = rest(engine, seq, &ids[len..])?;
        engine.close(seq);
        self.judge("prefix from the cache", len, &found);
        Ok(())
    }

    /// A fork that goes another way, rolled back, and the same tokens again.
    fn forked(&mut self, engine: &mut Engine) -> Result<(), EngineError> {
        let ids = self.o.ids.clone();
        let half = ids.len() / 2;
        let seq = engine.open(0)?;
        engine.step(&[Feed { seq, ids: &ids[..half], embeds: None, want: Want::None, sampler: None }])?;
        let fork = engine.fork(seq)?;
        let wrong: Vec<u32> = ids[half..(half + 8).min(ids.len())].iter().rev().copied().collect();
        engine.step(&[Feed { seq: fork, ids: &wrong, embeds: None, want: Want::None, sampler: None }])?;
        engine.rollback(fork, half)?;
        let found = rest(engine, fork, &ids[half..])?;
        engine.close(fork);
        engine.close(seq);
        self.judge("forked, gone wrong, rolled back", half, &found);
        Ok(())
    }
}

fn rest(engine: &mut Engine, seq: firth_engine::Seq, ids: &[u32]) -> Result<Bits, EngineError> {
    engine.step(&[Feed { seq, ids, embeds: None, want: Want::All, sampler: None }])?;
    Ok((0..ids.len()).map(|o| bits(engine.logits(0, o))).collect())
}
