//! Embeddings and judgements of documents over HTTP.

mod common;

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use common::{Server, engine, options, start_file};
use firth::{EngineOptions, Gguf, ServiceOptions};
use firth_gguf::{Array, Value as Key, Writer};
use firth_quant::Dtype;
use serde_json::{Value, json};

/// The bundled model, with embeddings.
fn bundled() -> Server {
    let engine = EngineOptions { embeddings: true, ..engine() };
    start_file(firth::bundled().expect("the bundled model"), engine, options(), ServiceOptions::default())
}

/// A small BERT with words of one letter and a classifier of one score; its pooling is 2 for the first row or 4 for scores.
fn bert(pooling: u32) -> Server {
    let engine = EngineOptions { ctx: Some(64), parallel: 2, ..EngineOptions::default() };
    start_file(Arc::new(file(pooling)), engine, options(), ServiceOptions::default())
}

const WIDTH: u64 = 8;

fn file(pooling: u32) -> Gguf {
    let mut w = Writer::new();
    let m = w.metadata_mut();
    let numbers = [
        ("block_count", 1),
        ("context_length", 64),
        ("embedding_length", WIDTH as u32),
        ("feed_forward_length", 16),
        ("attention.head_count", 2),
        ("pooling_type", pooling),
    ];
    m.insert("general.architecture", Key::Str("bert".into()));
    for (key, n) in numbers {
        m.insert(format!("bert.{key}").as_str(), Key::U32(n));
    }
    m.insert("bert.attention.layer_norm_epsilon", Key::F32(1e-12));
    m.insert("tokenizer.ggml.model", Key::Str("bert".into()));
    let words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"].map(String::from).into_iter();
    let words: Vec<String> = words.chain(('a'..='z').map(|c| format!("\u{2581}{c}"))).collect();
    let types = (0..words.len()).map(|i| if i < 4 { 3 } else { 1 }).collect();
    let n_vocab = words.len() as u64;
    m.insert("tokenizer.ggml.tokens", Key::Array(Array::Str(words.iter().map(String::as_str).collect())));
    m.insert("tokenizer.ggml.token_type", Key::Array(Array::I32(types)));
    for (key, id) in [("padding", 0), ("unknown", 1), ("bos", 2), ("seperator", 3)] {
        m.insert(format!("tokenizer.ggml.{key}_token_id").as_str(), Key::U32(id));
    }
    let matrices = [
        ("token_embd.weight", [WIDTH, n_vocab]),
        ("position_embd.weight", [WIDTH, 64]),
        ("blk.0.attn_q.weight", [WIDTH, WIDTH]),
        ("blk.0.attn_k.weight", [WIDTH, WIDTH]),
        ("blk.0.attn_v.weight", [WIDTH, WIDTH]),
        ("blk.0.attn_output.weight", [WIDTH, WIDTH]),
        ("blk.0.ffn_up.weight", [WIDTH, 16]),
        ("blk.0.ffn_down.weight", [16, WIDTH]),
        ("cls.weight", [WIDTH, WIDTH]),
        ("cls.output.weight", [WIDTH, 1]),
    ];
    let norms = ["token_embd_norm.weight", "blk.0.attn_output_norm.weight", "blk.0.layer_output_norm.weight"];
    let mut add = |name: &str, shape: &[u64], value: &dyn Fn(u64) -> f32| {
        let n: u64 = shape.iter().product();
        let bytes: Vec<u8> = (0..n).flat_map(|i| value(i).to_le_bytes()).collect();
        w.add_tensor(name, shape, Dtype::F32, bytes).expect("a legal tensor");
    };
    for (k, (name, shape)) in matrices.iter().enumerate() {
        add(name, shape, &|i| ((i * 37 + k as u64 * 101) % 29) as f32 / 14.0 - 1.0);
    }
    norms.iter().for_each(|name| add(name, &[WIDTH], &|_| 1.0));
    let mut out = Vec::new();
    w.write_to(&mut out).expect("memory takes bytes");
    Gguf::from_bytes(out, "a small BERT").expect("what was written can be read")
}

