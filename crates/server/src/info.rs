//! What the server tells of itself and of its model.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, State};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::App;
use crate::error::ApiError;

/// `?deep=1`.
#[derive(Deserialize)]
pub struct HealthQuery {
    deep: Option<String>,
}

/// `GET /health`: whether the engine works, asked of its loop's signs of life; with `?deep=1` it decodes a token.
///
/// # Errors
/// 503 where it does not.
pub async fn health(
    State(app): State<Arc<App>>,
    Query(q): Query<HealthQuery>,
) -> Result<Json<Value>, ApiError> {
    app.service.health()?;
    if q.deep.is_some_and(|v| v != "0") {
        app.service.probe().await?;
    }
    Ok(Json(json!({ "status": "ok" })))
}

/// The model as an entry of `/v1/models`.
fn entry(app: &App) -> Value {
    let text = app.service.text();
    let (file, m) = (text.file(), text.file().metadata());
    let arch = m.str("general.architecture").ok().flatten().unwrap_or_default();
    let number = |key: &str| m.u32(&format!("{arch}.{key}")).ok().flatten();
    let n_params: u64 = file.tensors().iter().map(|t| t.shape.iter().product::<u64>()).sum();
    json!({
        "id": app.name,
        "aliases": [],
        "tags": [],
        "object": "model",
        "created": app.created,
        "owned_by": "firth",
        "architecture": { "input_modalities": ["text"], "output_modalities": ["text"] },
        "meta": {
            "architecture": arch,
            "n_vocab": text.vocab().len(),
            "n_ctx": app.service.ctx(),
            "n_ctx_train": number("context_length"),
            "n_embd": number("embedding_length"),
            "n_params": n_params,
            "size": file.file_bytes(),
        },
    })
}

/// `GET /v1/models`.
pub async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({ "object": "list", "data": [entry(&app)] }))
}

/// `GET /v1/models/{id}`.
///
/// # Errors
/// 404 for any other name than the model's.
pub async fn model(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    match id == app.name {
        true => Ok(Json(entry(&app))),
        false => Err(ApiError::not_found(format!("no model `{id}`; this server has `{}`", app.name))),
    }
}

/// `GET /props`.
pub async fn props(State(app): State<Arc<App>>) -> Json<Value> {
    let text = app.service.text();
    let vocab = text.vocab();
    let token = |id: Option<u32>| {
        id.map(|id| String::from_utf8_lossy(vocab.token_text(id)).into_owned()).unwrap_or_default()
    };
    Json(json!({
        "default_generation_settings": {
            "n_ctx": app.service.ctx(),
            "params": crate::native::settings(&app.defaults),
        },
        "total_slots": app.service.parallel(),
        "model_alias": app.name,
        "model_path": app.options.path,
        "modalities": { "vision": false, "audio": false, "video": false },
        "endpoint_slots": true,
        "endpoint_props": false,
        "endpoint_metrics": true,
        "chat_template": text.template().map_or("", |t| t.source()),
        "chat_template_caps": {
            "supports_tools": app.format.has_tools(),
            "supports_reasoning": app.format.has_reasoning(),
        },
        "bos_token": token(vocab.bos()),
        "eos_token": token(vocab.eos()),
        "build_info": concat!("firth ", env!("CARGO_PKG_VERSION")),
        "system_fingerprint": app.fingerprint,
        "is_sleeping": false,
    }))
}

/// `POST /props`.
pub async fn no_props() -> ApiError {
    ApiError::unsupported("properties of this server cannot be changed while it runs")
}
