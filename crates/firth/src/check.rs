//! The cut law on this machine and this model: the same bits alone, batched, cut, cached, drafted, rolled back,
//! saved, at every instruction set.

use std::ops::ControlFlow;
use std::sync::Arc;

use firth_engine::{DraftLength, Engine, EngineError, EngineOptions, Feed, Seq, SpecMode, SpecOptions, Want};
use firth_gguf::Gguf;
use firth_graph::Device;

use crate::error::Error;
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
) -> Result<Vec<CheckRow>, Error> {
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
    drop(engine);
    c.saved(file)?;
    let mut engine = load_drafting(file, options)?;
    c.drafted(&mut engine)?;
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
    c.note("gpu", Verdict::NotInThisBuild);
    Ok(c.rows)
}

fn load(
    file: &Arc<Gguf>,
    o: &CheckOptions,
    level: &str,
    threads: usize,
    parallel: usize,
) -> Result<Engine, EngineError> {
    let options = settings(o, parallel);
    Engine::load(file, (o.devices)(level, threads), &options, &mut |_| ControlFlow::Continue(()))
}

/// Guesses that a step of the check verifies at most.
const DRAFT: usize = 8;

/// An engine of two sequences whose guesses come from the check.
fn load_drafting(file: &Arc<Gguf>, o: &CheckOptions) -> Result<Engine, EngineError> {
    let spec = SpecOptions { mode: SpecMode::Custom, max: DRAFT, length: DraftLength::Fixed };
    let options = EngineOptions { spec, ..settings(o, 2) };
    let devices = (o.devices)(&o.levels[0], o.threads);
    Engine::load(file, devices, &options, &mut |_| ControlFlow::Continue(()))
}

fn settings(o: &CheckOptions, parallel: usize) -> EngineOptions {
    let n = o.ids.len();
    EngineOptions {
        ctx: Some(n + DRAFT),
        parallel,
        batch: n + parallel,
        outputs: Some(n),
        ..o.engine.clone()
    }
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

    /// Half of it saved to a file, the rest computed by another engine.
    fn saved(&mut self, file: &Arc<Gguf>) -> Result<(), Error> {
        let ids = self.o.ids.clone();
        let half = ids.len() / 2;
        let path = std::env::temp_dir().join(format!("firth-check-{}.state", std::process::id()));
        let engine = || load(file, self.o, &self.o.levels[0], self.o.threads, 1);
        let mut first = engine()?;
        let seq = first.open(0)?;
        first.step(&[Feed { seq, ids: &ids[..half], embeds: None, want: Want::None, sampler: None }])?;
        first.save(seq, &path)?;
        drop(first);
        let mut second = engine()?;
        let restored = second.load_state(0, &path);
        // The file is done with, whatever came of it.
        let _ = std::fs::remove_file(&path);
        let found = rest(&mut second, restored?, &ids[half..])?;
        self.judge("saved and restored", half, &found);
        Ok(())
    }

    /// Guesses, right up to some place and wrong from there on: what is right stays, or all but one of it.
    fn drafted(&mut self, engine: &mut Engine) -> Result<(), EngineError> {
        let ids = self.o.ids.clone();
        let seq = engine.open(0)?;
        let (mut found, mut random) = (Bits::new(), 1u64);
        let mut below = |n: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % n
        };
        while engine.len(seq) < ids.len() {
            let left = &ids[engine.len(seq)..];
            let certain = 1 + below(left.len().min(4));
            let drafted = below(DRAFT + 1).min(left.len() - certain);
            let right = below(drafted + 1);
            let mut rows = left[..certain + drafted].to_vec();
            rows[certain + right..].iter_mut().for_each(|id| *id = wrong(*id, &ids));
            let outs = draft(engine, seq, &rows, certain)?;
            found.truncate(engine.len(seq));
            found.extend(outs.into_iter().take(certain + right));
            engine.keep(0, certain + right.saturating_sub(below(2)));
        }
        engine.close(seq);
        self.judge("drafted", 0, &found);
        Ok(())
    }

    /// A fork that takes wrong guesses for right, rolled back, and the tokens that were to come.
    fn forked(&mut self, engine: &mut Engine) -> Result<(), EngineError> {
        let ids = self.o.ids.clone();
        let half = ids.len() / 2;
        let seq = engine.open(0)?;
        engine.step(&[Feed { seq, ids: &ids[..half], embeds: None, want: Want::None, sampler: None }])?;
        let fork = engine.fork(seq)?;
        let mut rows = ids[half..(half + 1 + DRAFT).min(ids.len())].to_vec();
        rows[1..].iter_mut().for_each(|id| *id = wrong(*id, &ids));
        draft(engine, fork, &rows, 1)?;
        engine.keep(0, rows.len());
        engine.rollback(fork, half + 1)?;
        let found = rest(engine, fork, &ids[half + 1..])?;
        engine.close(fork);
        engine.close(seq);
        self.judge("forked, gone wrong, rolled back", half + 1, &found);
        Ok(())
    }
}

/// Another id of the sequence, which the vocabulary therefore has.
fn wrong(id: u32, ids: &[u32]) -> u32 {
    ids.iter().copied().find(|other| *other != id).unwrap_or(id)
}

/// A step of rows of which the first `certain` are no guesses: the logits of all of them. What is to stay is for
/// the caller to say.
fn draft(engine: &mut Engine, seq: Seq, ids: &[u32], certain: usize) -> Result<Bits, EngineError> {
    let drafted = ids.len() - certain;
    engine.begin();
    engine.reserve(seq, certain, drafted);
    engine.plan()?;
    engine.feed_planned(&Feed { seq, ids, embeds: None, want: Want::All, sampler: None }, drafted)?;
    engine.compute()?;
    Ok((0..ids.len()).map(|o| bits(engine.logits(0, o))).collect())
}

fn rest(engine: &mut Engine, seq: Seq, ids: &[u32]) -> Result<Bits, EngineError> {
    engine.step(&[Feed { seq, ids, embeds: None, want: Want::All, sampler: None }])?;
    Ok((0..ids.len()).map(|o| bits(engine.logits(0, o))).collect())
}
