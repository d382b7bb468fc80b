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
        let body = body.to_string();
        let mut stream = TcpStream::connect(&self.at).expect("it listens");
        let head =
            "POST /completion HTTP/1.1\r\nHost: firth\r\nConnection: close\r\nContent-Type: application/json";
        write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer of HTTP");
        assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
        serde_json::from_str(body).expect("JSON")
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
