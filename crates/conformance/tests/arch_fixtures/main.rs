//! Architecture fixtures against their reference logits: each whose architecture is in the registry.
//! `FIRTH_FIXTURE=text` runs only those whose name contains the text.

mod options;

use std::ops::ControlFlow;
use std::sync::Arc;

use firth::{Device, EngineOptions, LogitsOptions};
use firth_conformance::fixture::{self, Fixture};
use firth_cpu::{CpuDevice, CpuOptions};
use firth_engine::Engine;
use firth_quant::Dtype;

/// Folders, and how many of their fixtures have an architecture in the registry.
const FOLDERS: &[(&str, usize)] = &[("arch", 127), ("arch-route", 42)];

/// Largest normalised squared error.
const BOUND: f64 = 1e-6;

/// Through the engine.
fn logits(f: &Fixture) -> Result<Vec<f32>, String> {
    let cpu: Arc<dyn Device> = Arc::new(CpuDevice::new(CpuOptions::new(2).expect("an instruction set")));
    let options =
        EngineOptions { kv: Dtype::F32, batch: 256, outputs: Some(256), ..EngineOptions::default() };
    let mut engine = Engine::load(&f.file, vec![cpu], &options, &mut |_| ControlFlow::Continue(()))
        .map_err(|e| e.to_string())?;
    let mut out = Vec::new();
    firth::logits(&mut engine, &f.tokens, &LogitsOptions::default(), &mut |_, row| {
        out.extend_from_slice(row)
    })
    .map_err(|e| e.to_string())?;
    Ok(out)
}

#[test]
fn logits_agree_with_the_reference() {
    let Some(shared) = fixture::shared() else { return };
    let filter = std::env::var("FIRTH_FIXTURE").ok();
    let mut wrong = Vec::new();
    for (folder, expected) in FOLDERS {
        let dir = shared.join("fixtures").join(folder);
        let mut known = 0;
        for name in fixture::names(&dir).iter().filter(|n| filter.as_ref().is_none_or(|f| n.contains(f))) {
            let f = fixture::read(&dir, name);
            let arch = f.file.metadata().require_str("general.architecture").expect("a name");
            if !firth_models::architectures().any(|a| a == arch) {
                continue;
            }
            known += 1;
            let outcome = logits(&f).map(|found| fixture::nmse(&found, &f.logits));
            match outcome {
                Ok(e) => println!("{folder}/{name}: {e:.2e}"),
                Err(ref e) => println!("{folder}/{name}: {e}"),
            }
            if !outcome.is_ok_and(|e| e <= BOUND) {
                wrong.push(format!("{folder}/{name}"));
            }
        }
        if filter.is_none() {
            assert_eq!(known, *expected, "fixtures of {folder} whose architecture is in the registry");
        }
    }
    assert!(wrong.is_empty(), "failed, or normalised squared error above {BOUND:e}: {wrong:?}");
}
