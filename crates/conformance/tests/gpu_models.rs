//! Whole models on the GPU: reference logits, no transfer inside a step, and the cut law on the adapter.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use firth::{Device, Dtype, EngineOptions, LogitsOptions};
use firth_conformance::{cut_law as law, fixture, gpu, models, wgsl};
use firth_cpu::Level;
use firth_engine::{
    DraftLength, Engine, Event, Feed, Placement, Request, Scheduler, SpecMode, SpecOptions, Want, plan_only,
};
use firth_gguf::Gguf;
use firth_gpu::GpuOptions;
use firth_sampling::Params;

/// Largest normalised squared error.
const BOUND: f64 = 1e-5;

/// Models whose cuts are compared: dense, experts, a window, a recurrence.
const CUT: &[&str] = &["llama-dense", "llama-moe", "qwen3-dense", "gemma3-dense", "qwen35-dense"];

fn load(file: &Arc<Gguf>, device: &Arc<dyn Device>, options: &EngineOptions) -> Engine {
    let on = &mut |_| ControlFlow::Continue(());
    Engine::load(file, vec![device.clone()], options, on).expect("a model of the tests loads")
}

fn plain(batch: usize) -> EngineOptions {
    EngineOptions { kv: Dtype::F32, batch, outputs: Some(batch), cache_bytes: 0, ..EngineOptions::default() }
}

/// The error of a model against its reference, with no transfer inside a step.
fn error(f: &fixture::Fixture, device: &Arc<dyn Device>) -> Result<f64, String> {
    let options = plain(128);
    let plan = plan_only(&f.file, std::slice::from_ref(device), &options).map_err(|e| e.to_string())?;
    let (segments, transfers) = (plan.plan.segments.len(), plan.plan.transfers().count());
    if (segments, transfers) != (1, 0) {
        return Err(format!("{segments} segments, {transfers} transfers"));
    }
    let on = &mut |_| ControlFlow::Continue(());
    let mut engine = Engine::load(&f.file, vec![device.clone()], &options, on).map_err(|e| e.to_string())?;
    let mut out = Vec::new();
    let each = &mut |_, row: &[f32]| out.extend_from_slice(row);
    firth::logits(&mut engine, &f.tokens, &LogitsOptions::default(), each).map_err(|e| e.to_string())?;
    Ok(fixture::nmse(&out, &f.logits))
}

/// Every fixture whose architecture is in the registry; `FIRTH_FIXTURE=text` runs only those whose name contains it.
#[test]
fn fixtures_agree_with_the_reference() {
    let (Some(shared), Some(device)) = (fixture::shared(), gpu::device()) else { return };
    let filter = std::env::var("FIRTH_FIXTURE").unwrap_or_default();
    let folders = ["arch", "arch-route"].map(|folder| shared.join("fixtures").join(folder));
    let mut all = Vec::new();
    for dir in &folders {
        all.extend(fixture::names(dir).into_iter().map(|name| dir.join(name)));
    }
    all.retain(|path| path.file_name().is_some_and(|n| n.to_string_lossy().contains(&filter)));
    let next = AtomicUsize::new(0);
    // Most of the time a driver compiles, on one core.
    let some = || {
        let mut found = Vec::new();
        while let Some(path) = all.get(next.fetch_add(1, Relaxed)) {
            let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { continue };
            let f = fixture::read(dir, &name.to_string_lossy());
            let arch = f.file.metadata().require_str("general.architecture").expect("a name");
            if firth_models::architectures().any(|a| a == arch) {
                let outcome = error(&f, &device);
                println!("{}: {outcome:?}", path.display());
                found.push((path, outcome));
            }
        }
        found
    };
    let found = std::thread::scope(|scope| {
        let other = scope.spawn(some);
        let mut found = some();
        found.extend(other.join().expect("no fixture panics"));
        found
    });
    let (mut wrong, mut worst, n) = (Vec::new(), 0.0f64, found.len());
    for (path, outcome) in found {
        match outcome {
            Ok(e) if e <= BOUND => worst = worst.max(e),
            other => wrong.push(format!("{}: {other:?}", path.display())),
        }
    }
    println!("{n} fixtures, worst {worst:.2e}");
    let kernels = gpu::shared().map(|d| d.kernels()).unwrap_or_default();
    wgsl::dump(&kernels);
    wrong.extend(
        kernels.iter().filter_map(|(name, text)| Some(format!("{name}: {}", wgsl::audit(text).err()?))),
    );
    assert!(wrong.is_empty(), "normalised squared error above {BOUND:e}, or no run: {wrong:#?}");
    assert!(n > 0, "no fixture is called {filter:?}");
}

/// The base that every adapter has suffices.
#[test]
fn base_limits_suffice() {
    let Some(shared) = fixture::shared() else { return };
    let Some(device) = gpu::open(GpuOptions { base_limits: true, ..GpuOptions::default() }) else { return };
    let device: Arc<dyn Device> = Arc::new(device);
    let f = fixture::read(&shared.join("fixtures/arch-route"), "qwen3-dense");
    assert!(error(&f, &device).is_ok_and(|e| e <= BOUND));
}

