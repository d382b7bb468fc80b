//! Drafting heads of small trained models, by reference: teacher-forced log-probabilities against those of an
//! implementation of another origin, and keys written by the main program against keys written by the head.

use firth_conformance::by_reference::{self, Rows};
use firth_conformance::fixture;
use firth_gguf::Gguf;
use firth_graph::Array;
use firth_models::{build, build_draft, names};
use serde_json::Value as Json;

/// Files and their references.
const MODELS: &[(&str, &str)] =
    &[("qwen35-tiny-mtp-F32", "qwen35-tiny-mtp"), ("qwen35moe-tiny-mtp-F16", "qwen35moe-tiny-mtp-F16")];

/// Largest mean difference of log-probabilities.
const BOUND: f64 = 1e-5;

/// Prompts longer than this are left to the engine's tests.
const LONGEST: usize = 100;

/// Mean difference of the log-probabilities that a reference lists.
fn difference(logits: &Array, positions: &Json) -> f64 {
    let (mut sum, mut count) = (0.0, 0);
    for p in positions.as_array().expect("positions") {
        let row = logits.row(p["pos"].as_u64().expect("a position") as usize);
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f64 = row.iter().map(|x| f64::from(x - max).exp()).sum();
        for t in p["top"].as_array().expect("the best ids") {
            let id = t[0].as_u64().expect("an id") as usize;
            sum += (f64::from(row[id] - max) - total.ln() - t[1].as_f64().expect("a number")).abs();
            count += 1;
        }
    }
    sum / f64::from(count)
}

/// Each row after the one before it, the first after zeros.
fn shifted(hidden: &Array) -> Array {
    let (width, n) = (hidden.dims[0], hidden.f.len());
    Array { f: [&vec![0.0; width], &hidden.f[..n - width]].concat(), ..hidden.clone() }
}

#[test]
fn heads_agree_with_the_reference() {
    let Some(shared) = fixture::shared() else { return };
    let dir = shared.join("fixtures/tiny");
    for (name, reference) in MODELS {
        let file = Gguf::open(&dir.join(format!("{name}.gguf"))).expect("a small model");
        let model = firth_models::load(&file).expect("a known architecture");
        let text = std::fs::read_to_string(dir.join(format!("reference/{reference}.json"))).expect("a file");
        let json: Json = serde_json::from_str(&text).expect("JSON");
        for p in json["prompts"].as_array().expect("prompts") {
            let ids = p["tokens"].as_array().expect("ids").iter();
            let tokens: Vec<u32> = ids.map(|t| t.as_u64().expect("an id") as u32).collect();
            if tokens.len() > LONGEST {
                continue;
            }
            let n = tokens.len();
            let options = by_reference::options(n, 3);
            let main = build(&*model, &options).expect("a program");
            let mut it = by_reference::interpreter(&file, &main);
            let all = Rows { tokens: &tokens, first: 0, hidden: None };
            let [logits, hidden] = by_reference::run(&mut it, &main, &all, [names::LOGITS, names::HIDDEN]);
            let before = shifted(&hidden);

            let draft = build_draft(&*model, &options).expect("a program").expect("a head");
            let mut head = by_reference::interpreter(&file, &draft);
            let all = Rows { hidden: Some(&before), ..all };
            let [drafted] = by_reference::run(&mut head, &draft, &all, [names::LOGITS]);
            let [a, b] = [difference(&logits, &p["positions"]), difference(&drafted, &p["mtp_positions"])];
            println!("{name}, {n} tokens: trunk {a:.1e}, head {b:.1e}");
            assert!(a <= BOUND && b <= BOUND, "{name}: {a:e} and {b:e}");

            // The last row again, over the keys that the main program has written.
            let mut head = by_reference::interpreter(&file, &draft);
            for (state, decl) in head.states.iter_mut().zip(&draft.states) {
                let i = main.states.iter().position(|s| s.name == decl.name).expect("a state of both");
                assert_eq!(main.states[i].spec, decl.spec);
                *state = it.states[i].clone();
            }
            let width = before.dims[0];
            let row = Array { dims: [width, 1, 1, 1], f: before.f[width * (n - 1)..].into(), i: Vec::new() };
            let last = Rows { tokens: &tokens[n - 1..], first: n - 1, hidden: Some(&row) };
            let [again] = by_reference::run(&mut head, &draft, &last, [names::LOGITS]);
            assert_eq!(again.row(0), drafted.row(n - 1), "{name}: keys of the catch-up");
        }
    }
}
