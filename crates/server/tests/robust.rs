//! Clients that send nonsense, come too many, or go away.

mod common;

use std::time::{Duration, Instant};

use firth::ServiceOptions;
use firth_server::ServerOptions;
use serde_json::{Value, json};

const PATHS: [&str; 7] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/completion",
    "/infill",
    "/tokenize",
    "/detokenize",
    "/apply-template",
];

#[test]
fn bodies_that_are_nonsense_are_refused() {
    const UNREAD: [usize; 2] = [7, 8];
    let s = common::server();
    let deep = format!("{{\"prompt\":{}{}}}", "[".repeat(10_000), "]".repeat(10_000));
    let deep_schema =
        format!("{{\"messages\":[],\"json_schema\":{}1{}}}", "{\"a\":".repeat(9_999), "}".repeat(9_999));
    let bodies: Vec<Vec<u8>> = vec![
        b"".to_vec(),
        b"{".to_vec(),
        b"null".to_vec(),
        b"[1,2]".to_vec(),
        b"\xff\xfe{}".to_vec(),
        b"{\"prompt\":\"\xc3\"}".to_vec(),
        "[".repeat(50_000).into_bytes(),
        deep.into_bytes(),
        deep_schema.into_bytes(),
        b"{\"prompt\":1e999,\"content\":1e999,\"tokens\":[1e999],\"messages\":1e999}".to_vec(),
        b"{\"prompt\":[123456789012345678901234567890],\"tokens\":[99999999999],\"content\":{},\"messages\":7}".to_vec(),
        b"{\"prompt\":\"a\",\"temperature\":\"hot\",\"messages\":[7],\"content\":[[]],\"tokens\":\"x\"}".to_vec(),
        b"{\"prompt\":\"a\",\"stream\":\"true\",\"messages\":[{}],\"content\":true,\"tokens\":{}}".to_vec(),
        b"{\"prompt\":[],\"messages\":[],\"content\":[null],\"tokens\":[-1]}".to_vec(),
    ];
    for path in PATHS {
        for (i, body) in bodies.iter().enumerate() {
            let r = s.post_bytes(path, body, "");
            let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
            // What an endpoint does not read may be as deep as it likes.
            if path.ends_with("tokenize") && UNREAD.contains(&i) {
                assert!(r.status < 500, "{}", r.text());
                continue;
            }
            assert!(
                (400..500).contains(&r.status) || r.status == 501,
                "{path} {shown}: {} {}",
                r.status,
                r.text()
            );
            let v = r.json();
            assert!(v["error"]["message"].as_str().is_some_and(|m| !m.is_empty()), "{v}");
        }
    }
    let wrong = s.post(
        "/v1/chat/completions",
        &json!({"messages": [{"role": "user", "content": "a"}], "stream": "yes"}),
    );
    assert_eq!((wrong.status, wrong.json()["error"]["param"].clone()), (400, json!("stream")));
    assert_eq!(s.get("/nowhere").status, 404);
    assert_eq!(s.get("/v1/chat/completions").status, 405);
    assert_eq!(s.get("/health").json(), json!({"status": "ok"}));
}

#[test]
fn an_over_long_prompt_is_told_both_numbers() {
    let s = common::server();
    let ids: Vec<u32> = vec![7; 512];
    for path in ["/v1/completions", "/completion"] {
        let r = s.post(path, &json!({"prompt": ids}));
        let e = &r.json()["error"];
        assert_eq!((r.status, &e["type"]), (400, &json!("exceed_context_size_error")));
        assert_eq!((&e["n_prompt_tokens"], &e["n_ctx"]), (&json!(512), &json!(512)));
        assert!(e["message"].as_str().is_some_and(|m| m.contains("exceeds the available context size")));
    }
    let fits = s.ask("/completion", &json!({"prompt": ids[1..], "temperature": 0, "ignore_eos": true}));
    assert_eq!((&fits["tokens_predicted"], &fits["truncated"]), (&json!(1), &json!(true)));
}

