//! Against servers on this machine: one that cuts lines, one that ignores ranges, one that sends other bytes.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use sha2::{Digest, Sha256};

use super::{PullError, PullOptions, pull};

const SIZE: usize = 3_000_000;

/// How a server behaves.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Good,
    /// Closes the line after a million bytes, and knows ranges.
    Cuts,
    /// Closes the first line after a million bytes, and sends all again whatever the range.
    IgnoresRanges,
    /// Sends a byte that is wrong.
    Lies,
    /// Closes every line at once.
    Dead,
}

struct Server {
    address: String,
    /// The ranges that were asked for.
    asked: Arc<Mutex<Vec<u64>>>,
}

fn bytes() -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend((0..SIZE - 4).map(|i| (i * 7 + i / 251) as u8));
    bytes
}

fn sum(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

impl Server {
    fn start(way: Way) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = asked.clone();
        std::thread::spawn(move || {
            for line in listener.incoming() {
                // A client that is gone is no fault of the server's.
                let _ = line.map(|line| answer(line, way, &log));
            }
        });
        Server { address, asked }
    }

    fn pull(&self, cache: &Cache) -> Result<Vec<PathBuf>, PullError> {
        let options = PullOptions { endpoint: Some(self.address.clone()), cache: Some(cache.0.clone()) };
        pull("u/r:Q8_0", &options, &mut |_| ControlFlow::Continue(()))
    }
}

fn answer(line: TcpStream, way: Way, log: &Mutex<Vec<u64>>) -> std::io::Result<()> {
    let mut reader = BufReader::new(line.try_clone()?);
    let (mut first, mut from) = (String::new(), 0);
    reader.read_line(&mut first)?;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        if header.trim().is_empty() {
            break;
        }
        if let Some(range) = header.to_lowercase().strip_prefix("range: bytes=") {
            from = range.split('-').next().and_then(|n| n.parse().ok()).unwrap_or(0);
        }
    }
    let mut line = line;
    let bytes = bytes();
    if first.contains("/api/models/u/r") {
        let info = serde_json::json!({"sha": "abc123", "siblings": [
            {"rfilename": "README.md", "size": 3, "blobId": "0f"},
            {"rfilename": "m-Q8_0.gguf", "size": SIZE, "blobId": "1f", "lfs": {"sha256": sum(&bytes), "size": SIZE}},
        ]});
        let info = info.to_string();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", info.len());
        line.write_all(head.as_bytes())?;
        return line.write_all(info.as_bytes());
    }
    if way == Way::Dead {
        return Ok(());
    }
    let tries = {
        let mut log = log.lock().unwrap();
        log.push(from);
        log.len()
    };
    let start = if way == Way::IgnoresRanges { 0 } else { from as usize };
    let mut rest = bytes[start..].to_vec();
    if way == Way::Lies {
        rest[100] ^= 1;
    }
    let status = match way {
        Way::IgnoresRanges => "200 OK".to_owned(),
        _ => format!("206 Partial Content\r\nContent-Range: bytes {start}-{}/{SIZE}", SIZE - 1),
    };
    line.write_all(
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", rest.len())
            .as_bytes(),
    )?;
    let cut = way == Way::Cuts || (way == Way::IgnoresRanges && tries == 1);
    line.write_all(&rest[..if cut { rest.len().min(1_000_000) } else { rest.len() }])
}

struct Cache(PathBuf);

impl Cache {
    fn new(name: &str) -> Cache {
        let path = std::env::temp_dir().join(format!("firth-pull-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Cache(path)
    }

    fn blobs(&self) -> Vec<String> {
        let blobs = fs::read_dir(self.0.join("models--u--r/blobs")).into_iter().flatten();
        let mut names: Vec<_> = blobs.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A whole file in the end, whatever the server does on the way; which bytes were asked for.
#[track_caller]
fn check(way: Way, name: &str) -> Vec<u64> {
    let (server, cache) = (Server::start(way), Cache::new(name));
    let paths = server.pull(&cache).unwrap();
    assert_eq!(paths, [cache.0.join("models--u--r/snapshots/abc123/m-Q8_0.gguf")]);
    assert!(fs::read(&paths[0]).unwrap() == bytes(), "other bytes");
    assert_eq!(cache.blobs(), [sum(&bytes())]);
    assert_eq!(fs::read_to_string(cache.0.join("models--u--r/refs/main")).unwrap(), "abc123");
    let asked = server.asked.lock().unwrap().clone();
    // What is here is not asked for again.
    assert_eq!(server.pull(&cache).unwrap(), paths);
    assert_eq!(server.asked.lock().unwrap().len(), asked.len());
    asked
}

#[test]
fn lines_that_are_cut_are_gone_on_with() {
    assert_eq!(check(Way::Good, "good"), [0]);
    assert_eq!(check(Way::Cuts, "cuts"), [0, 1_000_000, 2_000_000]);
}

#[test]
fn a_server_without_ranges_begins_again() {
    assert_eq!(check(Way::IgnoresRanges, "ranges"), [0, 1_000_000]);
}

#[test]
fn other_bytes_are_dropped() {
    let (server, cache) = (Server::start(Way::Lies), Cache::new("lies"));
    let message = server.pull(&cache).unwrap_err().to_string();
    assert!(message.contains("SHA-256") && message.contains(&sum(&bytes())), "{message}");
    assert_eq!(cache.blobs(), [""; 0]);
}

#[test]
fn a_killed_transfer_goes_on_and_is_never_a_model() {
    let cache = Cache::new("killed");
    let server = Server::start(Way::Good);
    let options = PullOptions { endpoint: Some(server.address.clone()), cache: Some(cache.0.clone()) };
    let stopped = pull("u/r:q8_0", &options, &mut |p| match p.here > 500_000 {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    });
    assert!(matches!(stopped, Err(PullError::Interrupted)), "{stopped:?}");
    let part = format!("{}.part", sum(&bytes()));
    assert_eq!(cache.blobs(), [&*part]);
    let stores = crate::Stores { hugging_face: Some(cache.0.clone()), ..crate::Stores::default() };
    assert_eq!(stores.list(), []);
    // A dead server leaves what is here.
    let message = Server::start(Way::Dead).pull(&cache).unwrap_err().to_string();
    assert!(message.contains("cut at") && message.contains("again and again"), "{message}");
    assert_eq!(cache.blobs(), [&*part]);
    let here = fs::metadata(cache.0.join("models--u--r/blobs").join(&part)).unwrap().len();
    server.pull(&cache).unwrap();
    assert_eq!(*server.asked.lock().unwrap(), [0, here]);
    assert_eq!(stores.list()[0].name, "u/r:Q8_0");
}
