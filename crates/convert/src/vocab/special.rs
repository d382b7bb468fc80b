//! Ids with a purpose: start, end, padding, and whether they are added.

use firth_gguf::{Metadata, Value};
use serde_json::Value as Json;

use super::{Tokens, kind_of, steps};
use crate::error::ConvertError;
use crate::json::{Fields, JsonFile};

/// Further ends have these keys, in order.
const FURTHER_ENDS: [&str; 2] = ["eot", "eom"];

/// Sets ids by the texts that `tokenizer_config.json` names, else by the numbers of `generation_config.json` and
/// `config.json`.
pub(super) fn read(
    whole: Fields,
    beside: Option<&JsonFile>,
    generation: Option<&JsonFile>,
    config: Fields,
    tokens: &Tokens,
    metadata: &mut Metadata,
) -> Result<(), ConvertError> {
    let named = |name: &str| {
        let value = beside?.fields().get(name)?;
        tokens.id(value.as_str().or_else(|| value["content"].as_str())?)
    };
    let numbers = |name: &str| -> Result<Vec<u32>, ConvertError> {
        for file in generation.map(JsonFile::fields).into_iter().chain([config]) {
            let ids = ids(file, name)?;
            if !ids.is_empty() {
                return Ok(ids.into_iter().filter(|id| (*id as usize) < tokens.texts.len()).collect());
            }
        }
        Ok(Vec::new())
    };
    let mut put = |key: &str, id: u32| {
        metadata.insert(format!("tokenizer.ggml.{key}_token_id"), Value::U32(id));
    };
    let bos = named("bos_token").or(numbers("bos_token_id")?.first().copied());
    bos.into_iter().for_each(|id| put("bos", id));
    if let Some(id) = named("pad_token").or(numbers("pad_token_id")?.first().copied()) {
        put("padding", id);
    }
    let ends = numbers("eos_token_id")?;
    let eos = named("eos_token").or(ends.first().copied());
    eos.into_iter().for_each(|id| put("eos", id));
    let further = ends.into_iter().filter(|id| Some(*id) != eos);
    for (key, id) in FURTHER_ENDS.into_iter().zip(further) {
        put(key, id);
    }
    let (adds_bos, adds_eos) = added(whole, beside)?;
    metadata.insert("tokenizer.ggml.add_bos_token", Value::Bool(adds_bos && bos.is_some()));
    metadata.insert("tokenizer.ggml.add_eos_token", Value::Bool(adds_eos && eos.is_some()));
    Ok(())
}

/// One id or a list of them.
fn ids(file: Fields, name: &str) -> Result<Vec<u32>, ConvertError> {
    match file.get(name) {
        Some(Json::Array(_)) => Ok(file.u32s(name)?.unwrap_or_default()),
        // Some files say -1 for none.
        Some(Json::Number(n)) if n.as_i64().is_some_and(|n| n < 0) => Ok(Vec::new()),
        _ => Ok(file.u32(name)?.into_iter().collect()),
    }
}

/// Whether a text gets a start and an end: by the template of the post-processor, else by the flags beside it.
fn added(whole: Fields, beside: Option<&JsonFile>) -> Result<(bool, bool), ConvertError> {
    let template = steps(whole, "post_processor").into_iter().find(|s| kind_of(s) == "TemplateProcessing");
    if let Some(single) = template.and_then(|s| s.get("single")).and_then(Json::as_array) {
        let special = |item: Option<&Json>| item.is_some_and(|item| item.get("SpecialToken").is_some());
        return Ok((special(single.first()), special(single.last())));
    }
    let flag = |name: &str| match beside {
        Some(file) => Ok::<_, ConvertError>(file.fields().bool(name)?.unwrap_or(false)),
        None => Ok(false),
    };
    Ok((flag("add_bos_token")?, flag("add_eos_token")?))
}
