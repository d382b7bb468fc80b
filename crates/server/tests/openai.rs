//! OpenAI's chat and completions over a real socket.

mod common;

use serde_json::{Value, json};

fn chat(seed: u64, temperature: f64) -> Value {
    json!({
        "messages": [{"role": "user", "content": format!("Tell me of day {seed}.")}],
        "max_tokens": 24, "temperature": temperature, "seed": seed,
    })
}

fn content(v: &Value) -> String {
    let m = &v["choices"][0]["message"];
    let text = |key: &str| m[key].as_str().unwrap_or_default().to_owned();
    text("reasoning_content") + "|" + &text("content")
}

/// Text of a stream, by kind.
fn streamed(events: &[(String, String)]) -> String {
    let (mut thoughts, mut text) = (String::new(), String::new());
    for (_, data) in events.iter().filter(|(_, d)| d != "[DONE]") {
        let v: Value = serde_json::from_str(data).expect("JSON");
        let delta = &v["choices"][0]["delta"];
        thoughts += delta["reasoning_content"].as_str().unwrap_or_default();
        text += delta["content"].as_str().unwrap_or_default();
    }
    thoughts + "|" + &text
}

#[test]
fn a_stream_is_the_whole_in_pieces() {
    let s = common::server();
    for temperature in [0.0, 0.9] {
        let body = chat(5, temperature);
        let whole = s.ask("/v1/chat/completions", &body);
        assert_eq!(whole["object"], "chat.completion");
        let usage = &whole["usage"];
        let n = |key: &str| usage[key].as_u64().expect("a count");
        assert_eq!(n("total_tokens"), n("prompt_tokens") + n("completion_tokens"));
        assert!(n("completion_tokens") <= 24);
        let mut body = body;
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
        let events = s.stream("/v1/chat/completions", &body);
        assert_eq!(events.last().expect("an end").1, "[DONE]");
        assert_eq!(streamed(&events), content(&whole));
        let first: Value = serde_json::from_str(&events[0].1).expect("JSON");
        assert_eq!(first["choices"][0]["delta"], json!({"role": "assistant", "content": null}));
        let last: Value = serde_json::from_str(&events[events.len() - 2].1).expect("JSON");
        assert_eq!(last["choices"], json!([]));
        assert_eq!(last["usage"]["completion_tokens"], usage["completion_tokens"]);
        let before: Value = serde_json::from_str(&events[events.len() - 3].1).expect("JSON");
        assert_eq!(before["choices"][0]["finish_reason"], whole["choices"][0]["finish_reason"]);
        for (_, data) in &events[1..events.len() - 1] {
            let v: Value = serde_json::from_str(data).expect("JSON");
            assert_eq!(v["id"], first["id"]);
            assert!(v["choices"][0]["delta"]["role"].is_null() && !data.contains('\u{fffd}'));
        }
    }
}

/// What a stream tells besides comes in all shapes of llama-server and of OpenAI's completions.
#[test]
fn a_stream_tells_progress_and_timings() {
    let s = common::server();
    let body = json!({"prompt": "Once upon a time", "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 4, "temperature": 0, "ignore_eos": true, "stream": true,
        "return_progress": true, "timings_per_token": true});
    for path in ["/completion", "/v1/completions", "/v1/chat/completions"] {
        let all: Vec<Value> =
            s.stream(path, &body).iter().filter_map(|(_, d)| serde_json::from_str(d).ok()).collect();
        let progress: Vec<&Value> =
            all.iter().map(|v| &v["prompt_progress"]).filter(|p| p.is_object()).collect();
        let last = progress.last().unwrap_or_else(|| panic!("{path}: no progress"));
        let n = |key: &str| last[key].as_u64().expect("a count");
        // The last token of a prompt is told with the answer.
        assert!(n("total") > 1 && n("processed") + 1 >= n("total"), "{path}: {last}");
        let n = all.iter().filter(|v| v["timings"]["predicted_n"].is_u64()).count();
        assert!(n >= 2, "{path}: {n} chunks with timings");
    }
}

#[test]
fn many_clients_get_what_one_gets() {
    let s = common::server();
    let bodies: Vec<Value> = (0..8).map(|i| chat(i, if i % 2 == 0 { 0.0 } else { 0.8 })).collect();
    let alone: Vec<String> = bodies.iter().map(|b| content(&s.ask("/v1/chat/completions", b))).collect();
    let fresh = common::server();
    std::thread::scope(|scope| {
        let fresh = &fresh;
        let tasks: Vec<_> = bodies
            .iter()
            .map(|b| scope.spawn(move || content(&fresh.ask("/v1/chat/completions", b))))
            .collect();
        for (task, alone) in tasks.into_iter().zip(&alone) {
            assert_eq!(task.join().expect("an answer"), *alone);
        }
    });
}

