//! `firth run` on the bundled model, from outside.

use std::process::{Command, Output};

use serde_json::Value;

fn run(args: &[&str], env: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_firth"))
        .args(["run", "--raw", "Once upon a time", "--temp", "0", "--json"])
        .args(args)
        .envs(env.iter().copied())
        .output()
        .expect("the program starts")
}

#[track_caller]
fn answer(args: &[&str], env: &[(&str, &str)]) -> (Value, String) {
    let out = run(args, env);
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{err}");
    (serde_json::from_slice(&out.stdout).expect("one object"), err)
}

#[track_caller]
fn fails(code: i32, args: &[&str], env: &[(&str, &str)], message: &str) {
    let out = run(args, env);
    let err = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(code), "{err}");
    assert!(err.contains(message) && !err.contains("panicked"), "{err}");
    assert!(out.stdout.is_empty());
}

/// The answer does not depend on threads, batch or instruction set; more threads than the machine has are cut.
#[test]
fn settings_that_do_not_show() {
    let (base, _) = answer(&["-n", "12", "-t", "1"], &[]);
    assert_eq!(base["ids"].as_array().map(Vec::len), Some(12));
    let (many, err) = answer(&["-n", "12", "-t", "100000"], &[]);
    assert!(err.contains("--threads 100000 is more than may run here"), "{err}");
    assert_eq!(many["ids"], base["ids"]);
    for batch in ["1", "2", "512"] {
        assert_eq!(answer(&["-n", "12", "--batch", batch], &[]).0["ids"], base["ids"], "batch {batch}");
    }
    for level in ["scalar", "emulated4"] {
        assert_eq!(answer(&["-n", "12"], &[("FIRTH_ISA", level)]).0["ids"], base["ids"], "{level}");
    }
    let (_, err) = answer(&["-n", "1", "--log", "info"], &[("FIRTH_ISA", "scalar")]);
    assert!(err.contains("device cpu: Scalar"), "{err}");
}

#[test]
fn where_an_answer_ends() {
    let stop = |args: &[&str]| answer(args, &[]).0["stop"].as_str().map(str::to_owned);
    assert_eq!(stop(&["-n", "3"]).as_deref(), Some("limit"));
    assert_eq!(stop(&["-n", "300", "--ctx", "40", "--ignore-eos"]).as_deref(), Some("context"));
    assert_eq!(stop(&["-n", "40", "--ignore-eos", "--stop", "a"]).as_deref(), Some("word"));
}

#[test]
fn what_cannot_be_done_is_said() {
    fails(1, &["-t", "0"], &[], "--threads is 0, expected 1 or more");
    fails(1, &["--ctx", "3"], &[], "tokens exceed the context of 3");
    fails(1, &["--ctx", "0"], &[], "ctx is 0, expected 1 to");
    fails(1, &["--max-memory", "1M"], &[], "are free; no smaller context, batch or placement fits");
    fails(1, &["--max-memory", "4M"], &[], "are free; what fits: --map");
    fails(1, &[], &[("FIRTH_ISA", "sse9")], "unknown instruction set `sse9`");
    fails(2, &["--kv", "q4_0"], &[], "possible values: f16, f32, q8_0");
    fails(1, &["--repeat-penalty", "0"], &[], "repeat_penalty is 0");
}
