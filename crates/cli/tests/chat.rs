//! `firth chat` by lines from a pipe.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// Runs a conversation, a turn or command a line.
fn chat(args: &[&str], lines: &[&str]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_firth"))
        .args(["chat", "--temp", "0", "-n", "12"])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let text = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    // A program that has ended no longer reads; its status says why.
    let _ = child.stdin.take().expect("piped").write_all(text.as_bytes());
    child.wait_with_output().expect("the program ends")
}

#[track_caller]
fn answers(args: &[&str], lines: &[&str]) -> Vec<u8> {
    let out = chat(args, lines);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    out.stdout
}

#[track_caller]
fn fails(args: &[&str], lines: &[&str], message: &str) {
    let out = chat(args, lines);
    let err = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{err}");
    assert!(err.contains(message) && !err.contains("panicked"), "{err}");
}

fn temporary(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("firth-chat-{}-{name}", std::process::id()))
}

const TURNS: [&str; 3] = ["Once upon a time", "And then?", "Who was it?"];

/// Guesses do not show, and a conversation that was saved goes on in another process as if it had not been.
#[test]
fn a_conversation_goes_on_where_it_was_saved() {
    let whole = answers(&[], &TURNS);
    assert!(whole.iter().filter(|b| **b == b'\n').count() >= TURNS.len());
    assert_eq!(answers(&["--spec", "none", "-t", "1"], &TURNS), whole);

    let path = temporary("saved");
    let path_text = path.display();
    let mut parts = answers(&[], &[TURNS[0], TURNS[1], &format!("/save {path_text}")]);
    parts.extend(answers(&[], &[&format!("/load {path_text}"), TURNS[2]]));
    assert_eq!(parts, whole);
    // Without its state the conversation is computed again.
    let state = PathBuf::from(format!("{path_text}.state"));
    std::fs::write(&state, "damaged").expect("a temporary file");
    let out = chat(&[], &[&format!("/load {path_text}"), TURNS[2]]);
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(err.contains("computes the conversation again"), "{err}");
    assert!(whole.ends_with(&out.stdout) && !out.stdout.is_empty());
    for file in [path, state] {
        std::fs::remove_file(file).expect("a file of the test");
    }
}

#[test]
fn a_cleared_conversation_is_a_new_one() {
    let once = answers(&[], &[TURNS[0]]);
    assert_eq!(answers(&[], &[TURNS[0], "/clear", "", TURNS[0]]), once.repeat(2));
}

#[test]
fn what_cannot_be_done_is_said() {
    fails(&[], &["/sing"], "no command `/sing`");
    fails(&[], &["/save"], "/save needs the name of a file");
    fails(&[], &["/load /nowhere/at/all"], "/nowhere/at/all");
    fails(&["--chat-template", "/nowhere/at/all"], &[], "/nowhere/at/all");
    fails(&["--ctx", "4"], &[TURNS[0]], "exceed the context of 4");
}
