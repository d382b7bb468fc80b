//! What the makers of a model advise for sampling.

use std::path::Path;

use firth_gguf::{Metadata, Value};

use crate::error::ConvertError;
use crate::json::JsonFile;

/// Sets `general.sampling.*` from `generation_config.json`, where it has the field.
pub(crate) fn read(folder: &Path, metadata: &mut Metadata) -> Result<(), ConvertError> {
    let Some(file) = JsonFile::open(folder, "generation_config.json")? else { return Ok(()) };
    let fields = file.fields();
    let numbers = [
        ("temperature", "temp"),
        ("top_p", "top_p"),
        ("min_p", "min_p"),
        ("repetition_penalty", "penalty_repeat"),
    ];
    for (field, name) in numbers {
        if let Some(v) = fields.f32(field)? {
            metadata.insert(format!("general.sampling.{name}"), Value::F32(v));
        }
    }
    if let Some(k) = fields.u32("top_k")? {
        metadata.insert("general.sampling.top_k", Value::I32(k.min(i32::MAX as u32) as i32));
    }
    Ok(())
}
