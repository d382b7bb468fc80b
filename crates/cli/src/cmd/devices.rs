//! `firth devices`: devices, or the plan of a model.

use std::collections::BTreeSet;

use anyhow::Result;
use firth::Device;
use firth::{EngineOptions, SpecMode, SpecOptions};
use firth_engine::{PlanSummary, plan_only};
use firth_graph::{Dispatch, Plan};
use serde_json::json;

use crate::args::Devices;
use crate::devices::{cpu, engine_options, open};

/// Runs the command.
pub fn devices(a: Devices) -> Result<()> {
    let Some(model) = &a.plan else { return list(&a) };
    let devices = open(&a.common)?;
    let file = super::open(Some(model), &a.common.override_kv)?;
    let options = |max: usize| {
        let mode = if max == 0 { SpecMode::None } else { SpecMode::Auto };
        let spec = SpecOptions { mode, max: max.max(1), ..SpecOptions::default() };
        EngineOptions { spec, ..engine_options(&a.common) }
    };
    let summary = plan_only(&file, &devices, &options(a.spec_max.unwrap_or(3)))?;
    // What rolling back costs: a sequence's slots for several lengths of draft, whoever drafts.
    let mut slots = Vec::new();
    if summary.info.slots {
        for max in [0, 3, 8, 16] {
            let mut options = options(max);
            if max > 0 {
                options.spec.mode = SpecMode::Custom;
            }
            slots.push((max, plan_only(&file, &devices, &options)?.slot_bytes));
        }
    }
    let names: Vec<String> = devices.iter().map(|d| d.info().name.clone()).collect();
    match a.json {
        true => super::print_json(&to_json(&summary, &names, &slots)),
        false => {
            print(&summary, &names, &slots);
            Ok(())
        }
    }
}

