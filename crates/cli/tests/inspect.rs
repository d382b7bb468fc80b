//! `firth inspect` on files that firth does not run: it says what is missing.

use std::path::PathBuf;
use std::process::Command;

use firth_gguf::{Value, Writer};

struct File(PathBuf);

impl File {
    fn new(name: &str, keys: &[(&str, Value)]) -> File {
        let mut w = Writer::new();
        keys.iter().for_each(|(k, v)| {
            w.metadata_mut().insert(*k, v.clone());
        });
        let path = std::env::temp_dir().join(format!("firth-inspect-{name}-{}.gguf", std::process::id()));
        w.write_file(&path).unwrap();
        File(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[track_caller]
fn check(path: &std::path::Path, expected: &[&str]) {
    let found = Command::new(env!("CARGO_BIN_EXE_firth")).arg("inspect").arg(path).output().unwrap();
    let text = [found.stdout, found.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(!text.contains("panicked"), "{text}");
    for part in expected {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

#[test]
fn what_is_missing_is_named() {
    let str = |s: &str| Value::Str(s.into());
    let unknown = File::new("unknown", &[("general.architecture", str("qwen33"))]);
    check(
        &unknown.0,
        &["firth does not run it: architecture `qwen33` is not known", "nearest known are: qwen3,"],
    );
    let matrix = File::new("matrix", &[("general.type", str("imatrix"))]);
    check(&matrix.0, &["firth does not run it: it is of the type `imatrix`, no model"]);
    let bare = File::new("bare", &[]);
    check(&bare.0, &["firth does not run it", "general.architecture"]);
    let keys =
        File::new("keys", &[("general.architecture", str("llama")), ("llama.block_count", Value::U32(1))]);
    check(&keys.0, &["firth does not run it: key `llama."]);
    let bundled = concat!(env!("CARGO_MANIFEST_DIR"), "/../firth/assets/qwen35-tiny-mtp-Q4_K_M.gguf");
    check(bundled.as_ref(), &["firth runs it: qwen35", "text: Bpe", "chat:"]);
}

#[test]
fn what_is_no_model_file_is_said() {
    for (name, bytes) in
        [("zip", &b"PK\x03\x04 and so on"[..]), ("empty", b""), ("cut", b"GGUF\x03\0\0\0\x01")]
    {
        let path = std::env::temp_dir().join(format!("firth-inspect-{name}-{}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        let found = Command::new(env!("CARGO_BIN_EXE_firth")).arg("inspect").arg(&path).output().unwrap();
        let _ = std::fs::remove_file(&path);
        let text = String::from_utf8_lossy(&found.stderr).into_owned();
        assert_eq!(found.status.code(), Some(1), "{text}");
        assert!(text.contains(&format!("firth-inspect-{name}")) && !text.contains("panicked"), "{text}");
    }
}
