//! The vocabulary of a checkpoint: `tokenizer.json` and the files beside it as keys of GGUF.

mod kinds;
mod pre;
mod special;
mod template;

use std::collections::HashMap;
use std::path::Path;

use firth_gguf::{Array, Metadata, Strings, Value};
use serde_json::Value as Json;

use crate::error::ConvertError;
use crate::json::{Fields, JsonFile, shown};

/// A vocabulary has no more; a file with a larger number is refused before anything is allocated for it.
const MAX_TOKENS: u32 = 1 << 24;

/// The numbers that `tokenizer.ggml.token_type` holds.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(i32)]
enum Type {
    Normal = 1,
    Unknown = 2,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
    Byte = 6,
}

/// Tokens by id, as they are collected.
struct Tokens<'a> {
    texts: Vec<Option<&'a str>>,
    types: Vec<Type>,
    scores: Vec<f32>,
    ids: HashMap<&'a str, u32>,
}

/// Sets the keys of the vocabulary, of `n_rows` ids where the embedding says so. Without `tokenizer.json` the model
/// has none.
pub(crate) fn read(
    folder: &Path,
    config: Fields,
    n_rows: Option<u64>,
    arch: &str,
    metadata: &mut Metadata,
) -> Result<(), ConvertError> {
    let Some(file) = JsonFile::open(folder, "tokenizer.json")? else {
        metadata.insert("tokenizer.ggml.model", Value::Str("no_vocab".into()));
        return Ok(());
    };
    let whole = file.fields();
    let model = whole.object("model")?.ok_or_else(|| whole.wrong("model", "an object"))?;
    let n_rows = n_rows.map_or(0, |n| n.min(MAX_TOKENS.into()) as usize);
    let mut tokens = Tokens::read(whole, model, n_rows)?;
    kinds::read(whole, model, arch, &mut tokens, metadata)?;
    tokens.put(metadata);
    let beside = JsonFile::open(folder, "tokenizer_config.json")?;
    let generation = JsonFile::open(folder, "generation_config.json")?;
    special::read(whole, beside.as_ref(), generation.as_ref(), config, &tokens, metadata)?;
    template::read(folder, beside.as_ref(), metadata)
}