#[test]
fn several_answers_to_one_prompt() {
    let s = common::server();
    let body = json!({"prompt": "Once upon a time", "max_tokens": 12, "temperature": 1, "seed": 7, "n": 3});
    let v = s.ask("/v1/completions", &body);
    let texts: Vec<&str> = (0..3).map(|i| v["choices"][i]["text"].as_str().expect("text")).collect();
    assert!(texts[0] != texts[1] && texts[1] != texts[2]);
    assert_eq!(v["choices"][2]["index"], 2);
    assert_eq!(v["usage"]["completion_tokens"], 36);
    let mut one = body.clone();
    one["n"] = 1.into();
    assert_eq!(s.ask("/v1/completions", &one)["choices"][0]["text"], texts[0]);
    one["seed"] = (-1).into();
    let random: Vec<Value> =
        (0..3).map(|_| s.ask("/v1/completions", &one)["choices"][0]["text"].clone()).collect();
    assert!(random[0] != random[1] || random[1] != random[2], "no seed, no two answers alike");
    let both = json!({"prompt": ["Once upon a time", [5, 6, 7]], "max_tokens": 3, "temperature": 0, "n": 2});
    let v = s.ask("/v1/completions", &both);
    assert_eq!(v["choices"].as_array().expect("choices").len(), 4);
    assert_eq!(v["choices"][0]["text"], v["choices"][1]["text"]);
    assert_ne!(v["choices"][0]["text"], v["choices"][2]["text"]);
    let native = s.ask("/completion", &both);
    for i in 0..4 {
        assert_eq!((&native[i]["content"], &native[i]["index"]), (&v["choices"][i]["text"], &json!(i)));
    }
    for path in ["/v1/completions", "/completion"] {
        let r = s.post(path, &json!({"prompt": vec!["a"; 257], "max_tokens": 1}));
        assert_eq!((r.status, &r.json()["error"]["param"]), (400, &json!("prompt")), "{}", r.text());
    }
}

#[test]
fn logprobs_of_prompt_and_answer() {
    let s = common::server();
    let ids: Vec<u32> = (40..60).collect();
    let body = json!({"prompt": ids, "max_tokens": 1, "temperature": 0, "logprobs": 2, "echo": true});
    let v = s.ask("/v1/completions", &body);
    let l = &v["choices"][0]["logprobs"];
    let list = |key: &str| l[key].as_array().expect("a list").clone();
    assert_eq!(list("tokens").len(), 21);
    assert_eq!(list("token_logprobs")[0], Value::Null);
    assert!(list("token_logprobs")[1..].iter().all(|p| p.as_f64().is_some_and(|p| p <= 0.0)));
    assert_eq!(list("text_offset").len(), 21);
    // The answer's first token is the likeliest: a greedy one.
    let top = list("top_logprobs")[20].as_object().expect("an object").clone();
    let best = top.values().filter_map(Value::as_f64).fold(f64::MIN, f64::max);
    assert_eq!(list("token_logprobs")[20].as_f64(), Some(best));
    // No token at all: only the prompt is scored, with the same numbers.
    let mut none = body.clone();
    none["max_tokens"] = 0.into();
    let n = s.ask("/v1/completions", &none);
    assert_eq!(
        n["choices"][0]["logprobs"]["token_logprobs"].as_array().expect("a list")[..],
        list("token_logprobs")[..20]
    );
    assert_eq!(n["usage"]["completion_tokens"], 0);
    let mut chat = chat(3, 0.0);
    chat["logprobs"] = true.into();
    chat["top_logprobs"] = 2.into();
    let v = s.ask("/v1/chat/completions", &chat);
    let entries = v["choices"][0]["logprobs"]["content"].as_array().expect("a list").clone();
    assert_eq!(entries.len() as u64, v["usage"]["completion_tokens"].as_u64().expect("a count"));
    chat["stream"] = true.into();
    let mut joined = Vec::new();
    for (_, data) in s.stream("/v1/chat/completions", &chat).iter().filter(|(_, d)| d != "[DONE]") {
        let v: Value = serde_json::from_str(data).expect("JSON");
        joined.extend(v["choices"][0]["logprobs"]["content"].as_array().cloned().unwrap_or_default());
    }
    assert_eq!(joined, entries);
}

