//! Chat templates: a file of their own, or fields of `tokenizer_config.json`.

use std::path::Path;

use firth_gguf::{Array, Metadata, Strings, Value};
use serde_json::Value as Json;

use crate::error::ConvertError;
use crate::json::{JsonFile, read_text};

const KEY: &str = "tokenizer.chat_template";

/// Sets the template, and those that have names.
pub(super) fn read(
    folder: &Path,
    beside: Option<&JsonFile>,
    metadata: &mut Metadata,
) -> Result<(), ConvertError> {
    match beside.and_then(|file| file.fields().get("chat_template")) {
        Some(Json::String(template)) => {
            metadata.insert(KEY, Value::Str(template.clone()));
        }
        Some(Json::Array(templates)) => {
            let mut names = Strings::new();
            for entry in templates {
                let (Some(name), Some(template)) = (entry["name"].as_str(), entry["template"].as_str())
                else {
                    let fields = beside.expect("it has the field").fields();
                    return Err(fields.wrong("chat_template", "a text, or a list of names and templates"));
                };
                if name == "default" {
                    metadata.insert(KEY, Value::Str(template.to_owned()));
                } else {
                    metadata.insert(format!("{KEY}.{name}"), Value::Str(template.to_owned()));
                    names.push(name);
                }
            }
            if !names.is_empty() {
                metadata.insert("tokenizer.chat_templates", Value::Array(Array::Str(names)));
            }
        }
        _ => {}
    }
    // The file is what newer checkpoints have, and wins.
    if let Some((_, template)) = read_text(folder, "chat_template.jinja")? {
        metadata.insert(KEY, Value::Str(template));
    }
    Ok(())
}
