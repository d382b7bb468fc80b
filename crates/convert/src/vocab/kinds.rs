//! The kinds of vocabularies: byte pairs in a byte alphabet, byte pairs with bytes to fall back on, unigrams.

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use firth_gguf::{Array, Metadata, Strings, Value};
use serde_json::Value as Json;

use super::{Tokens, Type, kind_of, pre, steps};
use crate::error::ConvertError;
use crate::json::{Fields, shown};

const BLOCK: &str = "\u{2581}";

/// Sets the keys of the kind that `tokenizer.json` describes.
pub(super) fn read(
    whole: Fields,
    model: Fields,
    arch: &str,
    tokens: &mut Tokens,
    metadata: &mut Metadata,
) -> Result<(), ConvertError> {
    // Old files do not say; a list of pairs is a unigram's.
    let unnamed = if model.get("merges").is_some() { "BPE" } else { "Unigram" };
    let kind = match model.str("type")?.unwrap_or(unnamed) {
        "BPE" if has_step(whole, "ByteLevel") => byte_level(whole, model, metadata)?,
        "BPE" if arch == "gemma4" => {
            metadata.insert("tokenizer.ggml.merges", merges_list(&merges(model)?));
            bytes(tokens);
            "gemma4"
        }
        "BPE" => sentence_pieces(whole, model, tokens, metadata)?,
        "Unigram" => unigram(whole, model, tokens, metadata)?,
        _ => return Err(model.wrong("type", "BPE or Unigram")),
    };
    metadata.insert("tokenizer.ggml.model", Value::Str(kind.into()));
    Ok(())
}

fn has_step(whole: Fields, kind: &str) -> bool {
    ["pre_tokenizer", "decoder"].iter().any(|name| steps(whole, name).iter().any(|s| kind_of(s) == kind))
}

/// Byte pairs over the byte alphabet. A pre-tokeniser without a name leaves its key out, and loading warns of it.
fn byte_level(whole: Fields, model: Fields, metadata: &mut Metadata) -> Result<&'static str, ConvertError> {
    if let Some(name) = pre::name(whole, model) {
        metadata.insert("tokenizer.ggml.pre", Value::Str(name.into()));
    }
    metadata.insert("tokenizer.ggml.merges", merges_list(&merges(model)?));
    Ok("gpt2")
}

type Merge<'a> = (&'a str, &'a str);

/// The merges, as texts with a space or as pairs.
fn merges<'a>(model: Fields<'a>) -> Result<Vec<Merge<'a>>, ConvertError> {
    let list = model.list("merges")?.ok_or_else(|| model.wrong("merges", "a list"))?;
    let read = |(i, merge): (usize, &'a Json)| {
        let pair = match merge {
            Json::String(text) => text
                .char_indices()
                .skip(1)
                .find(|(_, c)| *c == ' ')
                .map(|(at, _)| (&text[..at], &text[at + 1..])),
            Json::Array(pair) if pair.len() == 2 => pair[0].as_str().zip(pair[1].as_str()),
            _ => None,
        };
        pair.ok_or_else(|| {
            let expected = "two texts, as a list or with a space between";
            ConvertError::field(model.path(), format!("model.merges[{i}]"), shown(merge), expected)
        })
    };
    list.iter().enumerate().map(read).collect()
}

/// Merges as GGUF has them. A space within a half is spelt as the byte alphabet does.
fn merges_list(merges: &[Merge]) -> Value {
    let mut out = Strings::with_capacity(merges.len(), merges.len() * 8);
    for (left, right) in merges {
        out.push(format!("{} {}", left.replace(' ', "Ġ"), right.replace(' ', "Ġ")));
    }
    Value::Array(Array::Str(out))
}

/// Marks the tokens that stand for single bytes.
fn bytes(tokens: &mut Tokens) {
    for byte in 0..=255 {
        if let Some(id) = tokens.id(&format!("<0x{byte:02X}>")) {
            tokens.set_type(id, Type::Byte);
        }
    }
}

