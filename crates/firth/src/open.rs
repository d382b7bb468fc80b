//! A model by path, and the one that comes with the library.

use std::path::Path;
use std::sync::Arc;

use firth_gguf::{Gguf, Value};

use crate::error::Error;

/// The small bundled model.
static BUNDLED: &[u8] = include_bytes!("../assets/qwen35-tiny-mtp-Q4_K_M.gguf");

/// The bundled model: small, English of a sort, for a first try without a download.
pub fn bundled() -> Result<Arc<Gguf>, Error> {
    Ok(Arc::new(Gguf::from_bytes(BUNDLED.to_vec(), "bundled qwen35-tiny-mtp")?))
}

/// Opens a model file and applies overrides `KEY=TYPE:VALUE`.
pub fn open(path: &Path, overrides: &[String]) -> Result<Arc<Gguf>, Error> {
    if !path.exists() {
        let name = path.display().to_string();
        return Err(Error::NotFound { name, reason: "no such file".into() });
    }
    let mut file = Gguf::open(path)?;
    for o in overrides {
        override_kv(&mut file, o)?;
    }
    Ok(Arc::new(file))
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
