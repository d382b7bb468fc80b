//! Whole vocabularies of published models: ids of the reference engine and of the original tokeniser.

mod common;

use std::path::{Path, PathBuf};

use firth_gguf::Gguf;
use firth_text::{ChatTemplate, Encode, Vocab};
use serde_json::{Map, Value, json};

const ALL: Encode = Encode { add_special: true, parse_special: true };

fn json_at(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// A model below the folder `FIRTH_MODELS`, or `None`, said on stderr, where it is absent.
fn model(name: &str) -> Option<Gguf> {
    let path = std::env::var_os("FIRTH_MODELS").map(|folder| PathBuf::from(folder).join(name));
    match path.filter(|path| path.exists()) {
        Some(path) => Some(Gguf::open(&path).unwrap()),
        None => {
            eprintln!("skipped: {name} is absent from FIRTH_MODELS");
            None
        }
    }
}

#[track_caller]
fn check_prompts(fixture: &str, n_prompts: usize) {
    let Some(path) = common::shared(&format!("fixtures/logits/{fixture}.json")) else { return };
    let fixture = json_at(&path);
    let Some(file) = model(fixture["file"].as_str().unwrap()) else { return };
    let vocab = Vocab::from_metadata(file.metadata()).unwrap();
    let prompts = fixture["prompts"].as_object().unwrap();
    assert_eq!(prompts.len(), n_prompts);
    for (name, prompt) in prompts {
        let text = prompt["text"].as_str().unwrap();
        let found = vocab.encode(text, ALL).unwrap();
        assert_eq!(found, ids(&prompt["ids"]), "{name}");
        let start = usize::from(vocab.add_bos());
        assert_eq!(vocab.decode_text(&found[start..], true), text, "{name}");
    }
}

#[test]
fn prompts_of_the_reference_engine() {
    check_prompts("smollm2-135m-instruct-q4_1", 4);
    check_prompts("gemma-3-270m-it-q4_k_m", 4);
}

#[test]
fn tiny_vocabulary_agrees_with_its_original() {
    let Some(folder) = common::shared("fixtures/tiny") else { return };
    let file = Gguf::open(&folder.join("qwen35-tiny-mtp-F32.gguf")).unwrap();
    let vocab = Vocab::from_metadata(file.metadata()).unwrap();
    let cases = json_at(&folder.join("reference/tokenizer.json"));
    let cases = cases["cases"].as_array().unwrap();
    assert!(cases.len() > 5);
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let found = vocab.encode(text, Encode { add_special: false, parse_special: true }).unwrap();
        assert_eq!(found, ids(&case["llama_cpp"]), "{text:?}");
        assert_eq!(vocab.decode_text(&found, true), text);
    }
}

/// Renders a chat with a model's own template, or with `source` where the file has none, and cuts it into ids.
#[track_caller]
fn check_chat(name: &str, source: Option<&str>, expected: &str, ends: &[&str]) {
    let Some(file) = model(name) else { return };
    let vocab = Vocab::from_metadata(file.metadata()).unwrap();
    let text_of = |id: Option<u32>| id.map_or_else(String::new, |id| vocab.decode_text(&[id], true));
    let (bos, eos) = (text_of(vocab.bos()), text_of(vocab.eos()));
    let own = ChatTemplate::from_metadata(file.metadata(), &bos, &eos).unwrap();
    assert_eq!(own.is_none(), source.is_some());
    let given = source.map(|source| ChatTemplate::new(source, &bos, &eos).unwrap());
    let template = own.or(given).unwrap();
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let prompt = template.render(&messages, None, true, &Map::new()).unwrap();
    assert_eq!(prompt.text, expected);
    assert_eq!(prompt.has_bos, expected.starts_with(&bos));
    let found =
        vocab.encode(&prompt.text, Encode { add_special: !prompt.has_bos, parse_special: true }).unwrap();
    assert_eq!(vocab.decode_text(&found, true), expected);
    assert!(found.iter().filter(|&&id| vocab.is_control(id)).count() >= 3);
    for end in ends {
        let id = vocab.id_of(end.as_bytes()).unwrap();
        assert!(vocab.is_end(id), "{end}");
    }
}

#[test]
fn chats_by_the_models_own_templates() {
    check_chat(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        None,
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
         <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
        &["<|im_end|>", "<|endoftext|>"],
    );
    let Some(path) = common::shared("fixtures/templates/google-gemma-2-2b-it.jinja") else { return };
    check_chat(
        "gemma-3-270m-it-Q4_K_M.gguf",
        Some(&std::fs::read_to_string(path).unwrap()),
        "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n",
        &["<end_of_turn>", "<eos>"],
    );
}
