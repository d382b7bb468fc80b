//! A server with the bundled model on a socket of its own, and a client that hides nothing.

#![allow(dead_code)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use firth::{EngineOptions, Gguf, Model, Service, ServiceOptions};
use firth_cpu::{CpuDevice, CpuOptions};
use firth_server::{App, Door, ServerOptions, Tls};
use serde_json::Value;
use tokio::sync::oneshot;

/// A running server.
pub struct Server {
    pub app: Arc<App>,
    pub listening: Listening,
}

pub fn engine() -> EngineOptions {
    EngineOptions {
        ctx: Some(512),
        parallel: 4,
        batch: 64,
        cache_bytes: 64 << 20,
        ..EngineOptions::default()
    }
}

pub fn options() -> ServerOptions {
    ServerOptions::default()
}

/// A server with the usual settings.
pub fn server() -> Server {
    start(engine(), options(), ServiceOptions::default())
}

pub fn start(engine: EngineOptions, options: ServerOptions, service: ServiceOptions) -> Server {
    start_file(firth::bundled().expect("the bundled model"), engine, options, service)
}

/// A server with another model.
pub fn start_file(
    file: Arc<Gguf>,
    engine: EngineOptions,
    options: ServerOptions,
    service: ServiceOptions,
) -> Server {
    let door = Door::new(false);
    let listening = listen(door.clone(), None);
    let app = load_file(file, engine, options, service, None);
    door.open(app.clone());
    Server { app, listening }
}

/// The bundled model at work.
pub fn load(engine: EngineOptions, options: ServerOptions, service: ServiceOptions) -> Arc<App> {
    load_with(engine, options, service, None)
}

/// The same, with another chat template if one is given.
pub fn load_with(
    engine: EngineOptions,
    options: ServerOptions,
    service: ServiceOptions,
    template: Option<&str>,
) -> Arc<App> {
    load_file(firth::bundled().expect("the bundled model"), engine, options, service, template)
}

fn load_file(
    file: Arc<Gguf>,
    engine: EngineOptions,
    options: ServerOptions,
    service: ServiceOptions,
    template: Option<&str>,
) -> Arc<App> {
    let device = CpuDevice::new(CpuOptions::new(2).expect("a level"));
    let model = Model::load(file, vec![Arc::new(device)], &engine, &mut |_| ControlFlow::Continue(()));
    let mut model = model.expect("it loads");
    if let Some(template) = template {
        model.set_template(template).expect("a template");
    }
    let service = Service::start(model, service).expect("a thread");
    App::new(service, options).expect("defaults")
}

/// A socket that is answered.
pub struct Listening {
    pub at: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// Answers on a free port, encrypted where files of a certificate and its key are given.
pub fn listen(door: Arc<Door>, tls: Option<[std::path::PathBuf; 2]>) -> Listening {
    let (stop, stopped) = oneshot::channel();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("an address");
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime").block_on(async move {
            let tls = match tls {
                Some([certificate, key]) => {
                    Some(Tls::from_files(&certificate, &key).await.expect("a key that fits"))
                }
                None => None,
            };
            let stopped = async {
                let _ = stopped.await;
            };
            let ended = firth_server::serve(listener, door, tls, Duration::from_secs(2), stopped);
            ended.await.expect("the socket works");
        });
    });
    Listening { at, stop: Some(stop), thread: Some(thread) }
}

impl Listening {
    /// Ends the server and waits for it.
    pub fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the server ends well");
        }
    }
}

impl std::ops::Deref for Server {
    type Target = Listening;

    fn deref(&self) -> &Listening {
        &self.listening
    }
}

impl Server {
    /// Ends the server and waits for it.
    pub fn end(&mut self) {
        self.listening.end();
    }

    /// Waits until nothing is at work.
    #[track_caller]
    pub fn wait_idle(&self, most: Duration) {
        let start = std::time::Instant::now();
        while self.app.service.taken() > 0 {
            assert!(start.elapsed() < most, "still at work");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Listening {
    /// A request of raw bytes; status, headers and body.
    pub fn raw(&self, bytes: &[u8]) -> Reply {
        let mut stream = self.open(bytes);
        read(&mut stream)
    }

    /// A connection on which a request was sent.
    pub fn open(&self, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.at).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        // A server that has refused may close before all was sent.
        let _ = stream.write_all(bytes);
        stream
    }

    pub fn get(&self, path: &str) -> Reply {
        self.raw(&get(path))
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_bytes(path, body.to_string().as_bytes(), "")
    }

    pub fn post_bytes(&self, path: &str, body: &[u8], headers: &str) -> Reply {
        self.raw(&request(path, body, headers))
    }

    /// The body of a good answer.
    #[track_caller]
    pub fn ask(&self, path: &str, body: &Value) -> Value {
        let r = self.post(path, body);
        assert_eq!(r.status, 200, "{path} {body}: {}", r.text());
        r.json()
    }

    /// Events of a good stream: names and data.
    #[track_caller]
    pub fn stream(&self, path: &str, body: &Value) -> Vec<(String, String)> {
        let r = self.post(path, body);
        assert_eq!(r.status, 200, "{path} {body}: {}", r.text());
        events(&r.text())
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end();
        }
    }
}

pub fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").into_bytes()
}

pub fn request(path: &str, body: &[u8], headers: &str) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n{headers}Content-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// An answer.
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("UTF-8")
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}

pub fn read(stream: &mut impl Read) -> Reply {
    let mut r = BufReader::new(stream);
    let mut line = String::new();
    r.read_line(&mut line).expect("a status line");
    let status = line.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or_else(|| panic!("`{line}`"));
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        r.read_line(&mut line).expect("a header");
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.push((name.to_lowercase(), value.trim().to_owned()));
    }
    let chunked = headers.iter().any(|(n, v)| n == "transfer-encoding" && v == "chunked");
    let mut body = Vec::new();
    if !chunked {
        r.read_to_end(&mut body).expect("a body");
        return Reply { status, headers, body };
    }
    loop {
        let mut line = String::new();
        r.read_line(&mut line).expect("the size of a chunk");
        let n = usize::from_str_radix(line.trim(), 16).expect("a size");
        let mut chunk = vec![0; n + 2];
        r.read_exact(&mut chunk).expect("a chunk");
        if n == 0 {
            return Reply { status, headers, body };
        }
        body.extend_from_slice(&chunk[..n]);
    }
}

/// Names and data of the events in a stream; comments are left out.
pub fn events(text: &str) -> Vec<(String, String)> {
    let mut out = Vec::new();
    for frame in text.split("\n\n").filter(|f| !f.is_empty() && !f.starts_with(':')) {
        let mut name = String::new();
        for line in frame.lines() {
            if let Some(n) = line.strip_prefix("event: ") {
                name = n.to_owned();
            } else if let Some(data) = line.strip_prefix("data: ") {
                out.push((std::mem::take(&mut name), data.to_owned()));
            } else {
                panic!("`{line}` is no line of a stream");
            }
        }
    }
    out
}
