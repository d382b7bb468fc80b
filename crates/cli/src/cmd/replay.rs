//! `firth replay`: a recorded generation, run again.

use anyhow::{Context, Result, bail};
use firth::{Service, ServiceOptions};
use firth_server::{App, Record, ServerOptions};

use crate::args::Replay;
use crate::devices::engine_options;

/// Runs the command.
pub fn replay(a: Replay) -> Result<()> {
    let text = std::fs::read_to_string(&a.file).with_context(|| format!("reading {}", a.file.display()))?;
    let record: Record =
        serde_json::from_str(&text).with_context(|| format!("{} holds no record", a.file.display()))?;
    let file = super::open(a.model.as_deref(), &a.common.override_kv)?;
    let model = super::load(file, &a.common, &engine_options(&a.common))?;
    let service = Service::start(model, ServiceOptions::default()).context("starting the engine")?;
    let app = App::new(service, ServerOptions::default())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting")?;
    let replayed = runtime.block_on(firth_server::replay(&app, &record));
    let replayed = replayed.map_err(|e| anyhow::anyhow!(e.message))?;
    println!("{}", replayed.text);
    match replayed.difference {
        None => Ok(()),
        Some(what) => bail!("not the same: {what}"),
    }
}