/// The CPU and every adapter.
fn list(a: &Devices) -> Result<()> {
    let cpu = cpu(&a.common)?;
    let (cpu, gpus) = (cpu.info(), firth_gpu::adapters());
    if a.json {
        let gpu = |g: &firth_gpu::AdapterSummary| {
            json!({
                "name": format!("gpu:{}", g.index),
                "description": g.name,
                "driver": g.driver,
                "memory_bytes": g.memory,
                "max_binding_bytes": g.max_binding,
                "features": g.features,
            })
        };
        let mut all = vec![json!({"name": cpu.name, "description": cpu.description})];
        all.extend(gpus.iter().map(gpu));
        return super::print_json(&json!({"devices": all}));
    }
    println!("{:<8} {}", cpu.name, cpu.description);
    for g in &gpus {
        println!("{:<8} {} ({})", format!("gpu:{}", g.index), g.name, g.driver);
        let memory = g.memory.map_or("memory unknown".into(), |m| format!("memory {}", mib(m)));
        println!("         {memory}, bindings of {}; {}", mib(g.max_binding), g.features.join(", "));
    }
    if gpus.is_empty() {
        println!("no GPU adapter: neither Vulkan, Metal nor DX12 offers one");
    }
    Ok(())
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

fn print(s: &PlanSummary, names: &[String], slots: &[(usize, u64)]) {
    println!(
        "{}: {} layers, width {}, vocabulary {}",
        s.info.arch, s.info.n_layers, s.info.width, s.info.n_vocab
    );
    println!(
        "largest step: {} rows, {} logits rows, {} sequences of {} tokens",
        s.plan.bounds.t, s.plan.bounds.o, s.plan.bounds.s, s.ctx
    );
    for (segment, dispatches) in s.plan.segments.iter().zip(&s.dispatches) {
        let (name, n) = (&names[segment.device], segment.ops.len());
        println!("segment on {name}: {n} ops, activations {}", mib(segment.arena_bytes as u64));
        if let Some(all) = dispatches {
            println!("dispatches per decoded token on {name}: {}; {}", all.len(), of_layers(all));
        }
    }
    for (device, (name, bytes)) in names.iter().zip(&s.weight_bytes).enumerate() {
        println!("weights on {name}: {}", mib(*bytes));
        if names.len() > 1 {
            parts(&s.plan, device).iter().for_each(|part| println!("  {part}"));
        }
    }
    println!("step inputs and outputs: {}", mib(s.plan.host.iter().map(|h| h.bytes as u64).sum()));
    println!("keys, values and states, with the cache: {} at most, taken as used", mib(s.state_bytes));
    for (max, bytes) in slots {
        println!("states of a sequence, drafts of {max}: {}", mib(*bytes));
    }
    println!("transfers inside a step: {}", s.plan.transfers().count());
    for t in s.plan.transfers() {
        println!("  {:?}: {}", t.of, mib(t.bytes as u64));
    }
    for (name, n) in &s.fusions.fired {
        println!("fused {name}: {n}");
    }
    println!("copies of views: {}", s.plan.copies.len());
}

/// Layers by the kernels that start in each: the most, and which they are.
fn of_layers(all: &[Dispatch]) -> String {
    let mut layers: Vec<(&str, Vec<&str>)> = Vec::new();
    for d in all.iter().filter(|d| d.scope.starts_with("blk.")) {
        match layers.iter_mut().find(|(scope, _)| *scope == d.scope) {
            Some((_, kernels)) => kernels.push(d.kernel),
            None => layers.push((&d.scope, vec![d.kernel])),
        }
    }
    match layers.iter().max_by_key(|(_, kernels)| kernels.len()) {
        Some((scope, kernels)) => {
            format!("most a layer: {} ({scope}: {})", kernels.len(), kernels.join(", "))
        }
        None => "none in layers".into(),
    }
}

fn to_json(s: &PlanSummary, names: &[String], slots: &[(usize, u64)]) -> serde_json::Value {
    let segment = |(g, all): (&firth_graph::Segment, &Option<Vec<Dispatch>>)| json!({"device": names[g.device], "ops": g.ops.len(), "activation_bytes": g.arena_bytes, "dispatches_per_token": all.as_ref().map(Vec::len)});
    json!({
        "arch": s.info.arch,
        "ctx": s.ctx,
        "bounds": {"rows": s.plan.bounds.t, "outputs": s.plan.bounds.o, "sequences": s.plan.bounds.s},
        "segments": s.plan.segments.iter().zip(&s.dispatches).map(segment).collect::<Vec<_>>(),
        "weight_bytes": s.weight_bytes,
        "host_bytes": s.plan.host.iter().map(|h| h.bytes).sum::<usize>(),
        "page_bytes": s.state_bytes,
        "spec": format!("{:?}", s.spec.mode).to_lowercase(),
        "slot_bytes": s.slot_bytes,
        "slot_bytes_by_draft": slots.iter().map(|(n, b)| json!({"spec_max": n, "bytes": b})).collect::<Vec<_>>(),
        "transfers": s.plan.transfers().count(),
        "fusions": s.fusions.fired.iter().map(|(n, k)| json!({"op": n, "fired": k})).collect::<Vec<_>>(),
        "copies": s.plan.copies.len(),
    })
}

/// What of a model lies on a device: experts, the other weights of layers, and what belongs to no layer.
fn parts(plan: &Plan, device: usize) -> Vec<String> {
    let (mut experts, mut layers, mut others) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    let here = plan.weight_specs.iter().zip(&plan.weight_device).filter(|(_, d)| **d == device);
    for (spec, _) in here.filter(|(spec, _)| !spec.uses.is_empty()) {
        let of_layer = spec.name.strip_prefix("blk.").and_then(|n| n.split_once('.'));
        match of_layer.and_then(|(layer, name)| Some((layer.parse::<usize>().ok()?, name))) {
            Some((layer, name)) if name.contains("exps.") => _ = experts.insert(layer),
            Some((layer, _)) => _ = layers.insert(layer),
            None => others.push(spec.name.clone()),
        }
    }
    let list = |all: &BTreeSet<usize>| all.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let mut out = Vec::new();
    for (what, all) in [("experts", &experts), ("mixers, norms, dense products", &layers)] {
        if !all.is_empty() {
            out.push(format!("{what} of layers {}", list(all)));
        }
    }
    out.extend((!others.is_empty()).then(|| others.join(", ")));
    out
}
