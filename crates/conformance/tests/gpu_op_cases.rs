//! Every op on the GPU against its reference; a case that the device cannot run fails.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use firth_conformance::data::{self, Rng};
use firth_conformance::harness::{Ask, Case, Values, compare, cpu, same};
use firth_conformance::{cases, gpu, wgsl};
use firth_cpu::Level;
use firth_gpu::GpuOptions;
use firth_graph::Device;
use firth_quant::Dtype;

/// Checks a group of cases; with `FIRTH_CASE` only those whose name contains it, each with its time.
fn group(name: &str) {
    let Some(device) = gpu::device() else { return };
    let only = std::env::var("FIRTH_CASE").ok();
    let mut all = cases::group(name);
    all.retain(|c| only.as_ref().is_none_or(|o| c.name.contains(o)));
    let one = |c: &Case| {
        let start = std::time::Instant::now();
        let failed = gpu::check(c, &device).err();
        if only.is_some() {
            println!("{}: {:.2} s", c.name, start.elapsed().as_secs_f64());
        }
        failed
    };
    let failed: Vec<String> = all.iter().filter_map(one).collect();
    audit_kernels();
    assert!(failed.is_empty(), "{} of {} cases failed:\n{}", failed.len(), all.len(), failed.join("\n"));
}

/// Every kernel made so far keeps to the base.
fn audit_kernels() {
    static SEEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let kernels = gpu::shared().map(|d| d.kernels()).unwrap_or_default();
    wgsl::dump(&kernels);
    let mut wrong = Vec::new();
    for (name, text) in kernels {
        let new = SEEN.lock().expect("no test panics in here").insert(text.clone());
        if let Some(Err(e)) = new.then(|| wgsl::audit(&text)) {
            wrong.push(format!("{name}: {e}"));
        }
    }
    assert!(wrong.is_empty(), "kernels beyond the base of WebGPU:\n{}", wrong.join("\n"));
}

/// The same ids as the host's sampler draws: ties, -inf, top-k beyond the vocabulary, p of 0 and 1.
#[test]
fn sampler_draws_as_the_host() {
    let Some(device) = gpu::device() else { return };
    let case = cases::many_samples(10_000);
    if let Err(e) = gpu::check_once(&case, &device) {
        panic!("{e}");
    }
}