#[track_caller]
fn cut_law(name: &str, file: &Arc<Gguf>, device: &Arc<dyn Device>, n: usize, kv: Dtype) {
    let ids = law::ids(n, law::vocab(file));
    let options = |mates: usize| EngineOptions { outputs: Some(n.min(64)), ..law::options(kv, n, mates) };
    let base = models::row_hashes(&mut load(file, device, &options(0)), &ids, &[], 0);
    for mates in [0, 3] {
        let mut engine = load(file, device, &options(mates));
        for cuts in [&[][..], &[1], &[17, 1, 1, 30]] {
            let found = models::row_hashes(&mut engine, &ids, cuts, mates);
            let first = found.iter().zip(&base).position(|(a, b)| a != b);
            assert_eq!(
                first,
                None,
                "{name}: first row that differs; cuts {cuts:?}, {mates} mates, {}",
                kv.name()
            );
        }
    }
}

#[test]
fn cut_law_of_tiny_models() {
    let (Some(shared), Some(device)) = (fixture::shared(), gpu::device()) else { return };
    let path = shared.join("fixtures/tiny/qwen3-tiny-Q8_0.gguf");
    let file = Arc::new(Gguf::open(&path).expect("a tiny model"));
    for kv in [Dtype::F16, Dtype::Q8_0] {
        cut_law("qwen3-tiny", &file, &device, 70, kv);
    }
    for name in CUT {
        let f = fixture::read(&shared.join("fixtures/arch-route"), name);
        cut_law(name, &f.file, &device, 70, Dtype::F32);
    }
}

/// Ids of each prompt, and how many drafted ids were accepted.
fn answers(
    file: &Arc<Gguf>,
    device: &Arc<dyn Device>,
    spec: SpecOptions,
    temperature: f32,
) -> (Vec<Vec<u32>>, usize) {
    let options = EngineOptions {
        ctx: Some(256),
        parallel: 2,
        batch: 64,
        spec,
        // What is loaded stays on the device of all tests.
        cache_bytes: 1 << 20,
        ..EngineOptions::default()
    };
    let mut s = Scheduler::new(load(file, device, &options));
    let mut r = models::Random(11);
    let mut prompt = |n: usize| -> Vec<u32> { (0..n).map(|_| 300 + r.below(3000) as u32).collect() };
    let ask = |ids: Vec<u32>| Request::new(ids, Params { temperature, seed: 5, ..Params::default() }, 24);
    let asked = [prompt(5), prompt(1), prompt(70)].map(ask);
    let ids = asked.map(|a| s.submit(a).expect("a fair request"));
    let (mut out, mut accepted) = (vec![Vec::new(); ids.len()], 0);
    s.run_all(&mut |id, event| {
        let at = ids.iter().position(|i| *i == id).expect("one of ours");
        match event {
            Event::Token(t) => out[at].push(t),
            Event::Done(f) => accepted += f.timings.draft_n_accepted,
            Event::Failed(e) => panic!("request {at}: {e}"),
            _ => {}
        }
        ControlFlow::Continue(())
    })
    .expect("the device works");
    (out, accepted)
}

/// Bases, logs, rings and the head are on the device: drafts that are refused leave nothing behind.
#[test]
fn drafts_of_a_hybrid_do_not_show() {
    let (Some(file), Some(device)) = (models::tiny("qwen35-tiny-mtp-Q4_K_M.gguf"), gpu::device()) else {
        return;
    };
    for temperature in [0.0, 0.8] {
        let (plain, _) = answers(&file, &device, SpecOptions::default(), temperature);
        assert!(plain.iter().all(|ids| ids.len() > 1), "answers: {plain:?}");
        for max in [1, 3] {
            let spec = SpecOptions { mode: SpecMode::Mtp, max, length: DraftLength::Fixed };
            let (drafted, accepted) = answers(&file, &device, spec, temperature);
            assert_eq!(drafted, plain, "drafts of {max} at temperature {temperature}");
            assert!(accepted > 0, "no draft of {max} was accepted at temperature {temperature}");
        }
    }
}

/// A step is handed over in parts by what its sequences see, not by how long they may become.
#[test]
fn room_for_a_long_text_splits_no_short_step() {
    let (Some(shared), Some(device)) = (fixture::shared(), gpu::device()) else { return };
    let f = fixture::read(&shared.join("fixtures/arch-route"), "llama-dense");
    let ids = law::ids(32, law::vocab(&f.file));
    let submissions = [64, 1 << 15].map(|ctx| {
        let options = EngineOptions { ctx: Some(ctx), ..plain(32) };
        let mut engine = load(&f.file, &device, &options);
        let seq = engine.open(0).expect("a place for a sequence");
        engine.profile(true);
        for part in [&ids[..31], &ids[31..]] {
            let feed = Feed { seq, ids: part, embeds: None, want: Want::Last, sampler: None };
            engine.step(&[feed]).expect("a step");
        }
        engine.encoding().submissions
    });
    assert_eq!(submissions, [2, 2], "of two steps each, with room for 64 tokens and for 32768");
}

