//! `firth quantize` as people type it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use firth::Dtype;
use firth_gguf::{Gguf, Writer};

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("firth-cli-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// A file that no engine runs, of the types that tensors have before they are quantised.
    fn model(&self) -> PathBuf {
        let mut w = Writer::new();
        w.metadata_mut().insert("general.architecture", "toy".to_owned());
        let tensors: [(&str, &[u64]); 5] = [
            ("token_embd.weight", &[256, 512]),
            ("output_norm.weight", &[256]),
            ("blk.0.attn_q.weight", &[256, 256]),
            ("blk.0.attn_k.weight", &[256, 64]),
            ("blk.0.odd.weight", &[32, 3]),
        ];
        for (name, shape) in tensors {
            let n: u64 = shape.iter().product();
            let data: Vec<u8> = (0..n).flat_map(|i| (i as f32 * 0.7).sin().to_le_bytes()).collect();
            w.add_tensor(name, shape, Dtype::F32, data).unwrap();
        }
        let path = self.0.join("in.gguf");
        w.write_file(&path).unwrap();
        path
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn quantize(input: &Path, output: &Path, rest: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_firth"))
        .arg("quantize")
        .arg(input)
        .arg(output)
        .args(rest)
        .output()
        .unwrap()
}

/// One clear line on stderr and status 1.
fn refused(output: &Output, part: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(part), "{text}");
    assert_eq!(
        text.lines().filter(|l| l.starts_with("firth: ") && !l.contains("warning")).count(),
        1,
        "{text}"
    );
    assert!(!text.contains("panicked"), "{text}");
}

#[test]
fn a_file_is_written_under_its_name() {
    let folder = Folder::new("written");
    let (model, out) = (folder.model(), folder.0.join("out.gguf"));
    let done = quantize(&model, &out, &["q4_k_m", "-t", "2"]);
    let warnings = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{warnings}");
    assert!(warnings.contains("blk.0.odd.weight has rows of 32 values: Q5_0 in place of Q4_K"), "{warnings}");
    assert_eq!(String::from_utf8_lossy(&done.stdout).trim(), out.display().to_string());
    assert_eq!(folder.names(), ["in.gguf", "out.gguf"]);
    let file = Gguf::open(&out).unwrap();
    assert_eq!(file.metadata().u32("general.file_type").unwrap(), Some(15));
    assert_eq!(file.tensor("blk.0.attn_q.weight").unwrap().dtype, Dtype::Q4_K);
    assert_eq!(file.tensor("token_embd.weight").unwrap().dtype, Dtype::Q6_K);
    // What was there is replaced.
    let again = quantize(&model, &out, &["Q6_K", "--tensor-type", "attn_q=q5_k"]);
    assert!(again.status.success());
    assert!(!String::from_utf8_lossy(&again.stderr).contains("matches no tensor"));
    let file = Gguf::open(&out).unwrap();
    assert_eq!(file.tensor("blk.0.attn_q.weight").unwrap().dtype, Dtype::Q5_K);
    assert_eq!(file.tensor("blk.0.attn_k.weight").unwrap().dtype, Dtype::Q6_K);
    refused(&quantize(&out, &folder.0.join("third.gguf"), &["Q4_K_M"]), "--allow-requantize");
    let idle = quantize(&model, &out, &["Q6_K", "--tensor-type", "attn_qq=q5_k"]);
    assert!(String::from_utf8_lossy(&idle.stderr).contains("--tensor-type attn_qq=q5_k matches no tensor"));
}

#[test]
fn what_has_no_meaning_is_refused() {
    let folder = Folder::new("refused");
    let (model, out) = (folder.model(), folder.0.join("out.gguf"));
    refused(&quantize(&model, &out, &["Q4_X"]), "`Q4_X` is no file type; known are F32");
    refused(&quantize(&model, &out, &["Q8_0", "--tensor-type", "attn"]), "NAME=TYPE");
    refused(&quantize(&model, &out, &["Q8_0", "--output-tensor-type", "Q7"]), "`Q7` is no tensor type");
    refused(&quantize(&model, &out, &["Q8_0", "--threads", "0"]), "--threads");
    refused(&quantize(&folder.0.join("none.gguf"), &out, &["Q8_0"]), "no such file");
    refused(&quantize(&model, &model, &["Q8_0"]), "is the input itself");
    let bytes = std::fs::read(&model).unwrap();
    for n in [0, 3, 100, 300, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&model, &bytes[..n]).unwrap();
        refused(&quantize(&model, &out, &["Q8_0"]), "in.gguf");
    }
    assert_eq!(folder.names(), ["in.gguf"]);
}

#[test]
fn a_dry_run_writes_nothing() {
    let folder = Folder::new("dry");
    let dry = quantize(&folder.model(), &folder.0.join("out.gguf"), &["Q4_K_M", "--dry-run"]);
    assert!(dry.status.success());
    let text = String::from_utf8_lossy(&dry.stdout).into_owned();
    assert!(text.contains("F32 to Q4_K") && text.contains("token_embd.weight"), "{text}");
    assert_eq!(folder.names(), ["in.gguf"]);
}

/// A disk that is full, as a limit on the size of files: the error says so, and no part of a file stays.
#[cfg(unix)]
#[test]
fn a_full_disk_is_an_error() {
    let folder = Folder::new("full");
    let (model, out) = (folder.model(), folder.0.join("out.gguf"));
    let script = "trap '' XFSZ; ulimit -f 64; exec \"$0\" quantize \"$1\" \"$2\" Q8_0";
    let mut sh = Command::new("sh");
    sh.args(["-c", script, env!("CARGO_BIN_EXE_firth")]).arg(model).arg(out);
    refused(&sh.output().unwrap(), "cannot write");
    assert_eq!(folder.names(), ["in.gguf"]);
}
