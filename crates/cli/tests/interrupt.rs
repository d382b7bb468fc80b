//! Ctrl-C ends a generation and keeps what was said; a reader that goes away ends the program.
#![cfg(unix)]

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Starts an answer that goes on for very long.
fn start(args: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_firth"))
        .args(["run", "--raw", "Once upon a time", "--ignore-eos", "--temp", "0", "--ctx", "30000"])
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts")
}

fn interrupt(child: &Child) {
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(sent.expect("kill is there").success());
}

/// The exit status and what is left to read, within a time that only a hang takes.
fn end(mut child: Child) -> (Option<i32>, String, String) {
    let start = Instant::now();
    let status = loop {
        match child.try_wait().expect("a child that was started") {
            Some(status) => break status,
            None if start.elapsed() > Duration::from_secs(120) => {
                let _ = child.kill();
                panic!("it goes on after an interrupt");
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let (mut out, mut err) = (String::new(), String::new());
    child.stdout.take().expect("piped").read_to_string(&mut out).expect("text");
    child.stderr.take().expect("piped").read_to_string(&mut err).expect("text");
    (status.code(), out, err)
}

#[test]
fn an_interrupt_ends_the_answer() {
    let mut child = start(&[]);
    let mut first = [0; 20];
    child.stdout.as_mut().expect("piped").read_exact(&mut first).expect("text comes");
    interrupt(&child);
    let (code, rest, err) = end(child);
    assert_eq!(code, Some(0), "{err}");
    assert!(rest.ends_with('\n') && !err.contains("panicked"), "{rest:?} {err:?}");
}

/// Without a listener, as while tokens of a file are scored, an interrupt ends the program.
#[test]
fn an_interrupt_ends_the_program_elsewhere() {
    let text = std::env::temp_dir().join(format!("firth-interrupt-{}.txt", std::process::id()));
    std::fs::write(&text, "It was the best of times. ".repeat(40_000)).expect("a temporary file");
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../firth/assets/qwen35-tiny-mtp-Q4_K_M.gguf");
    let mut child = Command::new(env!("CARGO_BIN_EXE_firth"))
        .args(["perplexity", model, "-c", "64", "-f"])
        .arg(&text)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut first = [0; 8];
    let read = child.stdout.as_mut().expect("piped").read_exact(&mut first);
    interrupt(&child);
    let (code, _, err) = end(child);
    let _ = std::fs::remove_file(&text);
    assert!(read.is_ok(), "a chunk's line comes: {err}");
    assert_eq!(code, Some(130), "{err}");
}

/// As with `firth devices --plan MODEL | head -1`.
#[test]
fn a_reader_that_goes_away_is_no_failure_to_print() {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../firth/assets/qwen35-tiny-mtp-Q4_K_M.gguf");
    for command in [["inspect", model].as_slice(), &["devices", "--plan", model]] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_firth"))
            .args(command)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        drop(child.stdout.take());
        let mut err = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut err).expect("text");
        assert_eq!(child.wait().expect("an end").code(), None, "ended by a signal");
        assert!(!err.contains("panicked"), "{err}");
    }
}