/// Products of many rows by kernels that share activations in workgroup memory: the bits of the portable ones for every type,
/// which the device finds out by itself, and odd sizes.
#[test]
fn fast_products() {
    let Some(device) = gpu::open(GpuOptions { fast: Some(true), ..GpuOptions::default() }) else { return };
    let device = Arc::new(device);
    let short = |d: Dtype| (d, if d.block_len() == 1 { 257 } else { 3 * d.block_len() });
    let long = [Dtype::F16, Dtype::Q8_0, Dtype::Q4_K].map(|d| (d, 2048));
    let on: Arc<dyn Device> = device.clone();
    let failed: Vec<String> = cases::products::types()
        .map(short)
        .chain(long)
        .filter_map(|(d, k)| gpu::check(&cases::products::tall(d, k, 163, 37), &on).err())
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    let (used, asked) = device.fast_products();
    println!("{used} of {asked} fast kernels are used");
    assert!(asked > 20 && used == asked, "{used} of {asked} give the portable kernels' bits");
    // Several in a dispatch; experts follow what was found.
    let together = [Dtype::F16, Dtype::Q8_0].map(cases::products::together);
    let by_expert =
        cases::group("experts").into_iter().filter(|c| c.name.starts_with("mat_mul_experts Q8_0"));
    let failed: Vec<String> =
        together.into_iter().chain(by_expert).filter_map(|c| gpu::check(&c, &on).err()).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    for name in ["mat_mul", "mat_mul_experts"] {
        let packed = device.kernels().iter().any(|(n, text)| *n == name && text.contains("dot4I8Packed"));
        assert!(packed, "no kernel of {name} has packed dot products");
    }
    for (name, text) in device.kernels() {
        wgsl::audit(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    wgsl::dump(&device.kernels());
}

/// What another order of a sum may change in products whose activations are the same integers.
const NEAR_CPU: f64 = 1e-12;

/// Activations of every kind: zeros, next to nothing, not finite, of one magnitude, and others.
fn all_kinds(ask: &Ask, rng: &mut Rng) -> Option<Values> {
    let k = ask.n() / ask.x.t;
    let mut all = rng.values(ask.n());
    for (r, row) in all.chunks_mut(k).enumerate() {
        match r {
            1 => row.fill(0.0),
            2 => row[k / 2..].iter_mut().for_each(|v| *v *= 1e-37),
            3 => row[k - 1] = f32::NAN,
            4 => row[7] = f32::NEG_INFINITY,
            5 => row.iter_mut().for_each(|v| *v = v.signum()),
            6 => row[k / 3] = 1e6,
            _ => {}
        }
    }
    Some(Values::F(all))
}

/// Products of quantised weights meet the CPU's blocks of activations, by plain integers and by packed dot products: its bits
/// where a sum has one term, and next to them where lanes share it or the driver's fma rounds twice.
#[test]
fn quantised_products_as_on_the_cpu() {
    let (Some(plain), Some(fast)) =
        (gpu::device(), gpu::open(GpuOptions { fast: Some(true), ..GpuOptions::default() }))
    else {
        return;
    };
    let fast: Arc<dyn Device> = Arc::new(fast);
    let on = cpu("cpu", Level::detect(), 1, Vec::new());
    let one = [Dtype::Q8_0, Dtype::Q4_0, Dtype::Q5_0, Dtype::IQ4_NL, Dtype::MXFP4];
    let many = [
        (Dtype::Q4_1, 96),
        (Dtype::Q5_1, 96),
        (Dtype::Q2_K, 768),
        (Dtype::Q3_K, 768),
        (Dtype::Q4_K, 768),
        (Dtype::Q5_K, 768),
        (Dtype::Q6_K, 768),
        (Dtype::IQ4_XS, 768),
        // Activations in pieces.
        (Dtype::Q8_0, 2592),
        (Dtype::Q4_K, 2304),
    ];
    let mut failed = Vec::new();
    for (dtype, k) in one.map(|d| (d, 32)).into_iter().chain(many) {
        let case = cases::products::tall(dtype, k, 45, 9).fill(all_kinds);
        let expected = gpu::bits(&case, &on).expect("the CPU has all types");
        for device in [&plain, &fast] {
            let found = gpu::bits(&case, device).expect("the GPU has all types");
            let outcome = match k {
                32 => same(&case, &found, &expected).then_some(()).ok_or("other bits".to_string()),
                _ => found.iter().flatten().zip(expected.iter().flatten()).try_for_each(|(a, b)| {
                    compare(&data::decode(Dtype::F32, a), &data::decode(Dtype::F32, b), NEAR_CPU)
                }),
            };
            failed.extend(outcome.err().map(|e| format!("{}: {e}", case.name)));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// The same where kernels are written out for the compilers of GPUs.
#[test]
fn fast_products_written_out() {
    let options = GpuOptions { fast: Some(true), compact: Some(false), ..GpuOptions::default() };
    let Some(device) = gpu::open(options) else { return };
    let device = Arc::new(device);
    let on: Arc<dyn Device> = device.clone();
    let case = cases::products::tall(Dtype::Q4_K, 768, 70, 17);
    gpu::check(&case, &on).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(device.fast_products(), (1, 1), "kernels used, of those that were tried");
    wgsl::dump(&device.kernels());
}

/// Sums of rows among the invocations of subgroups: the bits of those through workgroup memory, and right.
#[test]
fn sums_by_subgroups() {
    const REDUCE: [&str; 9] = [
        "rms_norm",
        "layer_norm",
        "l2_norm",
        "softmax",
        "row_dot",
        "router",
        "attend",
        "attend_chosen",
        "attend_pools",
    ];
    let (Some(plain), Some(device)) =
        (gpu::device(), gpu::open(GpuOptions { fast: Some(true), ..GpuOptions::default() }))
    else {
        return;
    };
    let fast = Arc::new(device);
    if !fast.adapter().features.contains(&"subgroups") {
        println!("skipped: {} has no subgroups", fast.adapter().name);
        return;
    }
    let reduces = |c: &Case| c.graph.ops.iter().any(|o| REDUCE.contains(&o.op.name()));
    let all = cases::all().into_iter().flat_map(|(_, group)| group).filter(reduces);
    let on: Arc<dyn Device> = fast.clone();
    let (mut n, mut failed) = (0, Vec::new());
    // Kernels differ by op: two cases of each.
    let mut of_op: BTreeMap<&str, Vec<Case>> = BTreeMap::new();
    for case in all {
        let op =
            case.graph.ops.iter().map(|o| o.op.name()).find(|o| REDUCE.contains(o)).expect("one of them");
        of_op.entry(op).or_default().push(case);
    }
    for case in of_op.into_values().flat_map(|c| c.into_iter().rev().take(2)) {
        n += 1;
        match (gpu::bits(&case, &plain), gpu::bits(&case, &on)) {
            (Ok(a), Ok(b)) if same(&case, &a, &b) => {}
            (Ok(_), Ok(_)) => failed.push(format!("{}: other bits", case.name)),
            (a, b) => failed.extend(a.err().into_iter().chain(b.err())),
        }
    }
    assert!(failed.is_empty(), "{} of {n}: {}", failed.len(), failed.join("\n"));
    assert_eq!(fast.subgroup_sums(), Some(true), "the device finds that its subgroups may be used");
    let shuffled = fast.kernels().into_iter().filter(|(_, text)| text.contains("subgroupShuffleXor"));
    let names: BTreeSet<&str> = shuffled.map(|(name, _)| name).collect();
    assert!(REDUCE.iter().all(|r| names.contains(r)), "{names:?}");
    for (name, text) in fast.kernels() {
        wgsl::audit(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    wgsl::dump(&fast.kernels());
}

firth_conformance::test_groups!(group);