/// Dispatches of a decoded token, by layers: what a step costs the host.
#[test]
fn a_decoded_token_takes_few_dispatches() {
    let (Some(shared), Some(device)) = (fixture::shared(), gpu::device()) else { return };
    let mut wrong = Vec::new();
    let tiny = |name: &str| models::tiny(name).expect("it lies beside the fixtures");
    let arch = |name: &str| fixture::read(&shared.join("fixtures/arch"), name).file;
    for (name, file, most) in [
        ("llama-dense", arch("llama-dense"), 12),
        ("qwen3-dense", arch("qwen3-dense"), 12),
        ("llama-moe", arch("llama-moe"), 18),
        ("qwen3moe-moe", arch("qwen3moe-moe"), 18),
        ("qwen35-dense", arch("qwen35-dense"), 12),
        ("qwen35moe-moe", arch("qwen35moe-moe"), 18),
        // Weights of several types, and a log of drafts.
        ("qwen35-tiny", tiny("qwen35-tiny-mtp-Q4_K_M.gguf"), 12),
        ("qwen35moe-tiny", tiny("qwen35moe-tiny-mtp-F16.gguf"), 18),
    ] {
        let spec = SpecOptions { mode: SpecMode::Auto, ..SpecOptions::default() };
        let options = EngineOptions { kv: Dtype::F16, spec, ..EngineOptions::default() };
        let plan = plan_only(&file, std::slice::from_ref(&device), &options).expect("a model is planned");
        let [Some(all)] = &plan.dispatches[..] else { panic!("{:?}", plan.dispatches) };
        println!("{name}: {} dispatches", all.len());
        for layer in 0..plan.info.n_layers {
            let scope = format!("blk.{layer}");
            let kernels: Vec<_> = all.iter().filter(|d| d.scope == scope).map(|d| d.kernel).collect();
            println!("{name}, layer {layer}: {} dispatches: {}", kernels.len(), kernels.join(", "));
            if kernels.is_empty() || kernels.len() > most {
                wrong
                    .push(format!("{name}, layer {layer}: {} of at most {most}: {kernels:?}", kernels.len()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Experts and layers on a CPU beside the GPU: logits near those of either alone, the same bits every time, and the plan says
/// where the parts lie.
#[test]
fn parts_on_the_cpu() {
    let (Some(shared), Some(device)) = (fixture::shared(), gpu::device()) else { return };
    let cpu = models::cpu(Level::detect(), 1);
    let f = fixture::read(&shared.join("fixtures/arch-route"), "llama-moe");
    let both = || vec![device.clone(), cpu.clone()];
    let logits = |devices: Vec<Arc<dyn Device>>, placement| {
        let options = EngineOptions { placement, ..plain(32) };
        let on = &mut |_| ControlFlow::Continue(());
        let mut engine = Engine::load(&f.file, devices, &options, on).expect("a fixture loads");
        let mut out = Vec::new();
        let each = &mut |_, row: &[f32]| out.extend_from_slice(row);
        firth::logits(&mut engine, &f.tokens, &LogitsOptions::default(), each).expect("the devices work");
        out
    };
    let all = Placement::default();
    let (on_gpu, on_cpu) = (logits(vec![device.clone()], all), logits(vec![cpu.clone()], all));
    for (layers, experts_away) in [(None, 1), (None, 3), (Some(1), 0), (Some(2), 2)] {
        let placement = Placement { layers, experts_away };
        let options = EngineOptions { placement, ..plain(32) };
        let plan = plan_only(&f.file, &both(), &options).expect("a fixture is planned").plan;
        let on_cpu_of = |layer: usize, experts: bool| {
            let away = layer < experts_away && experts;
            away || layers.is_some_and(|n| layer + n < plan_layers(&f.file))
        };
        for (spec, &found) in plan.weight_specs.iter().zip(&plan.weight_device) {
            let Some((layer, name)) = spec.name.strip_prefix("blk.").and_then(|n| n.split_once('.')) else {
                continue;
            };
            let expected = on_cpu_of(layer.parse().expect("a number"), name.contains("_exps"));
            assert_eq!(found, usize::from(expected), "{placement:?}: {}", spec.name);
        }
        let found = logits(both(), placement);
        assert!(found == logits(both(), placement), "{placement:?}: other bits the second time");
        for (name, whole) in [("the GPU", &on_gpu), ("the CPU", &on_cpu), ("the reference", &f.logits)] {
            let error = fixture::nmse(&found, whole);
            assert!(error <= BOUND, "{placement:?}: {error:.2e} from {name}");
        }
    }
}

fn plan_layers(file: &Gguf) -> usize {
    file.metadata().require_u32("llama.block_count").expect("a number") as usize
}
