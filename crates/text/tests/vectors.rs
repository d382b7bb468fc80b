//! Vocabularies against published vectors, round trips, and hostile texts.

mod common;

use std::path::Path;
use std::time::Instant;

use firth_gguf::{Array, Gguf, Metadata, Strings, Value};
use firth_text::{Encode, EncodeScratch, Vocab, VocabKind};

fn load(name: &str) -> Option<Vocab> {
    let path = common::shared("fixtures/tokenizer")?.join(format!("ggml-vocab-{name}.gguf"));
    Some(read(&path))
}

fn read(path: &Path) -> Vocab {
    let file = Gguf::open(path).unwrap();
    Vocab::from_metadata(file.metadata()).unwrap()
}

#[track_caller]
fn check_vectors(name: &str, kind: VocabKind) {
    let Some(vocab) = load(name) else { return };
    assert_eq!(vocab.kind(), kind);
    let folder = common::shared("fixtures/tokenizer").unwrap();
    let read =
        |ending| std::fs::read_to_string(folder.join(format!("ggml-vocab-{name}.gguf.{ending}"))).unwrap();
    let (texts, ids) = (read("inp"), read("out"));
    let texts = texts.split("\n__ggml_vocab_test__\n").collect::<Vec<_>>();
    let mut scratch = EncodeScratch::default();
    let mut n = 0;
    for (text, ids) in texts.iter().zip(ids.lines()) {
        let expected = ids.split_whitespace().map(|id| id.parse().unwrap()).collect::<Vec<u32>>();
        let mut found = Vec::new();
        vocab.encode_into(text, Encode::default(), &mut scratch, &mut found).unwrap();
        assert_eq!(found, expected, "{name}: {text:?}");
        n += 1;
    }
    assert!(n >= 40, "{name} has {n} vectors");
}

#[test]
fn byte_level_vectors() {
    for name in ["gpt-2", "llama-bpe", "falcon", "qwen35"] {
        check_vectors(name, VocabKind::Bpe);
    }
}

#[test]
fn sentencepiece_vectors() {
    for name in ["llama-spm", "phi-3"] {
        check_vectors(name, VocabKind::Spm);
    }
}

#[test]
fn wordpiece_vectors() {
    check_vectors("bert-bge", VocabKind::Wpm);
}

#[test]
fn wordpiece_frames_every_text() {
    let Some(vocab) = load("bert-bge") else { return };
    let opts = Encode { add_special: true, parse_special: false };
    let ids = vocab.encode("Hello, Wörld!", opts).unwrap();
    assert_eq!((ids.first(), ids.last()), (Some(&101), Some(&102)));
    assert_eq!(vocab.encode("", opts).unwrap(), [101, 102]);
    assert_eq!(vocab.decode_text(&ids, false), "hello , world !");
}

/// Random valid strings, with the characters that cut words made frequent.
fn random_texts(n: usize) -> impl Iterator<Item = String> {
    let mut state = 88172645463325252u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let common =
        [' ', ' ', '\n', '\t', '\'', 's', 'T', '1', '2', '.', '!', 'é', '\u{301}', '漢', '\u{a0}', '🦙'];
    (0..n).map(move |_| {
        let len = next() % 60;
        (0..len)
            .filter_map(|_| match next() % 4 {
                0 => Some(common[next() as usize % common.len()]),
                1 => char::from_u32((next() % 0x80) as u32),
                2 => char::from_u32((next() % 0x3000) as u32),
                _ => char::from_u32((next() % 0x110000) as u32),
            })
            .filter(|&c| c != '\u{2581}')
            .collect()
    })
}

/// Which bytes a vocabulary can spell. Some lack a few, and what holds those cannot come back.
fn spelt_bytes(vocab: &Vocab) -> [bool; 256] {
    let mut found = [false; 256];
    for piece in vocab.ids().map(|id| vocab.piece(id, true)).filter(|piece| piece.len() == 1) {
        found[usize::from(piece[0])] = true;
    }
    found
}

#[test]
fn round_trip() {
    for name in ["gpt-2", "llama-bpe", "falcon", "qwen35", "llama-spm", "phi-3"] {
        let Some(vocab) = load(name) else { return };
        let spelt = spelt_bytes(&vocab);
        for text in random_texts(10_000) {
            let fits = |c: &char| c.to_string().bytes().all(|b| spelt[usize::from(b)]);
            let text = text.chars().filter(fits).collect::<String>();
            let ids = vocab.encode(&text, Encode::default()).unwrap();
            assert_eq!(String::from_utf8(vocab.decode(&ids, true)).unwrap(), text, "{name}");
            let ids = vocab.encode(&text, Encode { add_special: true, parse_special: false }).unwrap();
            assert_eq!(vocab.decode_text(&ids, false), text, "{name}");
        }
    }
}

/// Seconds that a text of one unit takes.
fn encode_cost(vocab: &Vocab, unit: &str, bytes: usize) -> f64 {
    let text = unit.repeat(bytes / unit.len());
    let started = Instant::now();
    let ids = vocab.encode(&text, Encode { add_special: true, parse_special: true }).unwrap();
    assert!(!ids.is_empty());
    started.elapsed().as_secs_f64()
}