fn numbers(v: &Value) -> Vec<f32> {
    v.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number") as f32).collect()
}

fn length(x: &[f32]) -> f32 {
    x.iter().map(|v| v * v).sum::<f32>().sqrt()
}

#[test]
fn forms_of_one_embedding() {
    let s = bundled();
    let ask = |body: Value| s.ask("/v1/embeddings", &body);
    let plain = ask(json!({ "input": "hello there", "model": "m" }));
    let one = numbers(&plain["data"][0]["embedding"]);
    assert!((length(&one) - 1.0).abs() < 1e-5, "{}", length(&one));
    assert_eq!((&plain["object"], &plain["model"]), (&json!("list"), &json!("m")));
    assert_eq!(plain["usage"]["prompt_tokens"], plain["usage"]["total_tokens"]);

    let bytes = ask(json!({ "input": ["hello there"], "encoding_format": "base64" }));
    let bytes = STANDARD.decode(bytes["data"][0]["embedding"].as_str().expect("text")).expect("base64");
    let of_bytes: Vec<f32> =
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four"))).collect();
    assert_eq!(of_bytes, one);

    let ids = s.ask("/tokenize", &json!({ "content": "hello there", "add_special": true }))["tokens"].clone();
    assert_eq!(numbers(&ask(json!({ "input": ids }))["data"][0]["embedding"]), one);

    // Beside others, in their order.
    let many: Vec<String> =
        (0..20).map(|i| format!("text number {i}")).chain(["hello there".into()]).collect();
    let all = ask(json!({ "input": many }));
    assert_eq!((all["data"].as_array().expect("a list").len(), &all["data"][20]["index"]), (21, &json!(20)));
    assert_eq!(numbers(&all["data"][20]["embedding"]), one);

    let short = numbers(&ask(json!({ "input": "hello there", "dimensions": 8 }))["data"][0]["embedding"]);
    let by = length(&one[..8]);
    assert!(short.len() == 8 && short.iter().zip(&one).all(|(a, b)| (a - b / by).abs() < 1e-5));

    let native = s.ask("/embedding", &json!({ "content": "hello there" }));
    assert_eq!(numbers(&native[0]["embedding"][0]), one);
    let raw = s.ask("/embedding", &json!({ "input": "hello there", "embd_normalize": -1 }));
    let ollama = s.ask("/api/embed", &json!({ "input": ["hello there"] }));
    assert_eq!(numbers(&ollama["embeddings"][0]), one);
    let older = s.ask("/api/embeddings", &json!({ "prompt": "hello there" }));
    assert_eq!(numbers(&older["embedding"]), numbers(&raw[0]["embedding"][0]));
    assert_eq!(s.ask("/api/embed", &json!({ "input": [] }))["embeddings"], json!([]));

    // Longer than the context of 512: Ollama's path cuts, the others refuse with both numbers.
    let long = "word ".repeat(3000);
    assert!(!s.ask("/api/embed", &json!({ "input": long }))["embeddings"][0].is_null());
    let e = s.post("/v1/embeddings", &json!({ "input": long })).json();
    assert_eq!((&e["error"]["code"], &e["error"]["n_ctx"]), (&json!(400), &json!(512)));
}

