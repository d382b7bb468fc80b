//! What all paths share, and the way a request takes to its path.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, Method};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use firth::text::output::OutputFormat;
use firth::{Params, Service};

use crate::body::MAX_BODY;
use crate::error::ApiError;
use crate::fields::ThoughtLimit;
use crate::metrics::Metrics;
use crate::{
    anthropic, completions, embeddings, info, native, ollama, openai_chat, openapi, rerank, responses, slots,
    tokens,
};

/// How to serve.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The name that clients see.
    pub name: String,
    /// Where the model's file is, for `/props`.
    pub path: String,
    /// Keys of which a request must show one; none for no check.
    pub api_keys: Vec<String>,
    /// Sampling where a request does not say.
    pub defaults: Option<Params>,
    /// Seed where a request does not say; a new one for each request when `None`.
    pub seed: Option<u64>,
    /// Texts that end answers where a request names none.
    pub stop: Vec<String>,
    /// Go on past end tokens where a request does not say.
    pub ignore_eos: bool,
    /// Thoughts of a limited length where a request does not say.
    pub thoughts: Option<ThoughtLimit>,
    /// What names of metrics begin with.
    pub metrics_prefix: String,
    /// Folder of slot files; without it slots are neither saved nor restored.
    pub slot_path: Option<PathBuf>,
    /// Folder into which generations are recorded.
    pub record: Option<PathBuf>,
    /// Silence after which a stream shows that it lives.
    pub ping: Option<Duration>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            name: "firth".into(),
            path: String::new(),
            api_keys: Vec::new(),
            defaults: None,
            seed: None,
            stop: Vec::new(),
            ignore_eos: false,
            thoughts: None,
            metrics_prefix: "firth".into(),
            slot_path: None,
            record: None,
            ping: Some(Duration::from_secs(30)),
        }
    }
}

/// What all paths share.
pub struct App {
    /// The engine.
    pub service: Service,
    /// How the model writes thoughts and calls.
    pub format: OutputFormat,
    /// Sampling where a request does not say.
    pub defaults: Params,
    /// The name that clients see.
    pub name: String,
    /// `system_fingerprint`: equal where equal requests with equal seeds get equal bytes.
    pub fingerprint: String,
    /// Seconds since 1970 at the start.
    pub created: u64,
    /// Settings.
    pub options: ServerOptions,
    /// What is measured.
    pub metrics: Metrics,
}

impl App {
    /// Around a service.
    ///
    /// # Errors
    /// The model's sampling defaults cannot be read.
    pub fn new(service: Service, options: ServerOptions) -> Result<Arc<App>, firth::Error> {
        let text = service.text();
        let format = text.output_format();
        let defaults = match &options.defaults {
            Some(p) => p.clone(),
            None => text.default_params()?,
        };
        Ok(Arc::new(App {
            format,
            defaults,
            name: options.name.clone(),
            fingerprint: format!("fp_{:016x}", service.fingerprint()),
            created: crate::shape::now(),
            metrics: Metrics::default(),
            service,
            options,
        }))
    }
}

/// Who asks.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    key: Option<String>,
}

impl Caller {
    /// The cache domain: 0 for those without a key and a salt, else a number of both.
    pub fn domain(&self, salt: Option<&str>) -> u64 {
        if self.key.is_none() && salt.is_none() {
            return 0;
        }
        let mut hash = DefaultHasher::new();
        (&self.key, salt).hash(&mut hash);
        hash.finish()
    }
}

/// The paths.
pub fn router(app: Arc<App>) -> Router {
    let r = Router::new();
    let r = both(r, "/health", get(info::health));
    let r = both(r, "/models", get(info::models));
    let r = r.route("/v1/models/{*id}", get(info::model));
    let r = both(r, "/chat/completions", post(openai_chat::chat));
    let r = both(r, "/chat/completions/input_tokens", post(openai_chat::input_tokens));
    let r = r.route("/v1/completions", post(completions::completions));
    let r = r.route("/completion", post(native::completion)).route("/completions", post(native::completion));
    let r = r.route("/infill", post(native::infill));
    let r = r.route("/slots", get(slots::slots)).route("/slots/{id}", post(slots::act));
    let r = r.route("/openapi.json", get(openapi::openapi));
    let r = r.route("/metrics", get(slots::metrics));
    let r = r.route("/v1/messages", post(anthropic::messages));
    let r = r.route("/v1/messages/count_tokens", post(anthropic::count_tokens));
    let r = both(r, "/responses", post(responses::responses));
    let r = both(r, "/responses/input_tokens", post(responses::input_tokens));
    let r = r.route("/api/chat", post(ollama::chat)).route("/api/generate", post(ollama::generate));
    let r = r.route("/api/tags", get(ollama::tags)).route("/api/ps", get(ollama::ps));
    let r = r.route("/api/show", post(ollama::show)).route("/api/version", get(ollama::version));
    let r = r.route("/api/embed", post(embeddings::ollama));
    let r = r.route("/api/embeddings", post(embeddings::ollama_one));
    let r = r.route("/v1/embeddings", post(embeddings::embeddings));
    let r = r.route("/embedding", post(embeddings::native)).route("/embeddings", post(embeddings::native));
    let r = both(r, "/rerank", post(rerank::rerank));
    let r = both(r, "/reranking", post(rerank::rerank));
    let r = r.route("/tokenize", post(tokens::tokenize));
    let r = r.route("/detokenize", post(tokens::detokenize));
    let r = r.route("/apply-template", post(tokens::apply_template));
    let r = r.route("/props", get(info::props).post(info::no_props));
    r.fallback(|| async { ApiError::not_found("File Not Found") })
        .method_not_allowed_fallback(|| async { ApiError::method() })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(app.clone(), admit))
        .with_state(app)
}

fn both(r: Router<Arc<App>>, path: &str, to: axum::routing::MethodRouter<Arc<App>>) -> Router<Arc<App>> {
    r.route(path, to.clone()).route(&format!("/v1{path}"), to)
}

/// Checks the key.
async fn admit(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let open = matches!(request.uri().path(), "/health" | "/v1/health" | "/");
    let shown = key_of(request.headers());
    let known = shown.filter(|key| app.options.api_keys.iter().any(|k| same(k.as_bytes(), key.as_bytes())));
    if !app.options.api_keys.is_empty() && known.is_none() && !open && request.method() != Method::OPTIONS {
        return ApiError::key().into_response();
    }
    let key = known.map(str::to_owned);
    request.extensions_mut().insert(Caller { key });
    next.run(request).await
}

fn key_of(headers: &HeaderMap) -> Option<&str> {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
    let bearer = text("authorization").and_then(|v| v.strip_prefix("Bearer ").or(v.strip_prefix("bearer ")));
    bearer.or_else(|| text("x-api-key")).map(str::trim)
}

/// Whether two keys are equal, in a time that does not depend on where they differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

/// The caller of a path that has been admitted.
pub type By = Extension<Caller>;