/// What SentencePiece makes: the best-scored pair is merged first, and merges are listed in the order of scores.
fn sentence_pieces(
    whole: Fields,
    model: Fields,
    tokens: &mut Tokens,
    metadata: &mut Metadata,
) -> Result<&'static str, ConvertError> {
    let merges = merges(model)?;
    let mut joined = String::new();
    let mut first: HashMap<u32, usize> = HashMap::new();
    for (rank, (left, right)) in merges.iter().enumerate() {
        joined.clear();
        joined.extend([*left, *right]);
        if let Some(id) = tokens.id(&joined) {
            first.entry(id).or_insert(rank);
        }
    }
    let last = merges.len() as f32;
    for id in 0..tokens.texts.len() {
        // What no merge makes is joined last, as other readers would join it at all.
        let rank = first.get(&(id as u32)).map_or(last, |rank| *rank as f32);
        tokens.scores[id] = if tokens.types[id] == Type::Normal { -rank } else { 0.0 };
    }
    bytes(tokens);
    unknown(model.str("unk_token")?.and_then(|text| tokens.id(text)), tokens, metadata);
    put_scores(tokens, metadata);
    metadata.insert("tokenizer.ggml.add_space_prefix", Value::Bool(space_prefix(whole)));
    Ok("llama")
}

fn unigram(
    whole: Fields,
    model: Fields,
    tokens: &mut Tokens,
    metadata: &mut Metadata,
) -> Result<&'static str, ConvertError> {
    bytes(tokens);
    unknown(model.u32("unk_id")?.filter(|id| (*id as usize) < tokens.texts.len()), tokens, metadata);
    put_scores(tokens, metadata);
    metadata.insert("tokenizer.ggml.add_space_prefix", Value::Bool(space_prefix(whole)));
    let mut squeezes = false;
    for step in steps(whole, "normalizer") {
        if let Some(map) = step.str("precompiled_charsmap")? {
            let map = STANDARD.decode(map).map_err(|_| step.wrong("precompiled_charsmap", "base64"))?;
            metadata.insert("tokenizer.ggml.precompiled_charsmap", Value::Array(Array::U8(map)));
            squeezes = true;
        }
        squeezes |= kind_of(&step) == "Replace" && pattern(&step) == Some(" {2,}");
    }
    metadata.insert("tokenizer.ggml.remove_extra_whitespaces", Value::Bool(squeezes));
    Ok("t5")
}

fn put_scores(tokens: &Tokens, metadata: &mut Metadata) {
    metadata.insert("tokenizer.ggml.scores", Value::Array(Array::F32(tokens.scores.clone())));
}

fn unknown(id: Option<u32>, tokens: &mut Tokens, metadata: &mut Metadata) {
    let Some(id) = id else { return };
    tokens.types[id as usize] = Type::Unknown;
    metadata.insert("tokenizer.ggml.unknown_token_id", Value::U32(id));
}

/// Whether a text gets a space in front: a normaliser or a pre-tokeniser says so.
fn space_prefix(whole: Fields) -> bool {
    let prepends =
        |s: &Fields| kind_of(s) == "Prepend" && s.get("prepend").and_then(Json::as_str) == Some(BLOCK);
    let metaspace = |s: &Fields| {
        let scheme = s.get("prepend_scheme").and_then(Json::as_str);
        let old = s.get("add_prefix_space").and_then(Json::as_bool).unwrap_or(true);
        kind_of(s) == "Metaspace" && scheme.map_or(old, |scheme| scheme != "never")
    };
    steps(whole, "normalizer").iter().any(prepends) || steps(whole, "pre_tokenizer").iter().any(metaspace)
}

/// What a step looks for, as text or as a regular expression.
pub(super) fn pattern<'a>(step: &Fields<'a>) -> Option<&'a str> {
    let pattern = step.get("pattern")?;
    pattern.as_str().or_else(|| pattern["Regex"].as_str()).or_else(|| pattern["String"].as_str())
}