#[test]
fn what_cannot_be_embedded_is_refused() {
    let s = bundled();
    for (body, param) in [
        (json!({}), "input"),
        (json!({ "input": "" }), "input"),
        (json!({ "input": [] }), "input"),
        (json!({ "input": [1.5] }), "input"),
        (json!({ "input": "a", "encoding_format": "hex" }), "encoding_format"),
        (json!({ "input": "a", "dimensions": 0 }), "dimensions"),
        (json!({ "input": "a", "dimensions": 1_000_000 }), "dimensions"),
        (json!({ "input": "a", "embd_normalize": -7 }), "embd_normalize"),
    ] {
        let r = s.post("/v1/embeddings", &body);
        assert_eq!((r.status, &r.json()["error"]["param"]), (400, &json!(param)), "{body}");
    }
    assert_eq!(s.post("/v1/embeddings", &json!({ "input": [4_000_000_000u32] })).status, 400);
    let r = s.post("/v1/rerank", &json!({ "query": "a", "documents": ["b"] }));
    assert_eq!(r.status, 501, "{}", r.text());
}

#[test]
fn an_encoder_embeds_and_does_nothing_else() {
    let s = bert(2);
    let e = s.ask("/v1/embeddings", &json!({ "input": ["a b c", "c b a"] }));
    assert_eq!(e["usage"]["prompt_tokens"], 10);
    assert_ne!(e["data"][0]["embedding"], e["data"][1]["embedding"]);
    let asks = json!([{ "role": "user", "content": "a" }]);
    for (path, body) in [
        ("/v1/chat/completions", json!({ "messages": asks })),
        ("/v1/completions", json!({ "prompt": "a" })),
        ("/completion", json!({ "prompt": "a" })),
        ("/v1/responses", json!({ "input": "a" })),
        ("/v1/messages", json!({ "messages": asks, "max_tokens": 3 })),
        ("/infill", json!({ "input_prefix": "a", "input_suffix": "b" })),
        ("/api/generate", json!({ "prompt": "a", "stream": false })),
        ("/v1/rerank", json!({ "query": "a", "documents": ["b"] })),
    ] {
        let r = s.post(path, &body);
        assert_eq!(r.status, 501, "{path}: {}", r.text());
    }
    assert_eq!(s.get("/health").status, 200);
    assert_eq!(s.ask("/api/show", &json!({}))["capabilities"], json!(["embedding"]));
}

#[test]
fn documents_are_judged() {
    let s = bert(4);
    let documents = json!(["a b", "c", "x y z", { "text": "q" }]);
    let all = s.ask("/v1/rerank", &json!({ "query": "a", "documents": documents }));
    let results = all["results"].as_array().expect("results");
    let scores: Vec<f64> = results.iter().map(|r| r["relevance_score"].as_f64().expect("a score")).collect();
    assert!(scores.len() == 4 && scores.is_sorted_by(|a, b| a >= b) && scores[0] > scores[3], "{scores:?}");
    // [CLS] a [SEP] document [SEP]
    assert_eq!(all["usage"]["prompt_tokens"], 4 * 4 + 2 + 1 + 3 + 1);
    let best = s.ask(
        "/rerank",
        &json!({ "query": "a", "documents": documents, "top_n": 2, "return_documents": true }),
    );
    assert_eq!(best["results"].as_array().expect("results").len(), 2);
    assert!(best["results"][0]["document"]["text"].is_string());
    assert_eq!(best["results"][0]["index"], results[0]["index"]);
    // In the form of text-embeddings-inference.
    let texts = s.ask("/v1/reranking", &json!({ "query": "a", "texts": ["a b", "c"], "return_text": true }));
    assert!(texts[0]["text"].is_string() && texts[0]["score"].is_number(), "{texts}");
    for (body, param) in [
        (json!({ "documents": ["a"] }), "query"),
        (json!({ "query": "a" }), "documents"),
        (json!({ "query": "a", "documents": [] }), "documents"),
        (json!({ "query": "a", "documents": [7] }), "documents[0]"),
        (json!({ "query": "a", "documents": ["b"], "top_n": 0 }), "top_n"),
    ] {
        let r = s.post("/v1/rerank", &body);
        assert_eq!((r.status, &r.json()["error"]["param"]), (400, &json!(param)), "{body}");
    }
    let r = s.post("/v1/embeddings", &json!({ "input": "a" }));
    assert_eq!(r.status, 501, "{}", r.text());
}
