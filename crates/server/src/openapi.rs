//! The OpenAPI document, made from the types that requests are read into.

use axum::Json;
use serde_json::{Map, Value, json};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::anthropic::MessagesRequest;
use crate::completions::CompletionRequest;
use crate::embeddings::{EmbeddingsRequest, OllamaEmbedRequest};
use crate::fields::Fields;
use crate::native::{InfillRequest, NativeRequest};
use crate::ollama::OllamaRequest;
use crate::openai_chat::ChatRequest;
use crate::rerank::RerankRequest;
use crate::responses::ResponsesRequest;
use crate::slots::SlotFile;
use crate::tokens::{DetokenizeRequest, TokenizeRequest};

/// Paths that take a body: what the body is, and whether the fields of sampling stand beside it.
const POSTS: [(&str, &str, &str, bool); 22] = [
    ("/v1/chat/completions", "Answers a conversation", "ChatRequest", true),
    ("/v1/chat/completions/input_tokens", "Counts the tokens of a conversation", "ChatRequest", true),
    ("/v1/completions", "Goes on with a text", "CompletionRequest", true),
    ("/v1/responses", "Answers items", "ResponsesRequest", true),
    ("/v1/responses/input_tokens", "Counts the tokens of items", "ResponsesRequest", true),
    ("/v1/messages", "Answers a conversation, in Anthropic's shape", "MessagesRequest", true),
    ("/v1/messages/count_tokens", "Counts the tokens of a conversation", "MessagesRequest", true),
    ("/v1/embeddings", "Embeddings of texts", "EmbeddingsRequest", false),
    ("/embedding", "Embeddings of texts, in llama-server's shape", "EmbeddingsRequest", false),
    ("/v1/rerank", "How well documents answer a query", "RerankRequest", false),
    ("/api/embed", "Embeddings of texts, in Ollama's shape", "OllamaEmbedRequest", false),
    ("/api/embeddings", "The embedding of a text, in Ollama's older shape", "OllamaEmbedRequest", false),
    ("/completion", "Goes on with a text, in llama-server's shape", "NativeRequest", true),
    ("/infill", "Fills a gap in a text", "InfillRequest", true),
    ("/tokenize", "Text to tokens", "TokenizeRequest", false),
    ("/detokenize", "Tokens to text", "DetokenizeRequest", false),
    ("/apply-template", "The prompt of a conversation", "ChatRequest", true),
    ("/slots/{id}", "Saves, restores or erases a slot", "SlotFile", false),
    ("/api/chat", "Answers a conversation, in Ollama's shape", "OllamaRequest", false),
    ("/api/generate", "Answers a prompt, in Ollama's shape", "OllamaRequest", false),
    ("/api/show", "Tells of the model, in Ollama's shape", "", false),
    ("/props", "Not available while the server runs", "", false),
];

const GETS: [(&str, &str); 10] = [
    ("/health", "Whether the engine works"),
    ("/v1/models", "The model"),
    ("/v1/models/{id}", "The model of a name"),
    ("/props", "Properties of the server"),
    ("/slots", "What each sequence is doing"),
    ("/metrics", "Measurements in Prometheus' form"),
    ("/openapi.json", "This document"),
    ("/api/tags", "The model, in Ollama's shape"),
    ("/api/ps", "The model at work, in Ollama's shape"),
    ("/api/version", "The version"),
];

fn add<T: ToSchema>(to: &mut Map<String, Value>) {
    let mut all: Vec<(String, RefOr<Schema>)> =
        vec![(T::name().into_owned(), <T as PartialSchema>::schema())];
    T::schemas(&mut all);
    for (name, schema) in all {
        to.insert(name, serde_json::to_value(schema).unwrap_or_default());
    }
}

