//! What users of engines like this ran into, each as a small case.

mod common;

use firth_gguf::{Array, Gguf, Metadata, Strings, Value};
use firth_text::{ChatTemplate, Encode, TemplateError, Vocab};
use serde_json::{Map, Value as Json, json};

fn template(name: &str) -> Option<ChatTemplate> {
    let path = common::shared(&format!("fixtures/templates/{name}.jinja"))?;
    Some(ChatTemplate::new(&std::fs::read_to_string(path).unwrap(), "<s>", "</s>").unwrap())
}

fn render(t: &ChatTemplate, roles: &[(&str, &str)]) -> Result<String, TemplateError> {
    let messages: Vec<Json> = roles.iter().map(|(r, c)| json!({"role": r, "content": c})).collect();
    t.render(&Json::Array(messages), None, true, &Map::new()).map(|r| r.text)
}

/// A second system message: the template's own words, no failure of the engine.
#[test]
fn refusals_are_the_templates_own() {
    let Some(qwen) = template("Qwen3.5-4B") else { return };
    let turns = [("system", "a"), ("user", "b"), ("system", "c"), ("user", "d")];
    let refused = render(&qwen, &turns).unwrap_err();
    assert!(
        matches!(&refused, TemplateError::Raised(m) if m.contains("System message must be at the beginning")),
        "{refused}"
    );
    let ministral = template("mistralai-Ministral-3-14B-Reasoning-2512").unwrap();
    let turns = [("user", "a"), ("user", "b"), ("assistant", "c"), ("assistant", "d")];
    assert!(matches!(render(&ministral, &turns), Err(TemplateError::Raised(_))));
}

/// A history with thoughts, which the template cuts off by methods with arguments.
#[test]
fn thoughts_of_a_history_are_cut() {
    let Some(t) = template("Qwen-QwQ-32B") else { return };
    let turns = [("user", "q"), ("assistant", "<think>\nlong\n</think>\n\nanswer"), ("user", "more")];
    let text = render(&t, &turns).unwrap();
    assert!(text.contains("answer") && !text.contains("long"), "{text}");
}

/// A template that cannot be read is an error of the load, and nothing stands in for it.
#[test]
fn no_template_in_place_of_a_broken_one() {
    let mut m = Metadata::new();
    m.insert("tokenizer.chat_template", Value::Str("{% for m in messages %}{{ m.content }".into()));
    let found = ChatTemplate::from_metadata(&m, "", "").unwrap_err();
    assert!(matches!(found, TemplateError::Syntax { .. }), "{found}");
}

fn vocab_file(name: &str) -> Option<Gguf> {
    let path = common::shared(&format!("fixtures/tokenizer/ggml-vocab-{name}.gguf"))?;
    Some(Gguf::open(&path).unwrap())
}

/// Without `tokenizer.ggml.pre`, or with a name that nobody knows, the text is cut by the default and the file says so;
/// the right name in its place makes the ids right again.
#[test]
fn a_pre_tokeniser_that_is_missing_or_unknown_warns() {
    let Some(mut file) = vocab_file("gpt-2") else { return };
    let text = "In 1234567 years, they'll   say:\n\n\tWELL'S gone";
    let ids = |file: &Gguf| {
        let vocab = Vocab::from_metadata(file.metadata()).unwrap();
        (vocab.encode(text, Encode::default()).unwrap(), vocab.warnings().to_vec())
    };
    let (right, warnings) = ids(&file);
    assert!(warnings.is_empty(), "{warnings:?}");
    for name in [Some("llama5"), None] {
        let mut m = Metadata::new();
        let others = file.metadata().iter().filter(|(key, _)| *key != "tokenizer.ggml.pre");
        others.for_each(|(key, value)| {
            m.insert(key, value.clone());
        });
        if let Some(name) = name {
            m.insert("tokenizer.ggml.pre", Value::Str(name.into()));
        }
        let vocab = Vocab::from_metadata(&m).unwrap();
        let [warning] = vocab.warnings() else { panic!("{:?}", vocab.warnings()) };
        assert!(warning.contains("`tokenizer.ggml.pre`") && warning.contains("--override-kv"), "{warning}");
        assert_ne!(vocab.encode(text, Encode::default()).unwrap(), right);
    }
    file.metadata_mut().insert("tokenizer.ggml.pre", Value::Str("phi-2".into()));
    assert_eq!(ids(&file), (right, Vec::new()));
}

/// A mark in a text is one token where marks are read, and its letters where not.
#[test]
fn marks_are_read_only_where_asked() {
    let Some(file) = vocab_file("qwen35") else { return };
    let vocab = Vocab::from_metadata(file.metadata()).unwrap();
    let ids = |parse_special| {
        vocab.encode("<|im_start|>user", Encode { add_special: false, parse_special }).unwrap()
    };
    assert_eq!((ids(true).len(), vocab.token_text(ids(true)[0])), (2, &b"<|im_start|>"[..]));
    assert!(ids(false).len() > 3 && !ids(false).contains(&ids(true)[0]));
    assert_eq!(vocab.decode_text(&ids(false), true), "<|im_start|>user");
}

/// The byte alphabet of byte-level vocabularies: a byte that prints stands for itself, the others for U+0100 and on.
fn letters() -> Vec<String> {
    let prints = |b: &u8| matches!(b, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut next = 0x100;
    let mut letter = |b: u8| match prints(&b) {
        true => char::from(b),
        false => {
            next += 1;
            char::from_u32(next - 1).unwrap()
        }
    };
    (0..=255).map(|b| letter(b).to_string()).collect()
}

/// Every name cuts text so that its bytes come back from a byte-level vocabulary.
#[test]
fn every_pre_tokeniser_encodes_and_comes_back() {
    let mut m = Metadata::new();
    m.insert("tokenizer.ggml.model", Value::Str("gpt2".into()));
    let strings = |texts: &[String]| {
        let mut out = Strings::new();
        texts.iter().for_each(|t| out.push(t));
        Value::Array(Array::Str(out))
    };
    m.insert("tokenizer.ggml.tokens", strings(&letters()));
    m.insert("tokenizer.ggml.merges", strings(&[]));
    let text = "It's 2024: \"Où est 漢字?\" 1234567 — ok\r\n\n  👩‍👩‍👧 a\u{301}";
    for name in firth_text::pre::PreTokeniser::names() {
        m.insert("tokenizer.ggml.pre", Value::Str(name.into()));
        let vocab = Vocab::from_metadata(&m).unwrap();
        let found = vocab.encode(text, Encode::default()).unwrap();
        assert!(vocab.warnings().is_empty(), "{name}: {:?}", vocab.warnings());
        // Those whose vocabularies are plain UTF-8 lack most of these letters.
        let raw =
            ["gemma4", "granite-embed-multi-311m", "mmbert", "sarvam-moe", "whitespace"].contains(&name);
        assert!(
            raw || vocab.decode_text(&found, true) == text,
            "{name}: {:?}",
            vocab.decode_text(&found, true)
        );
    }
}
