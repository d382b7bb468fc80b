//! The commands, one file each.

mod bench;
mod chat;
mod check;
mod devices;
mod embed;
mod imatrix;
mod inspect;
mod list;
mod logits;
mod perplexity;
mod pull;
mod quantize;
mod replay;
mod run;
mod sampling;
mod serve;
mod tokenize;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use firth::{EngineOptions, Gguf, Model, SpecMode, SpecOptions};

use crate::args::{Cli, Command, Common, Spec, Speculation, Talk};
use crate::devices::engine_options;
use crate::progress::{self, Progress};

/// Runs a command.
pub fn run(cli: Cli) -> Result<()> {
    progress::watch_interrupts();
    match cli.command {
        Command::Run(a) => run::run(a),
        Command::Chat(a) => chat::chat(a),
        Command::Serve(a) => serve::serve(*a),
        Command::Replay(a) => replay::replay(a),
        Command::Bench(a) => bench::bench(a),
        Command::Embed(a) => embed::embed(a),
        Command::Logits(a) => logits::logits(a),
        Command::Check(a) => check::check(a),
        Command::Perplexity(a) => perplexity::perplexity(a),
        Command::Tokenize(a) => tokenize::tokenize(a),
        Command::Detokenize(a) => tokenize::detokenize(a),
        Command::Imatrix(a) => imatrix::imatrix(a),
        Command::Inspect(a) => inspect::inspect(a),
        Command::List(a) => list::list(a),
        Command::Pull(a) => pull::pull(a),
        Command::Convert(a) => quantize::convert(a),
        Command::Quantize(a) => quantize::quantize(a),
        Command::Devices(a) => devices::devices(a),
    }
}

/// The file of a model, or the bundled one.
fn open(model: Option<&str>, overrides: &[String]) -> Result<Arc<Gguf>> {
    match model {
        Some(path) => Ok(firth::open(Path::new(path), overrides)?),
        None => Ok(firth::bundled()?),
    }
}

/// Loads a model with a progress bar.
fn load(file: Arc<Gguf>, c: &Common, options: &EngineOptions) -> Result<Model> {
    start_log(&c.log);
    warn_about_context(&file, options);
    let bar = Progress::new(file.file_bytes());
    let devices = crate::devices::open(c)?;
    for d in &devices {
        tracing::info!("device {}: {}", d.info().name, d.info().description);
    }
    let model = Model::load(file, devices, options, &mut |bytes| bar.add(bytes));
    bar.end();
    let model = model?;
    for w in model.vocab().warnings() {
        progress::say(format_args!("warning: {w}"));
    }
    Ok(model)
}

/// Loads a model that answers `parallel` requests at once, with its draft model and its template if others are named.
fn load_to_talk(file: Arc<Gguf>, a: &Talk, parallel: usize) -> Result<Model> {
    load_to_serve(file, a, EngineOptions { parallel, ..engine_options(&a.common) })
}

/// As [`load_to_talk`], with settings of the engine's but for its drafts.
fn load_to_serve(file: Arc<Gguf>, a: &Talk, options: EngineOptions) -> Result<Model> {
    let read =
        |path: &PathBuf| std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()));
    let template = a.chat_template.as_ref().map(read).transpose()?;
    let options = EngineOptions { spec: spec_options(&a.speculation)?, ..options };
    let mut model = load(file, &a.common, &options)?;
    if let Some(draft) = &a.speculation.draft {
        let file = open(Some(draft), &[])?;
        model.set_draft(file, crate::devices::open(&a.common)?, &options).context("draft model")?;
    }
    if let Some(source) = template {
        model.set_template(&source)?;
    }
    Ok(model)
}

fn spec_options(s: &Speculation) -> Result<SpecOptions> {
    let mode = match (s.spec, &s.draft) {
        (Spec::Draft | Spec::Auto, Some(_)) => SpecMode::Draft,
        (Spec::Draft, None) => bail!("--spec draft needs a draft model: give --draft MODEL"),
        (other, Some(_)) => {
            bail!("--draft names a model that --spec {other:?} does not ask; use --spec draft")
        }
        (Spec::None, None) => SpecMode::None,
        (Spec::Auto, None) => SpecMode::Auto,
        (Spec::Mtp, None) => SpecMode::Mtp,
        (Spec::Ngram, None) => SpecMode::Ngram,
    };
    Ok(SpecOptions { mode, max: s.spec_max, ..SpecOptions::default() })
}

fn start_log(level: &str) {
    let filter = tracing_subscriber::EnvFilter::new(level);
    // A line that cannot be written is lost: to complain on the same closed stderr would be a panic.
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).log_internal_errors(false);
    // A second start in one process finds the first in place, which is what is wanted.
    let _ = log.with_env_filter(filter).try_init();
}

fn warn_about_context(file: &Gguf, options: &EngineOptions) {
    let m = file.metadata();
    let arch = m.str("general.architecture").ok().flatten().unwrap_or_default();
    let own = m.u32(&format!("{arch}.context_length")).ok().flatten();
    if let (Some(ctx), Some(own)) = (options.ctx, own)
        && ctx > own as usize
    {
        progress::say(format_args!(
            "warning: --ctx {ctx} is beyond the model's context of {own}; expect worse text"
        ));
    }
}

/// Prints one JSON object.
fn print_json(v: &serde_json::Value) -> Result<()> {
    println!("{}", serde_json::to_string_pretty(v)?);
    Ok(())
}
