//! The outside: answers while a model loads, encrypted connections; and thoughts of a limited length.

mod common;

use std::io::Write;
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;

use firth::ServiceOptions;
use firth_server::{Door, Tls};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::json;

#[test]
fn it_answers_while_the_model_loads() {
    let door = Door::new(false);
    let s = common::listen(door.clone(), None);
    let chat = json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4});
    for path in ["/health", "/v1/health", "/v1/models", "/metrics", "/nothing"] {
        let r = s.get(path);
        assert_eq!((r.status, r.header("retry-after")), (503, Some("1")), "{path}");
        let loads = json!({"error": {"code": 503, "message": "Loading model", "type": "unavailable_error", "param": null}});
        assert_eq!(r.json(), loads, "{path}");
    }
    assert_eq!(s.post("/v1/chat/completions", &chat).status, 503);
    let anthropic = s.post("/v1/messages", &chat).json();
    assert_eq!(anthropic["error"]["type"], "overloaded_error");
    assert_eq!(s.get("/api/tags").json(), json!({"error": "Loading model"}));
    assert_eq!(s.raw(b"OPTIONS /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").status, 200);
    door.open(common::load(common::engine(), common::options(), ServiceOptions::default()));
    assert_eq!(s.get("/health").status, 200);
    assert_eq!(s.post("/v1/chat/completions", &chat).status, 200);
}

#[test]
fn it_ends_while_the_model_loads() {
    let mut s = common::listen(Door::new(false), None);
    let held = s.open(b"GET /health HTTP/1.1\r\n");
    s.end();
    drop(held);
    assert!(TcpStream::connect(s.at).is_err(), "nobody listens any more");
}

/// A folder with a certificate that nobody has signed, and its key.
struct Certificate {
    folder: PathBuf,
    der: CertificateDer<'static>,
}

impl Certificate {
    fn new(name: &str) -> Certificate {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let folder = std::env::temp_dir().join(format!("firth-tls-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("cert.pem"), made.cert.pem()).expect("a write");
        std::fs::write(folder.join("key.pem"), made.signing_key.serialize_pem()).expect("a write");
        Certificate { folder, der: made.cert.der().clone() }
    }

    fn files(&self) -> [PathBuf; 2] {
        ["cert.pem", "key.pem"].map(|name| self.folder.join(name))
    }
}

impl Drop for Certificate {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn connections_are_encrypted() {
    let (own, other) = (Certificate::new("own"), Certificate::new("other"));
    let app = common::load(common::engine(), common::options(), ServiceOptions::default());
    let door = Door::new(false);
    door.open(app);
    let s = common::listen(door, Some(own.files()));
    let ask = |trusted: &Certificate, bytes: &[u8]| {
        let mut roots = RootCertStore::empty();
        roots.add(trusted.der.clone()).expect("a certificate");
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let name = ServerName::try_from("localhost").expect("a name");
        let client = ClientConnection::new(Arc::new(config), name).expect("a client");
        let mut stream = StreamOwned::new(client, TcpStream::connect(s.at).expect("it listens"));
        stream.write_all(bytes)?;
        Ok::<_, std::io::Error>(common::read(&mut stream))
    };
    assert_eq!(ask(&own, &common::get("/health")).expect("a connection").status, 200);
    let body = json!({"prompt": "Once", "n_predict": 6, "stream": true, "temperature": 0}).to_string();
    let r = ask(&own, &common::request("/completion", body.as_bytes(), "")).expect("a connection");
    assert!(common::events(&r.text()).len() > 1);
    assert!(ask(&other, &common::get("/health")).is_err(), "another's certificate is not taken");
    let mut plain = s.open(&common::get("/health"));
    let mut answer = Vec::new();
    let _ = std::io::Read::read_to_end(&mut plain, &mut answer);
    assert!(!answer.starts_with(b"HTTP/1.1 200"), "nothing goes out in the clear");
}

#[test]
fn a_key_of_another_certificate_is_refused() {
    let (own, other) = (Certificate::new("a"), Certificate::new("b"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let [cert, key] = [&own.files()[0], &other.files()[1]].map(Clone::clone);
    assert!(runtime.block_on(Tls::from_files(&cert, &key)).is_err());
    assert!(runtime.block_on(Tls::from_files(&cert, &cert)).is_err());
    assert!(runtime.block_on(Tls::from_files(&own.folder.join("absent"), &key)).is_err());
}

/// A template that opens thoughts.
const THINKS: &str =
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:<think>\n{# </think> #}";

#[test]
fn thoughts_have_a_limit() {
    let options = firth_server::ServerOptions {
        thoughts: Some(firth_server::ThoughtLimit { tokens: 8, message: String::new() }),
        ..common::options()
    };
    let app = common::load_with(common::engine(), options, ServiceOptions::default(), Some(THINKS));
    let door = Door::new(false);
    door.open(app.clone());
    let s = common::listen(door, None);
    let n_tokens =
        |text: &str| s.ask("/tokenize", &json!({"content": text}))["tokens"].as_array().map_or(0, Vec::len);
    let say = |extra: serde_json::Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "Tell me of a fox"}], "max_tokens": 60,
            "temperature": 0, "ignore_eos": true});
        body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        let m = s.ask("/v1/chat/completions", &body)["choices"][0]["message"].clone();
        let text = |key: &str| m[key].as_str().unwrap_or_default().to_owned();
        (text("reasoning_content"), text("content"))
    };
    // Nothing that was not asked for ends them.
    let (free, nothing) = say(json!({"reasoning_budget_tokens": -1}));
    assert!(n_tokens(&free) > 40 && nothing.is_empty(), "{free:?} {nothing:?}");
    let (own, answer) = say(json!({}));
    assert!(
        (1..=9).contains(&n_tokens(&own)) && !answer.is_empty(),
        "the server's limit: {own:?} {answer:?}"
    );
    assert!(free.starts_with(own.trim_end()), "{own:?} are the thoughts of {free:?}");
    let (told, answer) = say(json!({"thinking_budget_tokens": 4, "reasoning_budget_message": " Enough."}));
    assert!(told.trim_end().ends_with("Enough.") && !answer.is_empty(), "{told:?} {answer:?}");
    let (none, answer) = say(json!({"reasoning_budget_tokens": 0}));
    assert!(none.is_empty() && !answer.is_empty(), "{none:?} {answer:?}");
    let schema = json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "integer", "maximum": 9, "minimum": 0}}, "additionalProperties": false});
    let (thoughts, answer) = say(json!({"json_schema": schema, "ignore_eos": false}));
    assert!(n_tokens(&thoughts) <= 9, "{thoughts:?}");
    let answer: serde_json::Value = serde_json::from_str(&answer).expect("JSON behind the thoughts");
    assert!(answer["a"].is_u64());
}