#[test]
fn keys() {
    let o = ServerOptions { api_keys: vec!["one".into(), "two".into()], ..common::options() };
    let s = common::start(common::engine(), o, ServiceOptions::default());
    let body = json!({"content": "a"}).to_string();
    let status = |header: &str| s.post_bytes("/tokenize", body.as_bytes(), header).status;
    assert_eq!(status(""), 401);
    assert_eq!(status("Authorization: Bearer three\r\n"), 401);
    assert_eq!(status("Authorization: Bearer two\r\n"), 200);
    assert_eq!(status("X-Api-Key: one\r\n"), 200);
    assert_eq!(s.get("/health").status, 200);
    assert_eq!(s.get("/metrics").status, 401);
}

fn long(stream: bool) -> Vec<u8> {
    let body = json!({"prompt": "a", "ignore_eos": true, "temperature": 0, "stream": stream});
    common::request("/v1/completions", body.to_string().as_bytes(), "")
}

/// Clients that go away, in the queue, in the prompt and while tokens come, leave nothing behind.
#[test]
fn who_goes_away_is_gone() {
    let s = common::server();
    for stream in [true, false] {
        let steps = || s.app.service.counts().steps.load(std::sync::atomic::Ordering::Relaxed);
        let open: Vec<_> = (0..9).map(|_| s.open(&long(stream))).collect();
        let start = Instant::now();
        while s.app.service.taken() < 9 || s.app.service.slots().iter().all(|s| s.n_said == 0) {
            assert!(start.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(1));
        }
        let before = steps();
        drop(open);
        s.wait_idle(Duration::from_secs(20));
        // 511 tokens each would have been 1,533 steps.
        assert!(steps() - before < 1000, "{} steps after they had gone", steps() - before);
    }
    let first =
        s.ask("/completion", &json!({"prompt": "a", "n_predict": 3, "temperature": 0, "ignore_eos": true}));
    assert_eq!(first["tokens_predicted"], 3);
}