#[test]
fn stop_texts_and_limits() {
    let s = common::server();
    let body = json!({"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0});
    let whole = s.ask("/v1/completions", &body)["choices"][0]["text"].as_str().expect("text").to_owned();
    let word: String = whole.chars().skip(9).take(4).collect();
    let mut stopped = body.clone();
    stopped["stop"] = json!([word, "never said"]);
    for path in ["/v1/completions", "/completion"] {
        let v = s.ask(path, &stopped);
        let text = v["choices"][0]["text"].as_str().or(v["content"].as_str()).expect("text");
        assert_eq!(text, &whole[..whole.find(&word).expect("it is there")]);
        match path {
            "/completion" => {
                assert_eq!((&v["stop_type"], &v["stopping_word"]), (&json!("word"), &json!(word)))
            }
            _ => assert_eq!(v["choices"][0]["finish_reason"], "stop"),
        }
    }
    let v = s.ask("/v1/completions", &json!({"prompt": "a", "ignore_eos": true, "temperature": 0}));
    assert_eq!(v["choices"][0]["finish_reason"], "length", "at the end of the context");
    assert_eq!(v["usage"]["total_tokens"], 512);
    let n =
        s.ask("/tokenize", &json!({"content": "Once upon a time"}))["tokens"].as_array().expect("ids").len();
    assert!(n > 1);
}

#[test]
fn the_cache_serves_later_requests_of_its_domain() {
    let s = common::server();
    let ask = |salt: Option<&str>, tail: &[u32]| {
        let ids: Vec<u32> = (0..400).map(|i| i * 17 % 800).chain(tail.iter().copied()).collect();
        let body = json!({"prompt": ids, "max_tokens": 4, "temperature": 0, "cache_salt": salt});
        let v = s.ask("/v1/completions", &body);
        let n = v["usage"]["prompt_tokens"].as_u64().expect("a count");
        let cached = v["timings"]["cache_n"].as_u64().expect("a count");
        assert_eq!(v["usage"]["prompt_tokens_details"]["cached_tokens"], cached);
        (cached, n, v["timings"]["cache"]["reason"].clone(), v["choices"][0]["text"].clone())
    };
    let cold = ask(None, &[5, 5, 5]);
    assert_eq!(cold.0, 0);
    assert_eq!(cold.2, "nothing known begins like this prompt");
    let warm = ask(None, &[5, 5, 5]);
    assert_eq!((warm.0, &warm.2), (warm.1 - 1, &json!("whole prompt")));
    assert_eq!(warm.3, cold.3);
    assert_eq!(ask(Some("a"), &[5, 5, 5]).0, 0, "another domain");
    let longer = ask(None, &[5, 5, 5, 6, 7]).0;
    assert!(longer >= warm.0, "{longer} of a prompt that goes on");
}

#[test]
fn answers_keep_to_schemas_and_grammars() {
    let s = common::server();
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 7}, "s": {"enum": ["a", "bc"]}}, "required": ["n", "s"], "additionalProperties": false});
    for seed in 0..3 {
        let body = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 200, "seed": seed,
            "chat_template_kwargs": {"enable_thinking": false},
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}});
        let v = s.ask("/v1/chat/completions", &body);
        assert_eq!(v["choices"][0]["finish_reason"], "stop", "{v}");
        let text = v["choices"][0]["message"]["content"].as_str().expect("text");
        let answer: Value = serde_json::from_str(text).expect("JSON");
        assert!((3..=7).contains(&answer["n"].as_i64().expect("a number")), "{answer}");
    }
    let grammar = json!({"prompt": "x", "grammar": "root ::= \"yes\" | \"no\"", "n_predict": 20});
    let v = s.ask("/completion", &grammar);
    assert!(["yes", "no"].contains(&v["content"].as_str().expect("text")), "{v}");
    let several = json!({"prompt": "x", "grammar": "root ::= \"yes\" | \"no\"", "n": 4, "temperature": 3});
    for seed in 0..3 {
        let mut body = several.clone();
        body["seed"] = seed.into();
        let v = s.ask("/completion", &body);
        for i in 0..4 {
            assert!(["yes", "no"].contains(&v[i]["content"].as_str().expect("text")), "{v}");
        }
    }
    for (field, value) in [
        ("grammar", json!("{\"type\": \"object\"}")),
        ("grammar", json!("root ::= (")),
        ("json_schema", json!({"type": "nothing"})),
    ] {
        let r = s.post("/completion", &json!({"prompt": "x", field: value}));
        assert_eq!((r.status, &r.json()["error"]["param"]), (400, &json!(field)), "{}", r.text());
    }
    for format in
        [json!({"type": "json_object", "schema": 123}), json!({"type": "dance"}), json!({"type": {}})]
    {
        let body = json!({"messages": [{"role": "user", "content": "x"}], "response_format": format});
        assert_eq!(s.post("/v1/chat/completions", &body).status, 400);
    }
}
