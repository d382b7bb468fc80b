//! `firth embed` on the bundled model, from outside.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../firth/assets/qwen35-tiny-mtp-Q4_K_M.gguf");

fn embed(args: &[&str], stdin: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_firth"))
        .args(["embed", MODEL, "--ctx", "256"])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // A program that has refused may not read.
    let _ = child.stdin.take().expect("piped").write_all(stdin.as_bytes());
    child.wait_with_output().expect("it ends")
}

#[track_caller]
fn lines(args: &[&str], stdin: &str) -> Vec<Value> {
    let out = embed(args, stdin);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).expect("UTF-8");
    text.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect()
}

#[test]
fn lines_of_stdin_and_one_text() {
    let both = lines(&[], "once upon a time\nthe end\n");
    assert_eq!((both.len(), &both[1]["index"]), (2, &Value::from(1)));
    let one = lines(&["-p", "the end", "-t", "1"], "");
    assert_eq!((&one[0]["embedding"], &one[0]["tokens"]), (&both[1]["embedding"], &both[1]["tokens"]));
    let raw = embed(&["-p", "the end", "--output", "raw"], "").stdout;
    let numbers: Vec<f32> = raw.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    let listed: Vec<f32> =
        one[0]["embedding"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect();
    assert_eq!(numbers, listed);
    assert!((numbers.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-5);
    let rows = lines(&["-p", "the end", "--pooling", "none", "--normalize", "none"], "");
    assert_eq!(
        rows[0]["embeddings"].as_array().map(Vec::len),
        rows[0]["tokens"].as_u64().map(|n| n as usize)
    );
}

#[test]
fn what_cannot_be_done_is_said() {
    for (args, code, message) in [
        (&["-p", "a", "--pooling", "rank"][..], 1, "no classifier"),
        (&["-p", "a", "--pooling", "most"], 2, "none, mean, cls, last or rank"),
        (&["-p", "a", "--dimensions", "100000"], 1, "--dimensions is 100000"),
        (&["-f", "/no/such/file"], 1, "/no/such/file"),
    ] {
        let out = embed(args, "");
        let err = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{err}");
        assert!(err.contains(message) && !err.contains("panicked"), "{err}");
    }
    let long = "word ".repeat(400);
    let err = embed(&[], &long);
    assert!(String::from_utf8_lossy(&err.stderr).contains("exceed the context of 256"));
}