/// The document.
pub fn document() -> Value {
    let mut schemas = Map::new();
    add::<Fields>(&mut schemas);
    add::<ChatRequest>(&mut schemas);
    add::<CompletionRequest>(&mut schemas);
    add::<ResponsesRequest>(&mut schemas);
    add::<MessagesRequest>(&mut schemas);
    add::<NativeRequest>(&mut schemas);
    add::<InfillRequest>(&mut schemas);
    add::<TokenizeRequest>(&mut schemas);
    add::<DetokenizeRequest>(&mut schemas);
    add::<OllamaRequest>(&mut schemas);
    add::<SlotFile>(&mut schemas);
    add::<EmbeddingsRequest>(&mut schemas);
    add::<OllamaEmbedRequest>(&mut schemas);
    add::<RerankRequest>(&mut schemas);
    let mut paths: Map<String, Value> = Map::new();
    for (path, summary) in GETS {
        paths.insert(path.into(), json!({ "get": operation(path, summary) }));
    }
    for (path, summary, body, fields) in POSTS {
        let mut op = operation(path, summary);
        let one = json!({ "$ref": format!("#/components/schemas/{body}") });
        let schema = match (body, fields) {
            ("", _) => json!({ "type": "object" }),
            (_, false) => one,
            (_, true) => json!({ "allOf": [one, { "$ref": "#/components/schemas/Fields" }] }),
        };
        op["requestBody"] =
            json!({ "required": true, "content": { "application/json": { "schema": schema } } });
        let entry = paths.entry(path).or_insert_with(|| json!({}));
        entry["post"] = op;
    }
    json!({
        "openapi": "3.1.0",
        "info": { "title": "firth", "version": env!("CARGO_PKG_VERSION"),
            "description": "Language models over HTTP, in the shapes of OpenAI, Anthropic, llama-server and Ollama." },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } },
        },
    })
}

fn operation(path: &str, summary: &str) -> Value {
    let mut parameters = Vec::new();
    if path.contains("{id}") {
        parameters
            .push(json!({ "name": "id", "in": "path", "required": true, "schema": { "type": "string" } }));
    }
    if path == "/slots/{id}" {
        let actions = ["save", "restore", "erase"];
        parameters.push(json!({ "name": "action", "in": "query", "required": true,
            "schema": { "type": "string", "enum": actions } }));
    }
    let answer = |what: &str| json!({ "description": what });
    let mut responses = json!({
        "200": answer("The answer"),
        "400": answer("The request has no meaning"),
        "401": answer("No key, or a wrong one"),
        "404": answer("Nothing of that name"),
        "413": answer("The body is too large"),
        "429": answer("The queue is full"),
        "501": answer("The model or the server cannot do that"),
        "503": answer("The engine does not answer"),
    });
    let text = if path == "/metrics" { "text/plain" } else { "application/json" };
    responses["200"]["content"] = json!({ text: {} });
    let mut op = json!({ "summary": summary, "responses": responses, "security": [{ "key": [] }, {}] });
    if !parameters.is_empty() {
        op["parameters"] = parameters.into();
    }
    op
}

/// `GET /openapi.json`.
pub async fn openapi() -> Json<Value> {
    Json(document())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `docs/openapi.json` is the document; with `FIRTH_UPDATE=1` it is written anew.
    #[test]
    fn the_document_is_the_golden_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
        let text = serde_json::to_string_pretty(&document()).expect("JSON") + "\n";
        if std::env::var_os("FIRTH_UPDATE").is_some() {
            std::fs::write(path, &text).expect("a write");
        }
        let golden = std::fs::read_to_string(path).expect("docs/openapi.json");
        assert!(
            golden == text,
            "the types have changed; run the test with FIRTH_UPDATE=1 and look at the difference"
        );
        let refs = text.matches("\"$ref\": \"#/components/schemas/").count();
        assert!(refs > 20, "{refs}");
        for part in text.split("\"$ref\": \"#/components/schemas/").skip(1) {
            let name = part.split('"').next().expect("a name");
            assert!(document()["components"]["schemas"][name].is_object(), "{name}");
        }
    }
}