/// A text sixteen times as long takes about sixteen times as long: what grows with the square takes 256 times. Of the
/// times of one run only the ratio counts, so that it does not matter how fast a machine is.
#[test]
fn hostile_texts_take_time_that_grows_with_their_length() {
    let megabyte = 1 << 20;
    let units = [" ", "a", "1", "\n", "\u{301}", "'", "A", "ab", " \n", "\t", "é", "漢", "<|", "\r\n\r", "À"];
    for name in ["gpt-2", "llama-bpe", "falcon", "qwen35", "llama-spm", "phi-3", "bert-bge"] {
        let Some(vocab) = load(name) else { return };
        for unit in units {
            // The best of a few: others run beside this test.
            let ratio = |_| encode_cost(&vocab, unit, megabyte) / encode_cost(&vocab, unit, megabyte / 16);
            let found = (0..4).map(ratio).find(|r| *r < 80.0);
            assert!(found.is_some(), "{name} {unit:?} grows faster than its length");
        }
    }
}

/// A small vocabulary of a kind for which there is no file; where tokens are taken longest first, with one that hostile texts
/// nearly are. The other two weigh all tokens at a place, so that such a token costs its length there.
fn made(model: &str) -> Vocab {
    let mut m = Metadata::new();
    let mut tokens: Vec<String> = ["<pad>", "</s>", "<unk>", "<s>"].map(String::from).into();
    tokens.extend((0..=255).map(|byte| match model {
        "rwkv" => format!("\\x{byte:02x}"),
        _ => format!("<0x{byte:02X}>"),
    }));
    let words = ["a", "aa", "1", "11", "ab", "\u{2581}", "\u{2581}a", "A", "Aa", "é", "漢字"];
    tokens.extend(words.map(String::from));
    if matches!(model, "rwkv" | "bert") {
        tokens.push(format!("{}b", "a".repeat(1 << 16)));
        tokens.push(format!("\u{2581}{}b", "a".repeat(1 << 16)));
    }
    let types = tokens.iter().map(|t| if t.starts_with("<0x") { 6 } else { 1 }).collect();
    let scores = (0..tokens.len()).map(|i| -(i as f32)).collect();
    m.insert("tokenizer.ggml.model", Value::Str(model.into()));
    m.insert("tokenizer.ggml.token_type", Value::Array(Array::I32(types)));
    m.insert("tokenizer.ggml.scores", Value::Array(Array::F32(scores)));
    let mut list = Strings::new();
    tokens.iter().for_each(|t| list.push(t));
    m.insert("tokenizer.ggml.tokens", Value::Array(Array::Str(list)));
    m.insert("tokenizer.ggml.bos_token_id", Value::U32(3));
    m.insert("tokenizer.ggml.seperator_token_id", Value::U32(1));
    Vocab::from_metadata(&m).unwrap()
}

#[test]
fn kinds_without_a_file_take_time_that_grows_with_the_length() {
    let units = [" ", "a", "1", "\n", "\u{301}", "A", "ab", "é", "漢", "\u{2581}"];
    for model in ["t5", "rwkv", "plamo2", "bert"] {
        let vocab = made(model);
        for unit in units {
            // The least of several: on a busy machine a run of microseconds may wait for milliseconds.
            let least =
                |bytes| (0..5).map(|_| encode_cost(&vocab, unit, bytes)).fold(f64::INFINITY, f64::min);
            let found = (0..4).map(|_| least(1 << 16) / least(1 << 12)).find(|r| *r < 80.0);
            assert!(found.is_some(), "{model} {unit:?} grows faster than its length");
        }
    }
}

#[test]
fn special_tokens_are_read_on_request() {
    let Some(vocab) = load("llama-bpe") else { return };
    let text = "<|eot_id|>a";
    let encode =
        |add_special, parse_special| vocab.encode(text, Encode { add_special, parse_special }).unwrap();
    assert_eq!(encode(false, true)[0], vocab.eot().unwrap());
    assert_eq!(encode(false, true).len(), 2);
    assert!(encode(false, false).len() > 4);
    assert_eq!(encode(true, true)[0], vocab.bos().unwrap());
    assert!(vocab.is_end(vocab.eot().unwrap()) && vocab.is_end(vocab.eos().unwrap()));
    assert_eq!(vocab.piece(vocab.eot().unwrap(), false), b"");
    assert_eq!(vocab.piece(vocab.eot().unwrap(), true), b"<|eot_id|>");
    assert_eq!(vocab.piece(u32::MAX, true), b"");
}

#[test]
fn space_prefix_returns_after_a_special_token() {
    let Some(vocab) = load("llama-spm") else { return };
    let opts = Encode { add_special: true, parse_special: true };
    let ids = vocab.encode("a</s>a", opts).unwrap();
    assert_eq!(ids, [1, ids[1], 2, ids[1]]);
    assert_eq!(vocab.token_text(ids[1]), "▁a".as_bytes());
    assert_eq!(vocab.encode("", opts).unwrap(), [1]);
}
