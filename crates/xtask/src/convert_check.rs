//! `cargo xtask convert-check`: small random checkpoints of every family that transformers writes, converted, and
//! their logits beside transformers' own.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use firth_conformance::checkpoint;

/// Largest difference that passes.
const BOUND: f32 = 1e-4;

/// Where to work.
#[derive(clap::Args)]
pub struct Args {
    /// A Python environment with torch and transformers, to write the checkpoints anew
    #[arg(long)]
    python: Option<PathBuf>,
    /// Their folder; what is there is replaced
    #[arg(long, default_value = "target/checkpoints")]
    folder: PathBuf,
    /// Only these families
    names: Vec<String>,
}

/// Prints a line for each; whether all are near enough.
pub fn run(a: &Args) -> Result<bool> {
    if let Some(python) = &a.python {
        write(python, a)?;
    }
    let mut good = true;
    for folder in checkpoint::folders(&a.folder) {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !a.names.is_empty() && !a.names.contains(&name) {
            continue;
        }
        let (text, passes) = match checkpoint::worst_difference(&folder) {
            Ok(worst) => (format!("{worst:.2e}"), worst <= BOUND),
            Err(e) => (e.replace('\n', " "), false),
        };
        println!("{name:<12} {} {text}", if passes { "passes" } else { "FAILS " });
        good &= passes;
    }
    Ok(good)
}

fn write(python: &Path, a: &Args) -> Result<()> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/checkpoints.py");
    let program = python.join("bin/python");
    let mut command = Command::new(&program);
    command.arg(script).arg(&a.folder).args(&a.names);
    let status = command.status().with_context(|| format!("running {}", program.display()))?;
    if !status.success() {
        bail!("the script that writes checkpoints ended with {status}");
    }
    Ok(())
}
