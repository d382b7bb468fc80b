//! What the command line says holds for requests that say nothing, and a server outlives whoever reads its log.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

struct Server {
    child: Child,
    at: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server whose log nobody reads once its model is there.
fn start(args: &[&str]) -> Server {
    let mut child = Command::new(env!("CARGO_BIN_EXE_firth"))
        .args(["serve", "--port", "0", "--ctx", "512", "--cache-memory", "16M"])
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let log = BufReader::new(child.stderr.take().expect("piped"));
    let mut lines = log.lines().map_while(Result::ok);
    let at = lines.find_map(|line| Some(line.split_once("listening on http://")?.1.to_owned()));
    assert!(lines.any(|line| line == "firth: ready"), "the model loads");
    Server { child, at: at.expect("it listens") }
}

impl Server {
    fn complete(&self, body: &Value) -> Value {
        serde_json::from_str(&self.ask("POST /completion", &body.to_string())).expect("JSON")
    }

    fn ask(&self, what: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.at).expect("it listens");
        let head = "HTTP/1.1\r\nHost: firth\r\nConnection: close\r\nContent-Type: application/json";
        write!(stream, "{what} {head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer of HTTP");
        assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
        body.to_owned()
    }

    /// What is counted under a name.
    fn metric(&self, name: &str) -> u64 {
        let all = self.ask("GET /metrics", "");
        let value = all.lines().find_map(|line| line.strip_prefix(&format!("firth:{name} ")));
        value.expect("the metric").parse().expect("a whole number")
    }
}

#[test]
fn a_seed_and_what_ends_are_defaults_of_requests() {
    let server = start(&["--seed", "5", "--ignore-eos", "--temp", "1.5"]);
    let say = |seed: Value| {
        let v = server.complete(&json!({"prompt": "Once upon a time", "n_predict": 24, "seed": seed}));
        (v["content"].clone(), v["generation_settings"].clone())
    };
    let (text, settings) = say(Value::Null);
    assert_eq!((&settings["seed"], &settings["ignore_eos"]), (&json!(5), &json!(true)));
    assert_eq!(say(Value::Null).0, text, "one seed, one answer");
    assert_eq!(say(json!(5)).0, text);
    assert_ne!(say(json!(6)).0, text);
    assert_ne!(say(json!(-1)).1["seed"], 5, "a new one was asked for");
}

/// Steps that are like steps before them allocate nothing and change no plan, and a grammar's allocations are told apart.
#[test]
fn warm_steps_allocate_nothing() {
    let server = start(&["--spec", "none"]);
    let plain = json!({"prompt": "Once upon a time", "n_predict": 40, "seed": 5, "ignore_eos": true});
    let kept =
        json!({"prompt": "Once upon a time", "n_predict": 40, "seed": 5, "grammar": "root ::= [a-z ]+"});
    (0..3).for_each(|_| drop((server.complete(&plain), server.complete(&kept))));
    let before = server.metric("allocations_total");
    let text = server.metric("text_allocations_total");
    server.complete(&plain);
    assert_eq!(server.metric("text_allocations_total"), text);
    server.complete(&kept);
    assert!(server.metric("text_allocations_total") > text, "a grammar allocates");
    assert_eq!(server.metric("allocations_total") - before, 0);
    assert_eq!(server.metric("plan_changes_total"), 0);
}