impl<'a> Tokens<'a> {
    /// The tokens of the model, and those that were added to it.
    fn read(whole: Fields<'a>, model: Fields<'a>, n_rows: usize) -> Result<Tokens<'a>, ConvertError> {
        let mut tokens =
            Tokens { texts: Vec::new(), types: Vec::new(), scores: Vec::new(), ids: HashMap::new() };
        match model.get("vocab") {
            Some(Json::Object(vocab)) => {
                for (text, id) in vocab {
                    let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
                    let id = id.ok_or_else(|| wrong_id(model, text, &vocab[text]))?;
                    tokens.put_at(model, id, text, Type::Normal, 0.0)?;
                }
            }
            // A unigram's pairs of text and logarithm, in order.
            Some(Json::Array(vocab)) => {
                for (id, entry) in vocab.iter().enumerate() {
                    let (Some(text), Some(score)) = (entry[0].as_str(), entry[1].as_f64()) else {
                        let field = format!("model.vocab[{id}]");
                        return Err(ConvertError::field(
                            whole.path(),
                            field,
                            shown(entry),
                            "a text and a number",
                        ));
                    };
                    tokens.put_at(model, id as u32, text, Type::Normal, score as f32)?;
                }
            }
            _ => {
                return Err(
                    model.wrong("vocab", "an object of tokens and ids, or a list of tokens and scores")
                );
            }
        }
        for added in whole.list("added_tokens")?.unwrap_or_default() {
            let added = whole.entry("added_tokens", added);
            let id = added.require_u32("id")?;
            let special = added.bool("special")?.unwrap_or(false);
            let kind = if special { Type::Control } else { Type::UserDefined };
            tokens.put_at(added, id, added.require_str("content")?, kind, 0.0)?;
        }
        // The model has as many ids as rows of the embedding. Some text models come with the tokeniser of one with images,
        // whose further tokens mean nothing to them.
        if n_rows > 0 {
            tokens.resize(n_rows);
            tokens.ids.retain(|_, id| (*id as usize) < n_rows);
        }
        Ok(tokens)
    }

    fn put_at(
        &mut self,
        of: Fields<'a>,
        id: u32,
        text: &'a str,
        kind: Type,
        score: f32,
    ) -> Result<(), ConvertError> {
        if id >= MAX_TOKENS {
            return Err(wrong_id(of, text, &Json::from(id)));
        }
        if self.texts.len() <= id as usize {
            self.resize(id as usize + 1);
        }
        let at = id as usize;
        if let Some(first) = self.texts[at].filter(|first| *first != text) {
            let expected = format!("an id of its own: `{first}` has it");
            return Err(ConvertError::field(of.path(), format!("id of `{text}`"), id, expected));
        }
        if let Some(other) = self.ids.insert(text, id).filter(|other| *other != id) {
            let expected = format!("{other}, which the same text has above");
            return Err(ConvertError::field(of.path(), format!("id of `{text}`"), id, expected));
        }
        self.texts[at] = Some(text);
        (self.types[at], self.scores[at]) = (kind, score);
        Ok(())
    }

    fn resize(&mut self, n: usize) {
        self.texts.resize(n, None);
        self.types.resize(n, Type::Unused);
        self.scores.resize(n, 0.0);
    }

    /// The id of a text.
    fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    /// Changes the type of a token that has the plain one.
    fn set_type(&mut self, id: u32, kind: Type) {
        let found = &mut self.types[id as usize];
        if *found == Type::Normal {
            *found = kind;
        }
    }

    /// Sets the lists. Ids without a token get a text that no input has.
    fn put(&self, metadata: &mut Metadata) {
        let mut texts = Strings::with_capacity(self.texts.len(), self.texts.len() * 8);
        for (id, text) in self.texts.iter().enumerate() {
            match text {
                Some(text) => texts.push(text),
                None => {
                    let mut filler = format!("[PAD{id}]");
                    while self.ids.contains_key(filler.as_str()) {
                        filler.push('_');
                    }
                    texts.push(filler);
                }
            }
        }
        metadata.insert("tokenizer.ggml.tokens", Value::Array(Array::Str(texts)));
        let types = self.types.iter().map(|t| *t as i32).collect();
        metadata.insert("tokenizer.ggml.token_type", Value::Array(Array::I32(types)));
    }
}

fn wrong_id(of: Fields, text: &str, found: &Json) -> ConvertError {
    ConvertError::field(of.path(), format!("id of `{text}`"), shown(found), format!("below {MAX_TOKENS}"))
}

/// The steps of a field such as `normalizer`: those of a sequence, its own, or none.
fn steps<'a>(whole: Fields<'a>, name: &'a str) -> Vec<Fields<'a>> {
    fn flatten<'a>(
        whole: Fields<'a>,
        name: &'a str,
        step: &'a Json,
        depth: usize,
        out: &mut Vec<Fields<'a>>,
    ) {
        let lists = ["pretokenizers", "normalizers", "processors", "decoders"];
        let inner = lists.iter().find_map(|list| step[*list].as_array());
        match inner {
            Some(inner) if depth < 8 => {
                inner.iter().for_each(|step| flatten(whole, name, step, depth + 1, out));
            }
            _ => out.push(whole.entry(name, step)),
        }
    }
    let mut out = Vec::new();
    if let Some(step) = whole.get(name) {
        flatten(whole, name, step, 0, &mut out);
    }
    out
}

/// What a step is.
fn kind_of<'a>(step: &Fields<'a>) -> &'a str {
    step.get("type").and_then(Json::as_str).unwrap_or_default()
}
