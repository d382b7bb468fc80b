//! What no fixture reaches: fixtures with other keys and tensors, against formulas in f64 and against one another.

use std::sync::Arc;

use firth_conformance::cut_law;
use firth_conformance::fixture::{self, Fixture, Replaced};
use firth_conformance::formula::MinimaxM3;
use firth_gguf::{Gguf, Value};
use firth_quant::Dtype;
use serde_json::{Value as Json, json};

use super::{BOUND, logits};

/// A fixture's description; `None` where the fixtures are absent.
fn description(name: &str) -> Option<Json> {
    let path = fixture::shared()?.join("fixtures/arch").join(format!("{name}.json"));
    Some(serde_json::from_str(&std::fs::read_to_string(path).expect("a description")).expect("JSON"))
}

/// With other values of keys of the architecture and other shapes of tensors, whose names end so.
fn changed(mut d: Json, keys: &[(&str, i64)], shapes: &[(&str, &[u64])]) -> Json {
    let arch = d["metadata"]["general.architecture"]["value"].as_str().expect("a name").to_string();
    for (key, value) in keys {
        d["metadata"][format!("{arch}.{key}")]["value"] = json!(value);
    }
    for tensor in d["tensors"].as_array_mut().expect("tensors") {
        let name = tensor["name"].as_str().expect("a name").to_string();
        if let Some((_, shape)) = shapes.iter().find(|(end, _)| name.ends_with(end)) {
            tensor["shape"] = json!(shape);
        }
    }
    d
}

fn run(file: Gguf, tokens: &[u32]) -> Result<Vec<f32>, String> {
    logits(&Fixture { file: file.into(), tokens: tokens.to_vec(), logits: Vec::new() })
}

fn check_cuts(name: &str, file: &Gguf) {
    let file = Arc::new(fixture::edited(file, Vec::new(), Vec::new()));
    cut_law::check(name, &file, 75, &cut_law::few_cells());
}

fn tokens(n: u32) -> Vec<u32> {
    (0..n).map(|i| (i * 37 + i * i * 11) % 128).collect()
}

/// MiniMax M3 with more blocks than its heads read.
#[test]
fn blocks_of_keys_are_chosen_by_each_head() {
    let Some(d) = description("minimax-m3-moe") else { return };
    let shapes: &[(&str, &[u64])] = &[
        ("attn_q.weight", &[256, 512]),
        ("attn_q.bias", &[512]),
        ("attn_output.weight", &[512, 256]),
        ("gate_inp.weight", &[256, 4]),
        ("gate_exps.weight", &[256, 384, 4]),
        ("up_exps.weight", &[256, 384, 4]),
        ("down_exps.weight", &[384, 256, 4]),
        ("exp_probs_b.bias", &[4]),
    ];
    let tokens = tokens(75);
    let file = |ratio: i64, n: i64, local: i64| {
        let keys = [
            ("attention.head_count", 4),
            ("expert_count", 4),
            ("attention.indexer.block_size", ratio),
            ("attention.indexer.top_k", n),
            ("attention.indexer.local_blocks", local),
        ];
        fixture::build(&changed(d.clone(), &keys, shapes))
    };
    let dense = run(file(4, 64, 1), &tokens).expect("a model");
    for (ratio, n, local) in [(4, 3, 1), (5, 6, 2), (16, 1, 1), (3, 4, 4)] {
        let found = run(file(ratio, n, local), &tokens).expect("a model");
        let model =
            MinimaxM3 { file: &file(ratio, n, local), n_heads: 4, kv_heads: 2, head_dim: 128, n_rot: 64 };
        let expected = model.logits(&tokens, ratio as usize, n as usize, local as usize);
        let (error, apart) = (fixture::nmse(&found, &expected), fixture::nmse(&found, &dense));
        println!("{n} blocks of {ratio}, the last {local}: {error:.2e}, from all keys {apart:.2e}");
        assert!(error <= BOUND && apart > 1e-4, "{n} blocks of {ratio}: {error}, from all keys {apart}");
    }
    check_cuts("blocks of keys", &file(4, 3, 1));
    let refused = run(file(4, 3, 4), &tokens).expect_err("more last blocks than blocks");
    assert!(refused.contains("local_blocks"), "{refused}");
}