/// Who goes away while it is queued never begins, whatever it asked.
#[test]
fn who_goes_away_in_the_queue_never_begins() {
    let s = common::server();
    let held: Vec<_> = (0..4).map(|_| s.open(&long(true))).collect();
    let wait_for = |n: usize| {
        let start = Instant::now();
        while s.app.service.taken() < n {
            assert!(start.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    wait_for(4);
    let message = json!([{"role": "user", "content": "a"}]);
    let queued: Vec<_> = ["/completion", "/v1/completions", "/v1/chat/completions", "/v1/messages"]
        .into_iter()
        .flat_map(|path| [false, true].map(|stream| (path, stream)))
        .map(|(path, stream)| {
            let body = json!({"prompt": "a", "messages": message, "max_tokens": 400, "stream": stream});
            s.open(&common::request(path, body.to_string().as_bytes(), ""))
        })
        .collect();
    wait_for(12);
    drop(queued);
    s.wait_idle(Duration::from_secs(60));
    drop(held);
    let tasks: Vec<u64> = s.app.service.slots().iter().map(|s| s.task).collect();
    assert!(tasks.iter().all(|t| (1..=4).contains(t)), "what was queued has begun: {tasks:?}");
}

/// The others notice nothing when somebody goes away in the middle of a long prompt.
#[test]
fn who_stays_notices_nothing() {
    let s = common::server();
    let talk = json!({"prompt": "Once upon a time", "max_tokens": 60, "temperature": 0.8, "seed": 4});
    let alone = s.ask("/v1/completions", &talk)["choices"][0]["text"].clone();
    std::thread::scope(|scope| {
        let (s, talk) = (&s, &talk);
        let task = scope.spawn(move || s.ask("/v1/completions", talk)["choices"][0]["text"].clone());
        for i in 0..10 {
            let ids: Vec<u32> = (0..500).map(|t| (t * 7 + i) % 1000).collect();
            let body = json!({"prompt": ids, "stream": i % 2 == 0}).to_string();
            let gone = s.open(&common::request("/completion", body.as_bytes(), ""));
            std::thread::sleep(Duration::from_millis(20));
            drop(gone);
        }
        assert_eq!(task.join().expect("an answer"), alone);
    });
    s.wait_idle(Duration::from_secs(20));
}

#[test]
fn a_full_queue_says_when_to_come_again() {
    let s =
        common::start(common::engine(), common::options(), ServiceOptions { queue: 1, ..Default::default() });
    let _held: Vec<_> = (0..5).map(|_| s.open(&long(true))).collect();
    let start = Instant::now();
    while s.app.service.taken() < 5 {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
    let r = s.post("/v1/completions", &json!({"prompt": "a"}));
    assert_eq!(r.status, 429, "{}", r.text());
    assert!(r.header("retry-after").and_then(|v| v.parse::<u64>().ok()).is_some_and(|s| s >= 1));
    // What it tells of itself is told while the engine works.
    assert_eq!(s.get("/health").status, 200);
    let slots = s.get("/slots").json();
    assert_eq!(slots.as_array().map(Vec::len), Some(4));
    let metrics = s.get("/metrics").text();
    for name in [
        "prompt_tokens_total",
        "prompt_tokens_cached_total",
        "prompt_seconds_total",
        "tokens_predicted_total",
        "tokens_predicted_seconds_total",
        "n_decode_total",
        "n_tokens_max",
        "spec_decode_num_draft_tokens_total",
        "spec_decode_num_accepted_tokens_total",
        "spec_decode_num_drafts_total",
        "spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"}",
        "prompt_tokens_seconds",
        "predicted_tokens_seconds",
        "requests_processing",
        "requests_deferred",
        "n_busy_slots_per_decode",
        "queue_seconds_count",
        "time_to_first_token_seconds_count",
        "inter_token_seconds_count",
        "plan_changes_total",
        "allocations_total",
        "num_requests_waiting",
        "kv_cache_usage_perc",
    ] {
        assert!(metrics.contains(&format!("\nfirth:{name} ")), "{name}: {metrics}");
    }
}

/// `/health` is of the engine's loop, not of the socket.
#[test]
fn an_engine_that_does_not_answer_is_not_healthy() {
    let service = ServiceOptions { queue: 1, patience: Duration::from_millis(500), ..Default::default() };
    let s = common::start(common::engine(), common::options(), service);
    assert_eq!(s.get("/health").status, 200);
    let (let_go, held) = std::sync::mpsc::channel::<()>();
    let app = s.app.clone();
    let stuck = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        // Held until it is let go; then the loop is ended by a panic.
        let call = app.service.call(move |_| -> () {
            let _ = held.recv();
            panic!("a test ends the engine");
        });
        runtime.block_on(call).is_err()
    });
    let unhealthy = |why: &str| {
        let start = Instant::now();
        loop {
            let r = s.get("/health");
            if r.status == 503 && r.text().contains(why) {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "{}", r.text());
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    unhealthy("last step");
    let _waiting: Vec<_> = (0..5).map(|_| s.open(&long(true))).collect();
    let start = Instant::now();
    while s.app.service.taken() < 5 {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(s.post("/completion", &json!({"prompt": "a"})).status, 429);
    drop(let_go);
    assert!(stuck.join().expect("an end"), "the call is told");
    unhealthy("panicked");
    let r = s.post("/completion", &json!({"prompt": "a"}));
    assert_eq!(r.status, 503, "nobody is to come again: {}", r.text());
    assert!(r.text().contains("engine"), "{}", r.text());
}

/// Told to end, a server finishes what is under way, or cuts it off after its grace.
#[test]
fn it_ends_when_told() {
    let mut s = common::server();
    let held = s.open(&long(true));
    let start = Instant::now();
    while s.app.service.taken() < 1 {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
    s.end();
    drop(held);
    assert!(s.app.service.health().is_err(), "the engine has stopped, and health says so");
}

#[test]
fn slots_are_saved_and_restored() {
    let folder = std::env::temp_dir().join(format!("firth-slots-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let o = ServerOptions { slot_path: Some(folder.clone()), ..common::options() };
    let s = common::start(common::engine(), o.clone(), ServiceOptions::default());
    let fresh = s.get("/slots").json();
    assert!(fresh[0]["id_task"].is_null());
    let ids: Vec<u32> = (0..200).map(|i| i * 13 % 900).collect();
    let body =
        json!({"prompt": ids, "n_predict": 8, "temperature": 0, "return_tokens": true, "ignore_eos": true});
    let first = s.ask("/completion", &body);
    let saved = s.ask("/slots/0?action=save", &json!({"filename": "one.bin"}));
    assert_eq!(saved["n_saved"], 207);
    let status = |path: &str, name: &str| s.post(path, &json!({"filename": name})).status;
    for (path, name) in [
        ("/slots/0?action=save", "../x"),
        ("/slots/0?action=save", ""),
        ("/slots/9?action=save", "a"),
        ("/slots/x?action=save", "a"),
        ("/slots/0?action=dance", "a"),
        ("/slots/0?action=restore", "absent"),
    ] {
        assert_eq!(status(path, name), 400, "{path} {name}");
    }
    drop(s);
    let s = common::start(common::engine(), o, ServiceOptions::default());
    let restored = s.ask("/slots/2?action=restore", &json!({"filename": "one.bin"}));
    assert_eq!(restored["n_restored"], 207);
    let again = s.ask("/completion", &body);
    assert_eq!((&again["tokens"], &again["timings"]["cache_n"]), (&first["tokens"], &json!(199)));
    // A damaged file is refused, and the slot stays usable.
    let path = folder.join("one.bin");
    let mut bytes = std::fs::read(&path).expect("the file");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).expect("a write");
    assert_eq!(s.post("/slots/2?action=restore", &json!({"filename": "one.bin"})).status, 400);
    assert_eq!(s.ask("/completion", &body)["tokens"], first["tokens"]);
    assert!(s.ask("/slots/0?action=erase", &json!({}))["n_erased"].is_u64());
    drop(s);
    let plain = common::server();
    assert_eq!(plain.post("/slots/0?action=save", &json!({"filename": "a"})).status, 501);
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn tokens_and_templates() {
    let s = common::server();
    for text in ["Once upon a time", "caf\u{e9} \u{1f600}\n\tx", ""] {
        let ids = s.ask("/tokenize", &json!({"content": text}))["tokens"].clone();
        assert_eq!(s.ask("/detokenize", &json!({"tokens": ids}))["content"], text);
    }
    let pieces = s.ask("/tokenize", &json!({"content": "\u{1f600}", "with_pieces": true}));
    assert!(pieces["tokens"][0]["id"].is_u64());
    assert_eq!(s.ask("/tokenize", &json!({})), json!({"tokens": []}));
    let special = |parse: bool| {
        let v = s.ask("/tokenize", &json!({"content": "<|im_start|>user", "parse_special": parse}));
        v["tokens"].as_array().map_or(0, Vec::len)
    };
    assert!(special(true) < special(false));
    let prompt = s.ask("/apply-template", &json!({"messages": [{"role": "user", "content": "hello there"}]}));
    assert!(prompt["prompt"].as_str().is_some_and(|p| p.contains("hello there")));
    let props = s.get("/props").json();
    assert_eq!(props["total_slots"], 4);
    let models = s.get("/v1/models").json();
    let id = models["data"][0]["id"].as_str().expect("a name").to_owned();
    assert_eq!(s.get(&format!("/v1/models/{id}")).status, 200);
    assert_eq!(s.get("/v1/models/other").status, 404);
    for path in ["/v1/embeddings", "/v1/rerank"] {
        let e: Value = s.post(path, &json!({"input": "a"})).json();
        assert_eq!(e["error"]["code"], 501);
    }
    for content in
        [json!([{"type": "image_url", "image_url": {"url": "data:"}}]), json!([{"type": "dance"}]), json!(7)]
    {
        let r = s.post("/v1/chat/completions", &json!({"messages": [{"role": "user", "content": content}]}));
        assert_eq!(r.status, 400, "{}", r.text());
    }
}

#[test]
fn the_cache_outlives_its_process() {
    let folder = std::env::temp_dir().join(format!("firth-cache-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let service = || ServiceOptions { cache_dir: Some(folder.clone()), ..ServiceOptions::default() };
    let ids: Vec<u32> = (0..300).map(|i| i * 11 % 900).collect();
    let body = json!({"prompt": ids, "n_predict": 6, "temperature": 0, "return_tokens": true, "ignore_eos": true, "cache_salt": "a"});
    let first = common::start(common::engine(), common::options(), service()).ask("/completion", &body);
    assert_eq!(first["timings"]["cache_n"], 0);
    let second = common::start(common::engine(), common::options(), service());
    let again = second.ask("/completion", &body);
    assert_eq!((&again["timings"]["cache_n"], &again["tokens"]), (&json!(299), &first["tokens"]));
    drop(second);
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn a_record_gives_the_same_again() {
    let folder = std::env::temp_dir().join(format!("firth-record-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let o = ServerOptions { record: Some(folder.clone()), ..common::options() };
    let s = common::start(common::engine(), o, ServiceOptions::default());
    let body = json!({"prompt": "Once upon", "max_tokens": 20, "n": 2, "logit_bias": [[7, false]], "repeat_penalty": 1.1});
    s.ask("/v1/completions", &body);
    let host = json!({"prompt": "Once upon", "n_predict": 20, "mirostat": 2, "dry_multiplier": 0.8, "seed": u64::MAX >> 1,
        "samplers": ["temperature", "typ_p", "top_k"], "typical_p": 0.9, "dry_sequence_breakers": ["a"], "temperature": 1.3});
    s.ask("/completion", &host);
    let schema =
        json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "string", "maxLength": 8}}});
    s.ask("/completion", &json!({"prompt": "x", "json_schema": schema, "n_predict": 60}));
    s.ask("/completion", &json!({"prompt": "x", "grammar": "root ::= [a-z]{3,9} \"\\n\"", "temperature": 2}));
    let indent = json!({"prompt": "Once", "n_predict": 30, "grammar": "root ::= \"a\\n    b\\n  c\\n d\"", "n_indent": 4});
    s.ask("/completion", &indent);
    drop(s);
    let fresh = common::server();
    let files: Vec<_> = std::fs::read_dir(&folder).expect("the folder").flatten().collect();
    assert_eq!(files.len(), 6);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    for file in files {
        let text = std::fs::read_to_string(file.path()).expect("a record");
        let mut record: firth_server::Record = serde_json::from_str(&text).expect("a record");
        let replay = |r: &firth_server::Record| {
            runtime.block_on(firth_server::replay(&fresh.app, r)).expect("it runs")
        };
        assert_eq!(replay(&record).difference, None);
        // The middle one: a grammar may end an answer after two tokens.
        let at = record.answer.len() / 2;
        record.answer[at] ^= 1;
        let told = format!("the answers differ from token {at} on");
        assert_eq!(replay(&record).difference, Some(told));
    }
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn a_deep_look_at_health_decodes() {
    let s = common::server();
    let steps = || s.app.service.counts().steps.load(std::sync::atomic::Ordering::Relaxed);
    let before = steps();
    assert_eq!(s.get("/health?deep=1").status, 200);
    assert_eq!(s.get("/health?deep=0").status, 200);
    assert_eq!(steps(), before, "what it decodes is nobody's request");
    let held: Vec<_> = (0..6).map(|_| s.open(&long(true))).collect();
    while s.app.service.taken() < 6 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(s.get("/health?deep=1").status, 200, "while all sequences are at work");
    drop(held);
}

#[test]
fn lines_are_held_to_what_editors_ask() {
    let s = common::server();
    let grammar = "root ::= \"f\\n    b\\n  c\\n d\"";
    let say = |extra: Value| {
        let mut body = json!({"prompt": "Once", "n_predict": 40, "grammar": grammar, "temperature": 0});
        body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        let v = s.ask("/completion", &body);
        (v["content"].as_str().expect("text").to_owned(), v["stop_type"].as_str().expect("a word").to_owned())
    };
    assert_eq!(say(json!({})).0, "f\n    b\n  c\n d");
    assert_eq!(say(json!({"n_indent": 4})), ("f\n    b".into(), "limit".into()));
    assert_eq!(say(json!({"n_indent": 2})), ("f\n    b\n  c".into(), "limit".into()));
    // What the clock ends depends on the clock; one that is far off ends nothing.
    assert_eq!(say(json!({"t_max_predict_ms": 3_600_000})).0, "f\n    b\n  c\n d");
    let r = s.post("/completion", &json!({"prompt": "a", "n_indent": -1}));
    assert_eq!(r.status, 400, "{}", r.text());
}

#[test]
fn a_slot_may_be_chosen() {
    let s = common::server();
    let body = |slot: i64| json!({"prompt": "Once", "n_predict": 4, "id_slot": slot});
    for slot in [2, 0, 3] {
        assert_eq!(s.ask("/completion", &body(slot))["id_slot"], slot);
    }
    assert!(s.ask("/completion", &body(99))["id_slot"].as_u64().is_some_and(|i| i < 4));
}
