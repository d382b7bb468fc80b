//! The GPU of the tests: one device for all of a test's cases, since pipelines are made once a device.

use std::sync::{Arc, OnceLock};

use firth_gpu::{GpuDevice, GpuOptions};
use firth_graph::{Device, Policy};

use crate::harness::{Bits, Case, against_reference, load, run, same, tolerance};

/// The first adapter, or the one that `FIRTH_GPU` numbers. `None` where there is none, which is a failure under
/// `CI=true`.
pub fn device() -> Option<Arc<dyn Device>> {
    shared().map(|d| d as Arc<dyn Device>)
}

/// The same, as what it is.
pub fn shared() -> Option<Arc<GpuDevice>> {
    static DEVICE: OnceLock<Option<Arc<GpuDevice>>> = OnceLock::new();
    DEVICE.get_or_init(|| open(GpuOptions::default()).map(Arc::new)).clone()
}

/// A device of its own.
pub fn open(options: GpuOptions) -> Option<GpuDevice> {
    let adapter = std::env::var("FIRTH_GPU").ok().and_then(|n| n.parse().ok()).unwrap_or(options.adapter);
    match GpuDevice::new(GpuOptions { adapter, ..options }) {
        Ok(device) => Some(device),
        Err(e) => {
            let ci = std::env::var("CI").is_ok_and(|v| v == "true");
            assert!(!ci, "{e}, and CI=true");
            eprintln!("skipped: {e}");
            None
        }
    }
}

/// Everything that is demanded of a case on a GPU: within tolerance of the reference, and the same bits after
/// other data went through the same program.
pub fn check(case: &Case, device: &Arc<dyn Device>) -> Result<(), String> {
    let at = |what: String| format!("{}: {what}", case.name);
    let weights = case.weights();
    let mut runner = load(&case.graph, &weights, case.pages, vec![device.clone()], &Policy::FIRST)
        .map_err(|e| at(e.to_string()))?;
    let mut round = |r: usize| run(case, &mut runner, r).map_err(at);
    let (first, _, again) = (round(0)?, round(1)?, round(0)?);
    if !same(case, &again, &first) {
        return Err(at("the same steps gave other bits after other data".into()));
    }
    against_reference(case, &weights, &first, tolerance(case))
}

/// Within tolerance of the reference.
pub fn check_once(case: &Case, device: &Arc<dyn Device>) -> Result<(), String> {
    against_reference(case, &case.weights(), &bits(case, device)?, tolerance(case))
}

/// What a device makes of a case.
pub fn bits(case: &Case, device: &Arc<dyn Device>) -> Result<Bits, String> {
    let at = |what: String| format!("{}: {what}", case.name);
    let mut runner = load(&case.graph, &case.weights(), case.pages, vec![device.clone()], &Policy::FIRST)
        .map_err(|e| at(e.to_string()))?;
    run(case, &mut runner, 0).map_err(at)
}
