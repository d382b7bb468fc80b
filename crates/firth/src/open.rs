//! A model by path, and the one that comes with the library.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use firth_gguf::{Gguf, Value};

use crate::error::Error;
use crate::store::Stores;

/// The small bundled model.
static BUNDLED: &[u8] = include_bytes!("../assets/qwen35-tiny-mtp-Q4_K_M.gguf");

/// The bundled model: small, English of a sort, for a first try without a download.
pub fn bundled() -> Result<Arc<Gguf>, Error> {
    Ok(Arc::new(Gguf::from_bytes(BUNDLED.to_vec(), "bundled qwen35-tiny-mtp")?))
}

/// Opens a model, by path or by a name that [`Stores::list`] shows, and applies overrides `KEY=TYPE:VALUE`. The path may
/// be that of a folder with a checkpoint in safetensors.
///
/// # Errors
/// There is no such model, its file is damaged, its checkpoint is of no known family, or an override has no meaning.
pub fn open(model: &Path, overrides: &[String]) -> Result<Arc<Gguf>, Error> {
    let path = locate(model)?;
    let mut file = if path.is_dir() { firth_convert::open(&path)? } else { Gguf::open(&path)? };
    for o in overrides {
        override_kv(&mut file, o)?;
    }
    Ok(Arc::new(file))
}

/// The file of a model: the path itself where it exists, else what a store of this machine has of that name.
fn locate(model: &Path) -> Result<PathBuf, Error> {
    if model.exists() {
        return Ok(model.to_owned());
    }
    let name = model.display().to_string();
    let is_path = model.is_absolute() || name.starts_with('.') || name.to_lowercase().ends_with(".gguf");
    match is_path {
        true => Err(Error::NotFound { name, reason: "no such file".into() }),
        false => Stores::of_this_machine().find(&name),
    }
}

/// Sets one metadata key from `KEY=TYPE:VALUE`; types are int, float, bool and str.
pub fn override_kv(file: &mut Gguf, text: &str) -> Result<(), Error> {
    let wrong = || {
        let expected = "KEY=TYPE:VALUE with TYPE int, float, bool or str";
        Error::Argument(format!("override `{text}` has no meaning, expected {expected}"))
    };
    let (key, rest) = text.split_once('=').ok_or_else(wrong)?;
    let (kind, value) = rest.split_once(':').ok_or_else(wrong)?;
    let value = match kind {
        "int" => match value.parse::<u32>() {
            Ok(v) => Value::U32(v),
            Err(_) => Value::I32(value.parse().map_err(|_| wrong())?),
        },
        "float" => Value::F32(value.parse().map_err(|_| wrong())?),
        "bool" => Value::Bool(value.parse().map_err(|_| wrong())?),
        "str" => Value::Str(value.into()),
        _ => return Err(wrong()),
    };
    file.metadata_mut().insert(key, value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_are_parsed_or_refused() {
        let mut file = Gguf::from_bytes(BUNDLED.to_vec(), "bundled").unwrap();
        override_kv(&mut file, "a.b=int:7").unwrap();
        override_kv(&mut file, "tokenizer.ggml.pre=str:x:y").unwrap();
        assert_eq!(file.metadata().u32("a.b").unwrap(), Some(7));
        assert_eq!(file.metadata().str("tokenizer.ggml.pre").unwrap(), Some("x:y"));
        for bad in ["a", "a=int", "a=int:x", "a=thing:1"] {
            assert!(override_kv(&mut file, bad).is_err(), "{bad}");
        }
    }
}
