//! Checkpoints of Hugging Face's transformers as GGUF models: a folder of `config.json`, safetensors and tokeniser files
//! becomes the keys and tensors that a GGUF file of the same model has.
//!
//! Nothing is copied that need not be: tensors that GGUF has in the same form stay mapped from the checkpoint's files,
//! and what changes (rows that rope turns, norms that are added to 1, experts that are stacked) is made when first
//! asked for.
//!
//! Source: transformers' modelling code for what a checkpoint means; the specification of GGUF and the keys that
//! llama.cpp reads for what a file says.
#![forbid(unsafe_code)]

mod change;
mod checkpoint;
mod error;
mod family;
mod json;
mod keys;
mod rope;
mod sampling;
mod tensors;
mod vocab;

use std::path::Path;

use firth_gguf::{Assembled, Gguf, TensorData, Value};
use firth_quant::Dtype;

use checkpoint::Checkpoint;
pub use error::ConvertError;
use family::{FAMILIES, Family};
use json::{Fields, JsonFile};

/// Opens a checkpoint as the GGUF model that it is. A folder without `tokenizer.json` gives a model without a
/// vocabulary.
///
/// # Errors
/// A file that is missing or breaks its format, a family that is not known, a field or a tensor that does not fit;
/// all say which file and field, what was found and what was expected.
pub fn open(folder: &Path) -> Result<Gguf, ConvertError> {
    let mut config = JsonFile::require(folder, "config.json")?;
    let family = family(&config)?;
    settle(&mut config, family);
    let fields = text_config(&config)?;
    let mut keys = (family.keys)(family.arch, fields)?;
    let tied = fields.bool("tie_word_embeddings")?.unwrap_or(false);
    let checkpoint = Checkpoint::open(folder)?;
    let mut tensors = tensors::assemble(&checkpoint, family, &keys, tied)?;
    tensors.extend(keys.rope_tables.drain(..).map(|(name, table)| rope_table(name, table)));
    let mut metadata = keys.metadata;
    metadata.insert("general.name", Value::Str(name(folder)));
    vocab::read(folder, fields, n_rows(&tensors), family.arch, &mut metadata)?;
    sampling::read(folder, &mut metadata)?;
    Ok(Gguf::assemble(metadata, checkpoint.files, tensors)?)
}

/// The family of the first class that the configuration names.
fn family(config: &JsonFile) -> Result<&'static Family, ConvertError> {
    let fields = config.fields();
    let classes = fields.strs("architectures")?.unwrap_or_default();
    let Some(class) = classes.first() else {
        return Err(fields.wrong("architectures", "a list that names a class"));
    };
    FAMILIES.iter().find(|f| f.classes.contains(class)).copied().ok_or_else(|| {
        let known: Vec<&str> = FAMILIES.iter().flat_map(|f| f.classes).copied().collect();
        let (path, found) = (config.path.clone(), (*class).to_owned());
        ConvertError::Architecture { path, found, known: known.join(", ") }
    })
}

/// Fills in what the class has where the configuration is silent.
fn settle(config: &mut JsonFile, family: &Family) {
    let defaults: serde_json::Value = serde_json::from_str(family.defaults).expect("a constant of ours");
    let whole = &mut config.value;
    let own = if whole.get("text_config").is_some() { &mut whole["text_config"] } else { whole };
    if let (Some(own), Some(defaults)) = (own.as_object_mut(), defaults.as_object()) {
        for (name, value) in defaults {
            own.entry(name.clone()).or_insert_with(|| value.clone());
        }
    }
}

/// The part of the configuration that is about text.
fn text_config(config: &JsonFile) -> Result<Fields<'_>, ConvertError> {
    let fields = config.fields();
    Ok(fields.object("text_config")?.unwrap_or(fields))
}

/// What a model is called: its folder.
fn name(folder: &Path) -> String {
    let absolute = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    absolute.file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// The rows of the embedding: as many tokens as there must be.
fn n_rows(tensors: &[Assembled]) -> Option<u64> {
    tensors.iter().find(|t| t.name == "token_embd.weight").and_then(|t| t.shape.get(1)).copied()
}

fn rope_table(name: &str, table: Vec<f32>) -> Assembled {
    let shape = vec![table.len() as u64];
    let bytes = move || table.iter().flat_map(|v| v.to_le_bytes()).collect();
    Assembled {
        name: format!("{name}.weight"),
        shape,
        dtype: Dtype::F32,
        data: TensorData::Made(Box::new(bytes)),
    }
}
