//! What goes wrong for a client, in each dialect's shape.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header::RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use firth::{EngineError, NotTaken};
use serde_json::{Map, Value, json};

/// A failure with its status.
#[derive(Clone, Debug)]
pub struct ApiError {
    /// The HTTP status.
    pub status: StatusCode,
    /// OpenAI's and llama-server's word for its kind.
    pub kind: &'static str,
    /// A sentence for people.
    pub message: String,
    /// The field at fault, such as `messages[0].role`.
    pub param: Option<String>,
    /// Seconds until it may be tried again.
    pub retry_after: Option<u64>,
    /// Further members.
    pub extra: Map<String, Value>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> ApiError {
        let (message, extra) = (message.into(), Map::new());
        ApiError { status, kind, message, param: None, retry_after: None, extra }
    }

    /// The client's fault, in no field that can be named.
    pub fn invalid(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// The client's fault, in a field.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError { param: Some(param.into()), ..ApiError::invalid(message) }
    }

    /// A prompt that does not fit.
    pub fn context(n_prompt: usize, n_ctx: usize) -> ApiError {
        let message = format!(
            "request ({n_prompt} tokens) exceeds the available context size ({n_ctx} tokens), try increasing it"
        );
        let mut e = ApiError::new(StatusCode::BAD_REQUEST, "exceed_context_size_error", message);
        e.extra.insert("n_prompt_tokens".into(), n_prompt.into());
        e.extra.insert("n_ctx".into(), n_ctx.into());
        e
    }

    /// A body that is too large.
    pub fn too_large(limit: usize) -> ApiError {
        let message = format!("the body is larger than {limit} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }

    /// No key, or a wrong one.
    pub fn key() -> ApiError {
        ApiError::new(StatusCode::UNAUTHORIZED, "authentication_error", "Invalid API Key")
    }

    /// Something that is not there.
    pub fn not_found(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, "not_found_error", message)
    }

    /// A path that has no such method.
    pub fn method() -> ApiError {
        let message = "this path has other methods than that";
        ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
    }

    /// What this model or this server cannot do, and why.
    pub fn unsupported(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_supported_error", message)
    }

    /// A field that asks for what firth cannot do.
    pub fn unsupported_field(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError { param: Some(param.into()), ..ApiError::unsupported(message) }
    }

    /// The engine does not answer.
    pub fn unavailable(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", message)
    }

    /// firth's own fault.
    pub fn server(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// `{"error": {...}}` of OpenAI and llama-server.
    pub fn openai(&self) -> Value {
        let mut error = json!({
            "code": self.status.as_u16(),
            "message": self.message,
            "type": self.kind,
            "param": self.param,
        });
        if let Value::Object(members) = &mut error {
            members.extend(self.extra.clone());
        }
        json!({ "error": error })
    }

    /// `{"type": "error", ...}` of Anthropic.
    pub fn anthropic(&self) -> Value {
        let kind = match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 | 529 => "overloaded_error",
            400..=499 | 501 => "invalid_request_error",
            _ => "api_error",
        };
        json!({ "type": "error", "error": { "type": kind, "message": self.message } })
    }

    /// `{"error": "text"}` of Ollama.
    pub fn ollama(&self) -> Value {
        json!({ "error": self.message })
    }
}

/// An error beside the response that shows it, for the dialects that show it otherwise.
#[derive(Clone)]
pub struct Shown(pub ApiError);

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = self.openai();
        respond(self, body)
    }
}

/// The response of an error with the body of a dialect.
pub fn respond(e: ApiError, body: Value) -> Response {
    let mut response = (e.status, Json(body)).into_response();
    if let Some(seconds) = e.retry_after {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response.extensions_mut().insert(Shown(e));
    response
}

impl From<NotTaken> for ApiError {
    fn from(e: NotTaken) -> ApiError {
        match e {
            NotTaken::Busy { retry_seconds, .. } => ApiError {
                retry_after: Some(retry_seconds),
                ..ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", e.to_string())
            },
            NotTaken::Stopped(_) => ApiError::unavailable(e.to_string()),
        }
    }
}

impl From<EngineError> for ApiError {
    fn from(e: EngineError) -> ApiError {
        match e {
            EngineError::Context { found, context } => ApiError::context(found.saturating_sub(1), context),
            EngineError::EmptyPrompt => ApiError::field("prompt", "the prompt has no tokens"),
            EngineError::Id { .. }
            | EngineError::Params(_)
            | EngineError::Room { .. }
            | EngineError::NothingAllowed
            | EngineError::Constraint(_) => ApiError::invalid(e.to_string()),
            EngineError::Whole { .. } => ApiError::invalid(e.to_string()),
            EngineError::NoText { .. } | EngineError::NoLogits { .. } | EngineError::NoEmbeddings => {
                ApiError::unsupported(e.to_string())
            }
            EngineError::Full { .. } | EngineError::Lost(_) => ApiError::unavailable(e.to_string()),
            e => ApiError::server(e.to_string()),
        }
    }
}

impl From<firth::Error> for ApiError {
    fn from(e: firth::Error) -> ApiError {
        match e {
            firth::Error::Engine(e) => e.into(),
            firth::Error::Template(e) => ApiError::field("messages", e.to_string()),
            firth::Error::NoTemplate => ApiError::unsupported(
                "this model has no chat template; start the server with --chat-template FILE, or use /v1/completions",
            ),
            firth::Error::Encode(_) => ApiError::unsupported(e.to_string()),
            e => ApiError::server(e.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a model cannot do is said to be so, not taken for a fault of firth.
    #[test]
    fn a_model_without_text_is_not_supported() {
        let e = ApiError::from(EngineError::NoText { arch: "bert".into() });
        assert_eq!((e.status.as_u16(), e.kind), (501, "not_supported_error"));
    }
}
