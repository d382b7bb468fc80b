//! `cargo xtask embedding-goldens`: writes the goldens of embedding models, and says how near firth is to them.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use firth_conformance::embedding::{Golden, folder};
use firth_conformance::fixture;

/// The script that runs transformers.
const SCRIPT: &str = include_str!("../python/embedding_goldens.py");

/// Where from, where to.
#[derive(clap::Args)]
pub struct Args {
    /// A Python that has torch, transformers and numpy; without it the goldens that are there are compared
    #[arg(long)]
    python: Option<PathBuf>,
    /// Where they go; the folder of the tests by default
    #[arg(long)]
    out: Option<PathBuf>,
}

/// Writes them where a Python is given, then compares; whether all are within 1e-4.
pub fn run(a: &Args) -> Result<bool> {
    let out = a.out.clone().unwrap_or_else(folder);
    if let Some(python) = &a.python {
        let status = Command::new(python).args(["-c", SCRIPT]).arg(&out).status();
        let status = status.with_context(|| format!("running {}", python.display()))?;
        if !status.success() {
            bail!("{} ended with {status}", python.display());
        }
    }
    let mut good = true;
    for name in fixture::names(&out) {
        match Golden::read(&out, &name).error() {
            Ok((error, pooling)) => {
                println!("{name:<20} largest error {error:.1e}, with pooling {}", pooling.name());
                good &= error <= 1e-4;
            }
            Err(e) => {
                println!("{name:<20} FAILS: {e}");
                good = false;
            }
        }
    }
    Ok(good)
}
