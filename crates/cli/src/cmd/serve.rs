//! `firth serve`: a model over HTTP.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use firth::{EngineOptions, Gguf, Service, ServiceOptions};
use firth_server::{App, Door, ServerOptions, ThoughtLimit, Tls};
use tokio::runtime::Runtime;

use crate::args::Serve;
use crate::devices::engine_options;
use crate::progress;

/// Runs the command.
pub fn serve(mut a: Serve) -> Result<()> {
    if a.parallel == 0 {
        bail!("--parallel is 0, expected 1 or more");
    }
    if a.talk.common.log == "warn" {
        // A line for each request, unless less was asked for.
        a.talk.common.log = "warn,firth_server=info".into();
    }
    for (flag, folder) in
        [("--slot-save-path", &a.slot_save_path), ("--cache-dir", &a.cache_dir), ("--record", &a.record)]
    {
        if let Some(folder) = folder
            && !folder.is_dir()
        {
            bail!("{flag} {} is no folder", folder.display());
        }
    }
    if !a.metrics_prefix.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') || a.metrics_prefix.is_empty()
    {
        bail!("--metrics-prefix `{}`, expected letters, digits and _", a.metrics_prefix);
    }
    let api_keys = keys(&a)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.context("starting the server")?;
    let tls = tls(&a, &runtime)?;
    let at = format!("{}:{}", a.host, a.port);
    let listener = TcpListener::bind(&at).with_context(|| format!("listening on {at}"))?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    progress::say(format_args!("listening on {scheme}://{}", listener.local_addr()?));
    // From here on there are answers, if only that the model loads.
    let door = Door::new(a.cors);
    let grace = Duration::from_secs(a.grace);
    let listening = progress::listen();
    let serving = runtime.spawn(firth_server::serve(listener, door.clone(), tls, grace, told_to_end()));
    let go_on = || progress::go_on().is_continue() && !serving.is_finished();
    let said = |state: Result<(), &str>| match state {
        Ok(()) => progress::say("ready"),
        Err(why) => progress::say(format_args!("the engine has stopped: {why}; loading the model again")),
    };
    match firth_server::keep(&door, || load(&a, &api_keys), go_on, said) {
        Ok(()) => {}
        // Told to end while it loaded.
        Err(_) if progress::go_on().is_break() => {}
        Err(e) => return Err(e),
    }
    runtime.block_on(serving).context("serving")??;
    drop(listening);
    Ok(())
}

/// The model at work, as it is to be served.
fn load(a: &Serve, api_keys: &[String]) -> Result<Arc<App>> {
    let file = super::open(a.model.as_deref(), &a.talk.common.override_kv)?;
    let mut engine =
        EngineOptions { parallel: a.parallel, pooling: a.pooling, ..engine_options(&a.talk.common) };
    engine.embeddings = embeds(&file, &engine)?;
    let mut model = super::load_to_serve(file, &a.talk, engine)?;
    let options = ServerOptions {
        name: a.alias.clone().unwrap_or_else(|| name_of(a.model.as_deref())),
        path: a.model.clone().unwrap_or_default(),
        api_keys: api_keys.to_vec(),
        defaults: Some(super::sampling::params(&model, &a.talk.sampling)?),
        seed: a.talk.sampling.seed,
        stop: a.talk.sampling.stop.clone(),
        ignore_eos: a.talk.sampling.ignore_eos,
        thoughts: usize::try_from(a.reasoning_budget)
            .ok()
            .map(|tokens| ThoughtLimit { tokens, message: a.reasoning_budget_message.clone() }),
        metrics_prefix: a.metrics_prefix.clone(),
        slot_path: a.slot_save_path.clone(),
        record: a.record.clone(),
        ping: (a.ping > 0).then(|| Duration::from_secs(a.ping)),
    };
    say_memory(&mut model);
    let service = ServiceOptions {
        queue: a.queue,
        cache_dir: a.cache_dir.clone(),
        allocations: Some(allocations),
        ..ServiceOptions::default()
    };
    let service = Service::start(model, service).context("starting the engine")?;
    Ok(App::new(service, options)?)
}

/// Allocations of this thread so far.
fn allocations() -> u64 {
    let s = densa_alloc::thread_stats();
    s.allocs + s.reallocs
}

/// The certificate and its key, where connections are to be encrypted.
fn tls(a: &Serve, runtime: &Runtime) -> Result<Option<Tls>> {
    let (Some(certificate), Some(key)) = (&a.tls_cert, &a.tls_key) else { return Ok(None) };
    let tls = runtime.block_on(Tls::from_files(certificate, key));
    let files = || format!("reading --tls-cert {} and --tls-key {}", certificate.display(), key.display());
    tls.map(Some).with_context(files)
}

/// Whether the model's embeddings can be had; what stands in their way ends the start where a pooling was asked for.
fn embeds(file: &Gguf, engine: &EngineOptions) -> Result<bool> {
    match firth_engine::embedding_kind(file, engine) {
        Ok(_) => Ok(true),
        Err(e) if engine.pooling.is_some() => Err(e.into()),
        Err(e) => {
            progress::say(format_args!("warning: no embeddings are served: {e}"));
            Ok(false)
        }
    }
}

/// Says what each pool takes.
fn say_memory(model: &mut firth::Model) {
    let r = model.engine().report().clone();
    let (ctx, n) = (model.engine().ctx(), model.engine().bounds().s);
    let mib = |bytes: u64| bytes >> 20;
    progress::say(format_args!(
        "{n} sequences of {ctx} tokens; weights {} MiB, keys, values and cache up to {} MiB, scratch {} MiB",
        mib(r.weight_bytes),
        mib(r.page_bytes),
        mib(r.scratch_bytes)
    ));
}

fn keys(a: &Serve) -> Result<Vec<String>> {
    let mut keys = a.api_key.clone();
    if let Some(path) = &a.api_key_file {
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        keys.extend(text.lines().map(|l| l.trim().to_owned()));
    }
    keys.retain(|k| !k.is_empty());
    if keys.is_empty() && (a.api_key_file.is_some() || !a.api_key.is_empty()) {
        bail!("a key was asked for, but all keys given are empty");
    }
    Ok(keys)
}

fn name_of(model: Option<&str>) -> String {
    let stem = model.and_then(|m| Path::new(m).file_stem()).and_then(|s| s.to_str());
    stem.unwrap_or("firth-bundled").to_owned()
}

/// Ends with Ctrl-C or a request to terminate.
async fn told_to_end() {
    while progress::go_on().is_continue() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
