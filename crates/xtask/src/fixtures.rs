//! `cargo xtask fixtures`: which architectures firth runs, and how near to the reference.

use std::ops::ControlFlow;
use std::path::Path;

use anyhow::{Context, Result, bail};
use firth::{Dtype, EngineOptions, LogitsOptions};
use firth_conformance::fixture::{self, Fixture};
use firth_conformance::models;
use firth_cpu::Level;
use firth_engine::{Engine, EngineError};
use firth_models::ModelError;

/// Normalised squared error that passes.
const BOUND: f64 = 1e-6;

/// Which fixtures.
#[derive(clap::Args)]
pub struct Args {
    /// Only fixtures whose FOLDER/NAME contains this text
    #[arg(long)]
    only: Option<String>,
}

/// What came of a fixture.
enum Outcome {
    Passes(f64),
    Fails(String),
    Unknown,
}

/// Runs all and prints a line each; whether none failed. An unknown architecture is no failure.
pub fn run(a: &Args) -> Result<bool> {
    let Some(shared) = fixture::shared() else { bail!("there are no fixtures to run") };
    let (mut passed, mut failed, mut unknown) = (0, 0, 0);
    for folder in ["arch", "arch-route"] {
        let dir = shared.join("fixtures").join(folder);
        for name in names(&dir)? {
            let line = format!("{folder}/{name}");
            if a.only.as_ref().is_some_and(|only| !line.contains(only)) {
                continue;
            }
            let text = match outcome(&fixture::read(&dir, &name)) {
                Outcome::Passes(e) => {
                    passed += 1;
                    format!("passes, nmse {e:.2e}")
                }
                Outcome::Fails(why) => {
                    failed += 1;
                    format!("FAILS: {why}")
                }
                Outcome::Unknown => {
                    unknown += 1;
                    "unknown architecture".into()
                }
            };
            println!("{line:<40} {text}");
        }
    }
    println!("{passed} pass, {failed} fail, {unknown} of unknown architectures");
    Ok(failed == 0)
}

/// Names of the fixtures of a folder, in order.
fn names(dir: &Path) -> Result<Vec<String>> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))? {
        let name = entry?.file_name().into_string().unwrap_or_default();
        out.extend(name.strip_suffix(".json").map(str::to_owned));
    }
    out.sort();
    Ok(out)
}

fn outcome(f: &Fixture) -> Outcome {
    let n = f.tokens.len();
    let o = EngineOptions { kv: Dtype::F32, batch: n, outputs: Some(n), ..EngineOptions::default() };
    let cpu = models::cpu(Level::detect(), 2);
    let mut engine = match Engine::load(&f.file, vec![cpu], &o, &mut |_| ControlFlow::Continue(())) {
        Ok(engine) => engine,
        Err(EngineError::Model(ModelError::Unknown { .. })) => return Outcome::Unknown,
        Err(e) => return Outcome::Fails(e.to_string().replace('\n', " ")),
    };
    let mut found = Vec::new();
    let ran = firth::logits(&mut engine, &f.tokens, &LogitsOptions::default(), &mut |_, row| {
        found.extend_from_slice(row)
    });
    match ran {
        Err(e) => Outcome::Fails(e.to_string()),
        Ok(()) if found.len() != f.logits.len() => {
            Outcome::Fails(format!("{} logits, the reference has {}", found.len(), f.logits.len()))
        }
        Ok(()) => match fixture::nmse(&found, &f.logits) {
            e if e <= BOUND => Outcome::Passes(e),
            e => Outcome::Fails(format!("nmse {e:.2e}, at most {BOUND:.0e} passes")),
        },
    }
}
