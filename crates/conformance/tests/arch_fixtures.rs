//! Architecture fixtures against their reference logits.

use std::ops::ControlFlow;
use std::sync::Arc;

use firth::{Device, EngineOptions, LogitsOptions};
use firth_conformance::fixture::{self, Fixture};
use firth_cpu::{CpuDevice, CpuOptions};
use firth_engine::Engine;
use firth_quant::Dtype;

/// Fixtures that must pass, with their folders.
const FIXTURES: &[(&str, &str)] = &[
    ("arch", "llama-dense"),
    ("arch", "llama-moe"),
    ("arch", "qwen3-dense"),
    ("arch", "gemma3-dense"),
    ("arch-route", "llama-dense"),
    ("arch-route", "llama-moe"),
    ("arch-route", "qwen3-dense"),
    ("arch-route", "gemma3-dense"),
];

fn logits(f: &Fixture) -> Vec<f32> {
    let cpu: Arc<dyn Device> = Arc::new(CpuDevice::new(CpuOptions::new(2).expect("an instruction set")));
    let options =
        EngineOptions { kv: Dtype::F32, batch: 256, outputs: Some(256), ..EngineOptions::default() };
    let mut engine = Engine::load(&f.file, vec![cpu], &options, &mut |_| ControlFlow::Continue(()))
        .expect("a fixture loads");
    let mut out = Vec::new();
    firth::logits(&mut engine, &f.tokens, &LogitsOptions::default(), &mut |_, row| {
        out.extend_from_slice(row)
    })
    .expect("a fixture runs");
    out
}

#[test]
fn logits_agree_with_the_reference() {
    let Some(shared) = fixture::shared() else { return };
    let mut wrong = Vec::new();
    for (folder, name) in FIXTURES {
        let f = fixture::read(&shared.join("fixtures").join(folder), name);
        let e = fixture::nmse(&logits(&f), &f.logits);
        println!("{folder}/{name}: {e:.2e}");
        if e > 1e-6 {
            wrong.push(format!("{folder}/{name}: {e:.2e}"));
        }
    }
    assert!(wrong.is_empty(), "normalised squared error above 1e-6: {wrong:?}");
}
