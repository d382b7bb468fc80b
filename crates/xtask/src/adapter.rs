//! `cargo xtask adapter`: a model on a GPU. The cut law there, and what a step costs the host.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use firth::{Device, Dtype, EngineOptions};
use firth_conformance::{cut_law, models};
use firth_engine::{Encoding, Engine, Feed, Sampler, Want};
use firth_gguf::Gguf;
use firth_gpu::{GpuDevice, GpuOptions};
use firth_sampling::Params;

/// Which model, and how much of it.
#[derive(clap::Args)]
pub struct Args {
    /// A GGUF file
    model: PathBuf,
    /// Number of the adapter
    #[arg(long, default_value_t = 0)]
    adapter: usize,
    /// Tokens of the cut law's sequence; 0 leaves it out
    #[arg(long, default_value_t = 128)]
    tokens: usize,
    /// Decoded tokens of which the host's time is measured; 0 leaves it out
    #[arg(long, default_value_t = 64)]
    steps: usize,
    /// Tokens of a prompt of which the longest submission is measured; 0 leaves it out
    #[arg(long, default_value_t = 0)]
    prompt: usize,
}

/// Cuts of the sequence; the last size repeats.
const CUTS: [&[usize]; 3] = [&[], &[1], &[7, 1, 32]];
const MATES: [usize; 2] = [0, 3];

/// Prints what was found; whether all bits were equal.
pub fn run(a: &Args) -> Result<bool> {
    let file = Arc::new(Gguf::open(&a.model).with_context(|| a.model.display().to_string())?);
    let device = GpuDevice::new(GpuOptions { adapter: a.adapter, ..GpuOptions::default() })?;
    println!("{} ({})", device.adapter().name, device.adapter().driver);
    let device: Arc<dyn Device> = Arc::new(device);
    let equal = a.tokens == 0 || law_holds(a, &file, &device)?;
    if a.steps > 0 {
        host_time(a, &file, &device)?;
    }
    if a.prompt > 0 {
        longest(a, &file, &device)?;
    }
    Ok(equal)
}

fn load(file: &Arc<Gguf>, device: &Arc<dyn Device>, options: &EngineOptions) -> Result<Engine> {
    Ok(Engine::load(file, vec![device.clone()], options, &mut |_| ControlFlow::Continue(()))?)
}

/// Whether bits are the same by every cut and beside others.
fn law_holds(a: &Args, file: &Arc<Gguf>, device: &Arc<dyn Device>) -> Result<bool> {
    let n = a.tokens;
    let ids = cut_law::ids(n, cut_law::vocab(file));
    let mut all = true;
    for kv in [Dtype::F16, Dtype::Q8_0] {
        let mut base = None;
        for mates in MATES {
            // Logits of all rows at once may be beyond a binding.
            let options = EngineOptions { outputs: Some(n.min(64)), ..cut_law::options(kv, n, mates) };
            let mut engine = load(file, device, &options)?;
            for cuts in CUTS {
                let start = Instant::now();
                let found = models::row_hashes(&mut engine, &ids, cuts, mates);
                let base = base.get_or_insert_with(|| found.clone());
                let first = found.iter().zip(base.iter()).position(|(a, b)| a != b);
                let verdict = first.map_or("equal".into(), |row| format!("row {row} DIFFERS"));
                let took = start.elapsed().as_secs_f64();
                println!("{}, {mates} mates, cuts {cuts:?}: {verdict}, {took:.1} s", kv.name());
                all &= first.is_none();
            }
        }
    }
    Ok(all)
}

/// Host time of decoded tokens: what it takes to fill, encode and submit a step.
fn host_time(a: &Args, file: &Arc<Gguf>, device: &Arc<dyn Device>) -> Result<()> {
    const WARM: usize = 4;
    let options =
        EngineOptions { ctx: Some(WARM + a.steps + 8), batch: 8, cache_bytes: 0, ..EngineOptions::default() };
    let mut engine = load(file, device, &options)?;
    let seq = engine.open(0)?;
    let sampler = Sampler::new(Params { temperature: 0.0, ..Params::default() }, 0, 0);
    let mut id = cut_law::ids(1, cut_law::vocab(file))[0];
    let mut each: Vec<Encoding> = Vec::with_capacity(a.steps);
    for step in 0..WARM + a.steps {
        engine.profile(true);
        let feed = Feed { seq, ids: &[id], embeds: None, want: Want::Last, sampler: Some(&sampler) };
        engine.step(&[feed])?;
        id = engine.sampled(0, 0)?;
        if step >= WARM {
            each.push(engine.encoding());
        }
    }
    let n = each.first().map_or(0, |e| e.dispatches);
    println!("{n} dispatches a token; filling, encoding and submitting, microseconds a dispatch:");
    let lines: [(&str, fn(&Encoding) -> Duration); 3] = [
        ("by the clock", |e| e.clock),
        ("this thread's own time", |e| e.own),
        ("the same, caches warm", |e| e.warm),
    ];
    for (name, of) in lines {
        let mut us: Vec<f64> = each.iter().map(|e| of(e).as_secs_f64() / n.max(1) as f64 * 1e6).collect();
        us.sort_by(f64::total_cmp);
        println!("  {name}: median {:.2}, least {:.2}", us[us.len() / 2], us[0]);
    }
    Ok(())
}

/// The longest submission of a prompt, in steps of the usual size.
fn longest(a: &Args, file: &Arc<Gguf>, device: &Arc<dyn Device>) -> Result<()> {
    let options = EngineOptions { ctx: Some(a.prompt + 8), cache_bytes: 0, ..EngineOptions::default() };
    let mut engine = load(file, device, &options)?;
    let seq = engine.open(0)?;
    let ids = cut_law::ids(a.prompt, cut_law::vocab(file));
    let start = Instant::now();
    engine.profile(true);
    for part in ids.chunks(engine.bounds().t) {
        engine.step(&[Feed { seq, ids: part, embeds: None, want: Want::Last, sampler: None }])?;
    }
    let e = engine.encoding();
    println!(
        "a prompt of {} tokens: {} dispatches in {} submissions, the longest {:.2} s, all {:.1} s",
        a.prompt,
        e.dispatches,
        e.submissions,
        e.longest.as_secs_f64(),
        start.elapsed().as_secs_f64()
    );
    Ok(())
}
