//! Bodies of requests, checked before anything is done with them.

use axum::body::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::ApiError;

/// Bytes of a body at most.
pub const MAX_BODY: usize = 32 << 20;

/// Reads a JSON object.
///
/// # Errors
/// 400 with the path of the field at fault: no JSON, no UTF-8, nested too deep, a wrong type.
pub fn read<T: DeserializeOwned>(body: &Bytes) -> Result<T, ApiError> {
    let text = std::str::from_utf8(body)
        .map_err(|e| ApiError::invalid(format!("the body is not UTF-8 at byte {}", e.valid_up_to())))?;
    // A list would be taken for a struct's fields in their order.
    if !text.trim_start().starts_with('{') {
        return Err(ApiError::invalid("the body cannot be read: expected a JSON object"));
    }
    let mut json = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|e| {
        let path = e.path().to_string();
        let message = format!("the body cannot be read: {}", e.inner());
        match path.as_str() {
            "." | "?" => ApiError::invalid(message),
            _ => ApiError::field(path.clone(), format!("{path}: {}", e.inner())),
        }
    })?;
    json.end().map_err(|e| ApiError::invalid(format!("the body goes on behind its JSON: {e}")))?;
    Ok(value)
}

/// One or several.
#[derive(Clone, Debug, Deserialize, Serialize, utoipa::ToSchema)]
#[serde(untagged)]
pub enum OneOrMany {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

impl OneOrMany {
    /// As a list.
    pub fn list(self) -> Vec<String> {
        match self {
            OneOrMany::One(s) => vec![s],
            OneOrMany::Many(s) => s,
        }
    }
}

/// Prompts of one request at most.
const MAX_PROMPTS: usize = 256;

/// A prompt in any of its forms: text, ids, a mixture of both, or several of those.
///
/// # Errors
/// 400 for any other form, or too many.
pub fn prompts(prompt: &Value) -> Result<Vec<Vec<Part>>, ApiError> {
    let wrong = || {
        let expected = "expected text, token ids, a mixture of both, or a list of such";
        ApiError::field("prompt", format!("prompt: {expected}"))
    };
    match prompt {
        Value::Array(items) if items.is_empty() => Err(wrong()),
        // A list of texts only, or with lists and objects in it, is several prompts.
        Value::Array(items)
            if items.iter().any(|i| i.is_array() || i.is_object()) || items.iter().all(Value::is_string) =>
        {
            if items.len() > MAX_PROMPTS {
                let message = format!("{} prompts, expected at most {MAX_PROMPTS}", items.len());
                return Err(ApiError::field("prompt", message));
            }
            items.iter().map(|i| parts(i).ok_or_else(wrong)).collect()
        }
        one => Ok(vec![parts(one).ok_or_else(wrong)?]),
    }
}

/// A part of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Text, still to be encoded.
    Text(String),
    /// A token.
    Id(u32),
}

/// The parts of one prompt: text, `[id or text, …]`, or `{"prompt_string": text}`.
pub fn parts(prompt: &Value) -> Option<Vec<Part>> {
    let part = |v: &Value| match v {
        Value::String(s) => Some(Part::Text(s.clone())),
        Value::Number(n) => n.as_u64().and_then(|n| u32::try_from(n).ok()).map(Part::Id),
        _ => None,
    };
    match prompt {
        Value::Array(items) => items.iter().map(part).collect(),
        Value::Object(o)
            if o.get("multimodal_data").is_none_or(|d| d.as_array().is_some_and(Vec::is_empty)) =>
        {
            o.get("prompt_string").and_then(part).map(|p| vec![p])
        }
        one => Some(vec![part(one)?]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn forms_of_prompts() {
        let text = |s: &str| Part::Text(s.into());
        for (prompt, expected) in [
            (json!("a"), Some(vec![vec![text("a")]])),
            (json!([1, 2]), Some(vec![vec![Part::Id(1), Part::Id(2)]])),
            (json!([1, "a"]), Some(vec![vec![Part::Id(1), text("a")]])),
            (json!(["a", "b"]), Some(vec![vec![text("a")], vec![text("b")]])),
            (json!([[1], "b"]), Some(vec![vec![Part::Id(1)], vec![text("b")]])),
            (json!({"prompt_string": "x"}), Some(vec![vec![text("x")]])),
            (json!([]), None),
            (json!([1.5]), None),
            (json!([-1]), None),
            (json!(null), None),
            (json!([[[1]]]), None),
        ] {
            assert_eq!(prompts(&prompt).ok(), expected, "{prompt}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        #[derive(Deserialize, Debug)]
        struct T {
            #[allow(dead_code)]
            a: Option<Vec<bool>>,
        }
        let check = |body: &[u8], param: Option<&str>| {
            let e = read::<T>(&Bytes::copy_from_slice(body)).expect_err("it is wrong");
            assert_eq!((e.status.as_u16(), e.param.as_deref()), (400, param), "{}", e.message);
        };
        assert!(read::<T>(&Bytes::from_static(b"{\"a\":null,\"b\":1}")).is_ok());
        check(b"{\"a\":[true,1]}", Some("a[1]"));
        check(b"{\"a\":[true],", None);
        check(b"{} x", None);
        check(b"\xff", None);
        check(b"[[true]]", None);
        check(b"", None);
        check("[".repeat(50_000).as_bytes(), None);
        // A field that nobody reads is passed over without recursion; one that is read is not that deep.
        let deep = |name: &str| format!("{{\"{name}\":{}{}}}", "[".repeat(10_000), "]".repeat(10_000));
        assert!(read::<T>(&Bytes::from(deep("b"))).is_ok());
        check(deep("a").as_bytes(), Some("a[0]"));
    }
}