/// A table that names experts by token, with rows of 32-bit integers.
fn table(layers: usize, used: usize, name: impl Fn(usize, usize) -> i32) -> Vec<Replaced> {
    let ids = (0..128 * used).map(|i| name(i / used, i % used));
    let bytes: Vec<u8> = ids.flat_map(i32::to_le_bytes).collect();
    let one = |i: usize| Replaced {
        name: format!("blk.{i}.ffn_gate_tid2eid.weight"),
        shape: vec![used as u64, 128],
        dtype: Dtype::I32,
        bytes: bytes.clone(),
    };
    (0..layers).map(one).collect()
}

/// DeepSeek 4 whose experts a table names: as the router's where the table says what the router would.
#[test]
fn experts_are_named_by_a_table() {
    let Some(shared) = fixture::shared() else { return };
    let f = fixture::read(&shared.join("fixtures/arch"), "deepseek4-moe");
    let layers = f.file.metadata().require_u32("deepseek4.block_count").expect("a key") as usize;
    let key = |name: &str, n: usize| (format!("deepseek4.{name}"), Value::U32(n as u32));
    let named = |used: usize, table: Vec<Replaced>| {
        fixture::edited(&f.file, vec![key("hash_layer_count", layers), key("expert_used_count", used)], table)
    };
    // All experts, in another order: the router's own weights.
    let found = run(named(2, table(layers, 2, |t, u| ((t + u) % 2) as i32)), &f.tokens).expect("a model");
    let error = fixture::nmse(&found, &f.logits);
    assert!(error <= BOUND, "all experts named: {error}");
    // One expert, by the token's id: what a router gives that prefers it.
    for e in 0..2 {
        let tokens: Vec<u32> = tokens(60).iter().map(|t| t / 2 * 2 + e).collect();
        let by_table = run(named(1, table(layers, 1, |t, _| t as i32 % 2)), &tokens).expect("a model");
        let bias = |i: usize| Replaced {
            name: format!("blk.{i}.exp_probs_b.bias"),
            shape: vec![2],
            dtype: Dtype::F32,
            bytes: (0..2).flat_map(|x| if x == e { 100.0f32 } else { 0.0 }.to_le_bytes()).collect(),
        };
        let preferred =
            fixture::edited(&f.file, vec![key("expert_used_count", 1)], (0..layers).map(bias).collect());
        assert!(by_table == run(preferred, &tokens).expect("a model"), "expert {e}");
    }
    check_cuts("a table of experts", &named(1, table(layers, 1, |t, _| t as i32 % 2)));
    let refused = run(named(1, table(layers, 1, |t, _| if t == 9 { 2 } else { 0 })), &f.tokens);
    let refused = refused.expect_err("an expert that there is not");
    assert!(refused.contains("ffn_gate_tid2eid") && refused.contains("2 for token 9"), "{refused}");
}

/// GroveMoE with groups of two experts: as with groups of one, whose small experts come in equal pairs.
#[test]
fn experts_of_a_group_share_a_small_one() {
    let Some(d) = description("grovemoe-moe") else { return };
    let file = |group: i64, chunks: u64| {
        let keys = [("expert_count", 4), ("expert_used_count", 2), ("experts_per_group", group)];
        let shapes: &[(&str, &[u64])] = &[
            ("gate_inp.weight", &[256, 4]),
            ("gate_exps.weight", &[256, 384, 4]),
            ("up_exps.weight", &[256, 384, 4]),
            ("down_exps.weight", &[384, 256, 4]),
            ("gate_chexps.weight", &[256, 128, chunks]),
            ("up_chexps.weight", &[256, 128, chunks]),
            ("down_chexps.weight", &[128, 256, chunks]),
        ];
        fixture::build(&changed(d.clone(), &keys, shapes))
    };
    let grouped = file(2, 2);
    let pairs = |t: &firth_gguf::TensorInfo| Replaced {
        name: t.name.clone(),
        shape: vec![t.shape[0], t.shape[1], 4],
        dtype: t.dtype,
        bytes: grouped.data(t).chunks(grouped.data(t).len() / 2).flat_map(|x| [x, x].concat()).collect(),
    };
    let chunks = grouped.tensors().iter().filter(|t| t.name.contains("chexps")).map(pairs).collect();
    let alone = fixture::edited(&file(1, 4), Vec::new(), chunks);
    let tokens = tokens(40);
    check_cuts("groups of experts", &grouped);
    let [grouped, alone] = [grouped, alone].map(|f| run(f, &tokens).expect("a model"));
    assert!(grouped == alone);
    let refused = run(file(3, 4), &tokens).expect_err("four experts in groups of three");
    assert!(refused.contains("experts_per_group"), "{refused}");
}
