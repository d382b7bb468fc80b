//! Text to tokens and back, and messages to a prompt.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use firth::text::{Encode, Vocab};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::App;
use crate::body::{Part, parts, read};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::openai_chat::ChatRequest;

/// `POST /tokenize`.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
pub struct TokenizeRequest {
    /// Text, or a mixture of texts and ids.
    #[schema(value_type = Option<Object>)]
    pub content: Option<Value>,
    /// Text, as vLLM names it; the answer is then in vLLM's form.
    pub prompt: Option<String>,
    /// Adds the model's own start and end.
    pub add_special: Option<bool>,
    /// The same, as vLLM names it.
    pub add_special_tokens: Option<bool>,
    /// Reads control tokens in the text; true by default.
    pub parse_special: Option<bool>,
    /// Tells each token's text, too.
    pub with_pieces: Option<bool>,
}

/// Encodes the parts of a prompt. The model's own start comes before text that is first.
///
/// # Errors
/// The vocabulary cannot encode it, or an id is outside of it.
pub fn encode(
    vocab: &Vocab,
    parts: &[Part],
    add_special: bool,
    parse_special: bool,
) -> Result<Vec<u32>, ApiError> {
    let mut ids = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        match part {
            Part::Id(id) if (*id as usize) < vocab.len() => ids.push(*id),
            Part::Id(id) => {
                let message = format!("token id {id} is outside the vocabulary of {}", vocab.len());
                return Err(ApiError::field("prompt", message));
            }
            Part::Text(text) => {
                let how = Encode { add_special: add_special && i == 0, parse_special };
                let new = vocab.encode(text, how).map_err(|e| ApiError::unsupported(e.to_string()))?;
                ids.extend(new);
            }
        }
    }
    Ok(ids)
}

/// # Errors
/// 400 for content of another form.
pub async fn tokenize(State(app): State<Arc<App>>, body: Bytes) -> Result<Json<Value>, ApiError> {
    let r: TokenizeRequest = read(&body)?;
    let vocab = app.service.text().vocab();
    let special = r.parse_special.unwrap_or(true);
    if let Some(text) = r.prompt.filter(|_| r.content.is_none()) {
        let add = r.add_special_tokens.unwrap_or(true);
        let ids = encode(vocab, &[Part::Text(text)], add, special)?;
        return Ok(Json(json!({ "count": ids.len(), "max_model_len": app.service.ctx(), "tokens": ids })));
    }
    let Some(content) = r.content.filter(|c| !c.is_null()) else { return Ok(Json(json!({ "tokens": [] }))) };
    let parts = parts(&content)
        .ok_or_else(|| ApiError::field("content", "content: expected text, or a list of texts and ids"))?;
    let ids = encode(vocab, &parts, r.add_special.unwrap_or(false), special)?;
    if !r.with_pieces.unwrap_or(false) {
        return Ok(Json(json!({ "tokens": ids })));
    }
    let piece = |id: &u32| {
        let bytes = vocab.piece(*id, true);
        let piece = std::str::from_utf8(bytes).map_or_else(|_| json!(bytes), |text| json!(text));
        json!({ "id": id, "piece": piece })
    };
    Ok(Json(json!({ "tokens": ids.iter().map(piece).collect::<Vec<_>>() })))
}

/// `POST /detokenize`.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
pub struct DetokenizeRequest {
    /// Token ids.
    pub tokens: Option<Vec<u32>>,
}

/// # Errors
/// 400 for a body of another form.
pub async fn detokenize(State(app): State<Arc<App>>, body: Bytes) -> Result<Json<Value>, ApiError> {
    let r: DetokenizeRequest = read(&body)?;
    let text = app.service.text().vocab().decode_text(&r.tokens.unwrap_or_default(), true);
    Ok(Json(json!({ "content": text, "prompt": text })))
}

/// # Errors
/// As for a chat completion.
pub async fn apply_template(State(app): State<Arc<App>>, body: Bytes) -> Result<Json<Value>, ApiError> {
    let (request, mut fields) = (read::<ChatRequest>(&body)?, read::<Fields>(&body)?);
    let rendered = app.render(&request.conversation(&mut fields)?)?;
    Ok(Json(json!({ "prompt": rendered.text })))
}
