//! `/v1/rerank`: how well documents answer a query, in the shapes of Jina and of text-embeddings-inference.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use firth::{Pooling, relevance};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::App;
use crate::body::read;
use crate::error::ApiError;

/// Documents of one request at most.
const MAX_DOCUMENTS: usize = 2048;

/// A request for `/v1/rerank`.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
pub struct RerankRequest {
    /// What is asked.
    pub query: Option<String>,
    /// Texts, or objects with `text`.
    #[schema(value_type = Option<Vec<Object>>)]
    pub documents: Option<Vec<Value>>,
    /// The same, as text-embeddings-inference names them; the answer is then in its form.
    pub texts: Option<Vec<String>>,
    /// So many of the best; all by default.
    pub top_n: Option<i64>,
    /// Tells the documents, too.
    pub return_documents: Option<bool>,
    /// The same in the other form.
    pub return_text: Option<bool>,
    /// Ignored: one model is served.
    pub model: Option<String>,
}

impl RerankRequest {
    fn documents(&self) -> Result<Vec<String>, ApiError> {
        let text = |(i, d): (usize, &Value)| {
            let text = d.as_str().or_else(|| d.get("text").and_then(Value::as_str));
            let at = format!("documents[{i}]");
            text.map(str::to_owned).ok_or_else(|| ApiError::field(at.clone(), format!("{at}: expected text")))
        };
        let all = match (&self.documents, &self.texts) {
            (Some(documents), _) => documents.iter().enumerate().map(text).collect::<Result<Vec<_>, _>>()?,
            (None, Some(texts)) => texts.clone(),
            (None, None) => return Err(ApiError::field("documents", "documents: expected a list of texts")),
        };
        match all.len() {
            0 => Err(ApiError::field("documents", "documents: expected at least one")),
            n if n > MAX_DOCUMENTS => {
                let message = format!("{n} documents, expected at most {MAX_DOCUMENTS}");
                Err(ApiError::field("documents", message))
            }
            _ => Ok(all),
        }
    }
}

/// `POST /v1/rerank`.
///
/// # Errors
/// 400 for what has no meaning, 501 for a model without a classifier.
pub async fn rerank(State(app): State<Arc<App>>, body: Bytes) -> Result<Json<Value>, ApiError> {
    let r: RerankRequest = read(&body)?;
    let kind = app.embedding_kind()?;
    if kind.pooling != Pooling::Rank {
        return Err(ApiError::unsupported(format!(
            "this model does not judge documents: its pooling is {}; a reranker's file says rank and has a classifier",
            kind.pooling.name()
        )));
    }
    let query = r.query.as_deref().ok_or_else(|| ApiError::field("query", "query: expected text"))?;
    let documents = r.documents()?;
    let top = match r.top_n {
        None => documents.len(),
        Some(n) => usize::try_from(n)
            .ok()
            .filter(|n| *n > 0)
            .ok_or_else(|| ApiError::field("top_n", format!("top_n is {n}, expected 1 or more")))?,
    };
    let text = app.service.text();
    let pairs = documents.iter().map(|d| text.pair_prompt(query, d)).collect::<Result<Vec<_>, _>>()?;
    let scores = app.embed_all(pairs).await?;
    let mut order: Vec<usize> = (0..documents.len()).collect();
    // Stable: of equal scores the earlier document comes first.
    order.sort_by(|a, b| relevance(&scores[*b]).total_cmp(&relevance(&scores[*a])));
    order.truncate(top);
    if r.documents.is_none() {
        let entry = |i: usize| {
            let mut entry = json!({ "index": i, "score": relevance(&scores[i]) });
            if r.return_text == Some(true) {
                entry["text"] = documents[i].as_str().into();
            }
            entry
        };
        return Ok(Json(order.into_iter().map(entry).collect()));
    }
    let entry = |i: usize| {
        let mut entry = json!({ "index": i, "relevance_score": relevance(&scores[i]) });
        if r.return_documents == Some(true) {
            entry["document"] = json!({ "text": documents[i] });
        }
        entry
    };
    let tokens: usize = scores.iter().map(|s| s.n_tokens).sum();
    Ok(Json(json!({
        "model": r.model.as_ref().unwrap_or(&app.name),
        "object": "list",
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
        "results": order.into_iter().map(entry).collect::<Vec<_>>(),
    })))
}
