//! What goes wrong with a GPU is a value: a lost adapter, memory that does not suffice, sizes beyond a binding.

use std::ops::ControlFlow;
use std::sync::Arc;

use firth::{Device, Dtype, EngineOptions};
use firth_conformance::{cases, gpu, models};
use firth_engine::{Engine, EngineError, Event, Request, Scheduler};
use firth_gguf::Gguf;
use firth_gpu::{GpuDevice, GpuOptions};
use firth_sampling::Params;

const TINY: &str = "qwen35-tiny-mtp-Q4_0.gguf";

fn options_of(ctx: usize) -> EngineOptions {
    EngineOptions { ctx: Some(ctx), batch: 32, cache_bytes: 1 << 20, ..EngineOptions::default() }
}

fn load(file: &Arc<Gguf>, device: Arc<dyn Device>) -> Result<Engine, EngineError> {
    Engine::load(file, vec![device], &options_of(128), &mut |_| ControlFlow::Continue(()))
}

/// Answers one request; the adapter goes away after so many tokens.
fn answer(s: &mut Scheduler, lose: Option<(usize, &GpuDevice)>) -> (Vec<u32>, Option<EngineError>) {
    let mut request = Request::new(vec![300, 301, 302], Params { temperature: 0.0, ..Params::default() }, 12);
    request.end_ids.clear();
    s.submit(request).expect("a fair request");
    let (mut ids, mut failed) = (Vec::new(), None);
    let ended = s.run_all(&mut |_, event| {
        match event {
            Event::Token(t) => ids.push(t),
            Event::Failed(e) => failed = Some(e),
            _ => {}
        }
        if let Some((n, device)) = lose
            && ids.len() == n
        {
            device.lose();
        }
        ControlFlow::Continue(())
    });
    (ids, ended.err().or(failed))
}

#[test]
fn a_lost_adapter_is_reported_and_another_load_works() {
    let Some(file) = models::tiny(TINY) else { return };
    let open = || gpu::open(GpuOptions::default()).map(Arc::new);
    let Some(device) = open() else { return };
    let mut s = Scheduler::new(load(&file, device.clone()).expect("it loads"));
    let (expected, failed) = answer(&mut s, None);
    assert!(failed.is_none() && expected.len() == 12, "{failed:?}, {expected:?}");
    let (ids, failed) = answer(&mut s, Some((4, &device)));
    assert!(matches!(failed, Some(EngineError::Lost(_))), "{failed:?}");
    assert_eq!(ids, expected[..ids.len()], "what came before the loss");
    assert!(ids.len() < 12);
    // Again, without a hang or a panic: requests, states, loads.
    let (ids, failed) = answer(&mut s, None);
    assert!(ids.is_empty() && failed.is_some(), "{ids:?} {failed:?}");
    let error = load(&file, device.clone()).map(|_| ()).expect_err("nothing loads on a lost adapter");
    assert!(error.to_string().contains("gpu:"), "{error}");
    drop(s);
    assert_eq!(Arc::strong_count(&device), 1, "the engine has let go of the device");
    drop(device);
    let device = open().expect("the adapter is still there");
    let (ids, failed) = answer(&mut Scheduler::new(load(&file, device).expect("it loads again")), None);
    assert!(failed.is_none() && ids == expected, "{failed:?}, {ids:?}");
}

#[test]
fn a_budget_is_kept() {
    let Some(file) = models::tiny(TINY) else { return };
    let open = |max_bytes| gpu::open(GpuOptions { max_bytes: Some(max_bytes), ..GpuOptions::default() });
    let Some(device) = open(1 << 20) else { return };
    let device = Arc::new(device);
    let error = load(&file, device.clone()).map(|_| ()).expect_err("1 MiB is too little");
    let EngineError::TooLarge(e) = error else { panic!("{error}") };
    assert!(e.free == 1 << 20 && e.needed > e.free && e.device.starts_with("gpu:"), "{e}");
    assert_eq!(device.held_bytes(), 0, "what is refused takes nothing");
    let device = Arc::new(open(256 << 20).expect("an adapter"));
    let engine = load(&file, device.clone()).expect("256 MiB are enough");
    assert!(device.held_bytes() > 0 && device.held_bytes() <= 256 << 20, "{}", device.held_bytes());
    drop(engine);
    assert_eq!(device.held_bytes(), 0, "an engine leaves nothing behind");
    let engine = load(&file, device.clone()).expect("another finds the room");
    drop(engine);
    assert_eq!(device.held_bytes(), 0);
}

/// A matrix beyond one binding is split by rows.
#[test]
fn a_tensor_beyond_a_binding_works() {
    let Some(device) = gpu::open(GpuOptions { base_limits: true, ..GpuOptions::default() }) else { return };
    let case = cases::product(1024, 33_001);
    assert!(case.weights()[0].len() > 128 << 20);
    gpu::check_once(&case, &(Arc::new(device) as Arc<dyn Device>)).expect("as the reference");
}

/// The refusal names changes, and each of them suffices.
#[test]
fn a_refusal_tells_what_fits() {
    let Some(file) = models::tiny(TINY) else { return };
    let on = &mut |_| ControlFlow::Continue(());
    let large = EngineOptions { ctx: Some(4096), batch: 512, cache_bytes: 0, ..EngineOptions::default() };
    let Some(device) = gpu::open(GpuOptions::default()) else { return };
    let device = Arc::new(device);
    let engine = Engine::load(&file, vec![device.clone()], &large, on).expect("there is room");
    // A little less than that.
    let max_bytes = Some(device.held_bytes() / 100 * 85);
    drop((engine, device));
    let open = || Arc::new(gpu::open(GpuOptions { max_bytes, ..GpuOptions::default() }).expect("an adapter"));
    let error = Engine::load(&file, vec![open()], &large, on).map(|_| ()).expect_err("there is not");
    let EngineError::TooLarge(e) = error else { panic!("{error}") };
    assert_eq!(e.ways.len(), 3, "{e}");
    for way in &e.ways {
        let mut options = large.clone();
        match way.split_once(' ').expect("a flag and its value") {
            ("--batch", n) => options.batch = n.parse().expect("a number"),
            ("--ctx", n) => options.ctx = Some(n.parse().expect("a number")),
            ("--kv", "q8_0") => options.kv = Dtype::Q8_0,
            // These need a CPU beside the GPU.
            ("--gpu-layers" | "--cpu-experts", _) => continue,
            other => panic!("{other:?}"),
        }
        let outcome = Engine::load(&file, vec![open()], &options, on).map(|_| ());
        assert!(outcome.is_ok(), "{way}: {outcome:?}");
    }
}

/// Pages beyond what a kernel can see leave room in the cache, not in a load.
#[test]
fn a_cache_beyond_bindings_is_cut() {
    let Some(file) = models::tiny("qwen3-tiny-Q8_0.gguf") else { return };
    let options = GpuOptions { base_limits: true, max_bytes: Some(u64::MAX / 2), ..GpuOptions::default() };
    let Some(device) = gpu::open(options) else { return };
    let device = Arc::new(device);
    let o = EngineOptions { kv: Dtype::F32, cache_bytes: 1 << 40, ..options_of(64) };
    let engine = Engine::load(&file, vec![device.clone()], &o, &mut |_| ControlFlow::Continue(()));
    assert!(engine.is_ok(), "{:?}", engine.map(|_| ()));
}
