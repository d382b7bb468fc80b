//! Checkpoints in safetensors: logits and ids beside those of transformers, which wrote them
//! (`cargo xtask convert-check --python ENVIRONMENT` writes them anew).

use std::fs;
use std::path::{Path, PathBuf};

use firth_conformance::checkpoint;
use firth_text::{Encode, Vocab};

/// Largest difference of a logit.
const BOUND: f32 = 1e-4;

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/checkpoints")
}

#[test]
fn logits_are_those_of_transformers() {
    let folders = checkpoint::folders(&data());
    assert_eq!(folders.len(), 21, "{folders:?}");
    let mut wrong = Vec::new();
    for folder in folders {
        let outcome = checkpoint::worst_difference(&folder);
        println!("{}: {outcome:?}", folder.display());
        if !outcome.is_ok_and(|worst| worst <= BOUND) {
            wrong.push(folder);
        }
    }
    assert!(wrong.is_empty(), "failed, or differ by more than {BOUND:e}: {wrong:?}");
}

/// A text and its ids, with and without those that frame it.
type Case = (String, Vec<u32>, Vec<u32>);

#[test]
fn ids_are_those_of_tokenizers() {
    let mut with_text = 0;
    for folder in checkpoint::folders(&data()) {
        let Ok(cases) = fs::read(folder.join("texts.json")) else { continue };
        with_text += 1;
        let cases: Vec<Case> = serde_json::from_slice(&cases).unwrap();
        let file = firth::open(&folder, &[]).unwrap();
        let vocab = Vocab::from_metadata(file.metadata()).unwrap();
        assert!(vocab.warnings().is_empty(), "{}: {:?}", folder.display(), vocab.warnings());
        for (text, framed, plain) in cases {
            for (add_special, expected) in [(true, framed), (false, plain)] {
                let found = vocab.encode(&text, Encode { add_special, parse_special: true }).unwrap();
                assert_eq!(found, expected, "{}: {text:?}", folder.display());
            }
        }
    }
    assert_eq!(with_text, 5);
}

/// A copy of a checkpoint that is removed behind the test.
struct Copy(PathBuf);

impl Copy {
    fn of(name: &str) -> Copy {
        let path = std::env::temp_dir().join(format!("firth-checkpoint-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        for entry in fs::read_dir(data().join(name)).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), path.join(entry.file_name())).unwrap();
        }
        Copy(path)
    }

    /// What loading says when a file has other bytes; the file is as before afterwards.
    fn with(&self, file: &str, bytes: &[u8]) -> Result<(), String> {
        let path = self.0.join(file);
        let sound = fs::read(&path).unwrap();
        fs::write(&path, bytes).unwrap();
        let outcome = load(&self.0);
        fs::write(&path, sound).unwrap();
        outcome
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// Opens a checkpoint, makes its model and reads its vocabulary and every tensor.
fn load(folder: &Path) -> Result<(), String> {
    let file = firth::open(folder, &[]).map_err(|e| e.to_string())?;
    firth_models::load(&file).map_err(|e| e.to_string())?;
    Vocab::from_metadata(file.metadata()).map_err(|e| e.to_string())?;
    file.tensors().iter().for_each(|t| assert_eq!(file.data(t).len() as u64, t.len));
    Ok(())
}

/// Absurd values in place of each field of the configuration, and no such field: an error or a model, never a panic.
#[test]
fn no_field_of_a_configuration_panics() {
    for name in ["qwen35moe", "gemma3n", "gemma4moe", "lfm2", "phi3", "mixtral"] {
        let copy = Copy::of(name);
        assert_eq!(load(&copy.0), Ok(()), "{name}");
        let config: serde_json::Value =
            serde_json::from_slice(&fs::read(copy.0.join("config.json")).unwrap()).unwrap();
        let absurd =
            ["null", "0", "1", "-1", "3", "1e300", "4294967295", "4294967296", "\"x\"", "[]", "{}", "true"];
        let fields: Vec<String> = config.as_object().unwrap().keys().cloned().collect();
        for field in fields {
            for value in absurd {
                let mut changed = config.clone();
                changed[&field] = serde_json::from_str(value).unwrap();
                let outcome = copy.with("config.json", changed.to_string().as_bytes());
                let e = outcome.err().unwrap_or_default();
                // What is wrong with the configuration by itself is said with its field.
                if e.contains("config.json") {
                    assert!(e.contains("expected") || e.contains("known are"), "{field} = {value}: {e}");
                }
            }
        }
    }
}

#[test]
fn a_wrong_field_is_named_with_file_and_values() {
    let copy = Copy::of("llama");
    let config = fs::read_to_string(copy.0.join("config.json")).unwrap();
    for (from, to, expected) in [
        (
            "\"hidden_size\": 16",
            "\"hidden_size\": \"big\"",
            "config.json: field `hidden_size` is \"big\", expected a whole number",
        ),
        (
            "\"num_key_value_heads\": 2",
            "\"num_key_value_heads\": 3",
            "field `num_key_value_heads` is 3, expected a divisor of",
        ),
        (
            "\"rope_type\": \"llama3\"",
            "\"rope_type\": \"spiral\"",
            "field `rope_parameters.rope_type` is \"spiral\", expected default",
        ),
        (
            "LlamaForCausalLM",
            "LamaForCausalLM",
            "architecture `LamaForCausalLM` is not converted; known are LlamaForCausalLM",
        ),
        ("\"num_attention_heads\": 4", "\"num_attention_heads\": 8", "has 32 rows, expected 64"),
        (
            "\"num_hidden_layers\": 2",
            "\"num_hidden_layers\": 1",
            "has number 1 in its name, expected one below 1",
        ),
        (
            "\"vocab_size\": 448",
            "\"vocab_size\": 0",
            "config.json: field `vocab_size` is 0, expected 1 or more",
        ),
    ] {
        assert!(config.contains(from), "{from}");
        let e = copy.with("config.json", config.replace(from, to).as_bytes()).unwrap_err();
        assert!(e.contains(expected), "{to}: {e}");
    }
}

/// Files that end early or have a byte changed: an error or a model, never a panic.
#[test]
fn no_damage_to_a_file_panics() {
    let copy = Copy::of("gemma3");
    for entry in fs::read_dir(&copy.0).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        let sound = fs::read(copy.0.join(&file)).unwrap();
        let step = sound.len().div_ceil(40).max(1);
        for at in (0..sound.len()).step_by(step) {
            let _ = copy.with(&file, &sound[..at]);
            for flip in [0x01, 0x80, 0xff] {
                let mut changed = sound.clone();
                changed[at] ^= flip;
                let _ = copy.with(&file, &changed);
            }
        }
    }
    let e = copy.with("model.safetensors", b"no tensors").unwrap_err();
    assert!(e.contains("model.safetensors is no safetensors file"), "{e}");
}
