//! `cargo xtask cut-law`: the whole matrix.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use firth::Dtype;
use firth_conformance::cut_law::{CUTS, Law, cells};
use firth_conformance::mixture::{MixtureError, Mixtures};
use firth_conformance::{fixture, models};
use firth_cpu::Level;
use firth_gguf::Gguf;
use firth_models::ModelError;

const KVS: [Dtype; 2] = [Dtype::F16, Dtype::Q8_0];
const THREADS: [usize; 2] = [1, 2];
const MATES: [usize; 3] = [0, 3, 7];
/// Random mixtures of each model.
const MIXTURES: u64 = 30;
/// Architecture fixtures that run at every level; the others run at this machine's own.
const FIXTURES: &[&str] = &["llama-dense", "llama-moe", "qwen3-dense", "gemma3-dense"];

/// Which cells.
#[derive(clap::Args)]
pub struct Args {
    /// Only cells whose line contains this text; given several times, all of them
    #[arg(long)]
    only: Vec<String>,
    /// Print the cells and run none
    #[arg(long)]
    list: bool,
}

/// A model and how it is put to the test.
struct Subject {
    name: String,
    file: Arc<Gguf>,
    /// Tokens of the sequence.
    n: usize,
    /// Tokens of each text of a mixture.
    mixed: usize,
    levels: Vec<Level>,
    /// Whether it must be in one step, whole: nothing cuts it, and there are no mixtures.
    whole: bool,
}

/// Cells of one subject and level.
#[derive(Default)]
struct Tally {
    equal: usize,
    failed: usize,
    took: Duration,
}

/// Runs the cells and prints a line each, then a table; whether all are equal.
pub fn run(a: &Args) -> Result<bool> {
    let mut table: Vec<(String, Tally)> = Vec::new();
    for s in subjects()? {
        let mut law = Law::new(&s.file, s.n);
        let cuts = if s.whole { &CUTS[..1] } else { CUTS };
        for cell in cells(&KVS, &s.levels, &THREADS, &MATES, cuts) {
            let line = format!("{} {cell}", s.name);
            let row = format!("{}, {} tokens, {}", s.name, s.n, cell.level);
            a.one(&line, &row, &mut table, || {
                let first = law.first_difference(&cell)?;
                Ok(first.map(|row| format!("row {row} differs")))
            });
        }
        drop(law);
        if !s.whole {
            a.mixtures(&s, &mut table);
        }
    }
    Ok(print(&table))
}

impl Args {
    /// Runs one case if it is wanted: `None` of `case` stands for equal.
    fn one(
        &self,
        line: &str,
        row: &str,
        table: &mut Vec<(String, Tally)>,
        case: impl FnOnce() -> Result<Option<String>>,
    ) {
        if !self.only.iter().all(|text| line.contains(text)) {
            return;
        }
        if self.list {
            println!("{line}");
            return;
        }
        let start = Instant::now();
        // A case that cannot run has failed, and the others go on.
        let failure = case().unwrap_or_else(|e| Some(format!("{e:#}").replace('\n', " ")));
        let took = start.elapsed();
        let verdict = failure.as_ref().map_or("equal".into(), |why| format!("FAILED: {why}"));
        println!("{line:<72} {verdict} {:.1} s", took.as_secs_f64());
        let place = table.iter().position(|(r, _)| r == row).unwrap_or_else(|| {
            table.push((row.to_owned(), Tally::default()));
            table.len() - 1
        });
        let tally = &mut table[place].1;
        tally.took += took;
        *(if failure.is_none() { &mut tally.equal } else { &mut tally.failed }) += 1;
    }

    /// Thirty mixtures over the levels and numbers of threads, half with f16 and half with q8_0.
    fn mixtures(&self, s: &Subject, table: &mut Vec<(String, Tally)>) {
        let levels: Vec<Level> = fast(&s.levels);
        for kv in KVS {
            let mut mixtures = None;
            for seed in (0..MIXTURES).filter(|seed| KVS[*seed as usize % 2] == kv) {
                let (level, threads) =
                    (levels[(seed / 2) as usize % levels.len()], 1 + (seed / 4) as usize % 2);
                let line =
                    format!("{} mixture={seed} kv={} isa={level} threads={threads}", s.name, kv.name());
                let row = format!("{}, mixtures of texts of {} tokens", s.name, s.mixed);
                self.one(&line, &row, table, || {
                    let m = match &mut mixtures {
                        Some(m) => m,
                        none => none.insert(Mixtures::new(&s.file, kv, s.mixed)?),
                    };
                    match m.run(seed, level, threads) {
                        Ok(_) => Ok(None),
                        Err(e @ MixtureError::Differs { .. }) => Ok(Some(e.to_string())),
                        Err(MixtureError::Engine(e)) => Err(e.into()),
                    }
                });
            }
        }
    }
}

/// The levels that are fast everywhere, or all where there is none.
fn fast(levels: &[Level]) -> Vec<Level> {
    let fast: Vec<Level> =
        levels.iter().copied().filter(|l| matches!(l, Level::Avx2 | Level::Avx512)).collect();
    if fast.is_empty() { levels.to_vec() } else { fast }
}

/// The tiny models and fixtures at every level, a little past a page, then the real models at every level but the plainest.
fn subjects() -> Result<Vec<Subject>> {
    let Some(shared) = fixture::shared() else { bail!("there are no models to run") };
    let all: Vec<Level> = Level::available().collect();
    let mut out = Vec::new();
    for (name, file) in tiny(&shared.join("fixtures/tiny"))? {
        out.push(Subject { name, file, n: 70, mixed: 90, levels: all.clone(), whole: false });
    }
    for folder in ["arch", "arch-route"] {
        let dir = shared.join("fixtures").join(folder);
        for name in fixture::names(&dir) {
            let file = fixture::read(&dir, &name).file;
            let levels = if FIXTURES.contains(&name.as_str()) { all.clone() } else { vec![Level::detect()] };
            let whole = firth_models::load(&file).with_context(|| name.clone())?.info().both_ways;
            let name = format!("{folder}/{name}");
            out.push(Subject { name, file, n: 70, mixed: 90, levels, whole });
        }
    }
    let levels: Vec<Level> = all.into_iter().filter(|l| *l != Level::Scalar).rev().collect();
    for (name, n, mixed) in [(models::SMOLLM2, 600, 200), (models::GEMMA3, 1100, 600)] {
        if let Some(file) = models::real(name) {
            out.push(Subject { name: name.into(), file, n, mixed, levels: levels.clone(), whole: false });
        }
    }
    Ok(out)
}

/// The tiny trained models whose architecture this build knows; the others are named.
fn tiny(dir: &Path) -> Result<Vec<(String, Arc<Gguf>)>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "gguf") {
            paths.push(path);
        }
    }
    paths.sort();
    let mut out = Vec::new();
    for path in paths {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let file = Arc::new(Gguf::open(&path)?);
        match firth_models::load(&file) {
            Ok(_) => out.push((name, file)),
            Err(ModelError::Unknown { name: arch, .. }) => {
                eprintln!("left out: {name}, unknown architecture {arch}");
            }
            Err(e) => return Err(e).with_context(|| name),
        }
    }
    Ok(out)
}

/// The table; whether nothing failed.
fn print(table: &[(String, Tally)]) -> bool {
    println!();
    for (row, t) in table {
        let secs = t.took.as_secs_f64();
        println!("{row:<72} {} equal, {} failed, {secs:.0} s", t.equal, t.failed);
    }
    table.iter().all(|(_, t)| t.failed == 0)
}
