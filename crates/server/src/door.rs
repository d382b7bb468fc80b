//! The outside of the server: it answers from the first moment, and says that the model loads until there is one.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tower::ServiceExt;

use crate::app::{App, router};
use crate::error::{ApiError, Shown, respond};

/// What every request comes to first.
pub struct Door {
    cors: bool,
    inside: RwLock<Inside>,
}

#[derive(Clone)]
enum Inside {
    /// A model at work.
    Open(Arc<App>, Router),
    /// None yet, or none any more: what is said to those who ask.
    Shut(String),
}

impl Door {
    /// A door behind which nothing is yet; `cors` lets web pages of other origins ask.
    pub fn new(cors: bool) -> Arc<Door> {
        Arc::new(Door { cors, inside: RwLock::new(Inside::Shut("Loading model".into())) })
    }

    /// The model has been loaded: from now on requests reach it.
    pub fn open(&self, app: Arc<App>) {
        let router = router(app.clone());
        self.set(Inside::Open(app, router));
    }

    /// There is no model any more, until the door is opened again: requests are answered by 503 and the reason.
    pub fn shut(&self, why: impl Into<String>) {
        self.set(Inside::Shut(why.into()));
    }

    fn set(&self, inside: Inside) {
        *self.inside.write().unwrap_or_else(PoisonError::into_inner) = inside;
    }

    fn inside(&self) -> Inside {
        self.inside.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is behind the door.
    pub fn app(&self) -> Option<Arc<App>> {
        match self.inside() {
            Inside::Open(app, _) => Some(app),
            Inside::Shut(_) => None,
        }
    }

    /// The answers, as a service for a socket.
    pub(crate) fn router(self: Arc<Door>) -> Router {
        Router::new().fallback(enter).with_state(self)
    }
}

/// Around everything: request ids, the log line, CORS, errors in the path's dialect.
async fn enter(State(door): State<Arc<Door>>, request: Request) -> Response {
    let start = Instant::now();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let origin = request.headers().get(header::ORIGIN).cloned().filter(|_| door.cors);
    let given = request.headers().get("x-request-id").filter(|id| id.len() <= 128).cloned();
    let id = given.unwrap_or_else(|| {
        HeaderValue::from_str(&crate::shape::new_id("req_")).unwrap_or(HeaderValue::from_static("req"))
    });
    let mut response = match method == Method::OPTIONS {
        true => StatusCode::OK.into_response(),
        false => in_dialect(&path, door.answer(request).await),
    };
    let headers = response.headers_mut();
    headers.insert(header::SERVER, HeaderValue::from_static("firth"));
    let of_json = HeaderValue::from_static("application/json; charset=utf-8");
    if headers.get(header::CONTENT_TYPE).is_some_and(|v| v == "application/json") {
        headers.insert(header::CONTENT_TYPE, of_json);
    }
    headers.insert(HeaderName::from_static("x-request-id"), id.clone());
    if let Some(origin) = origin {
        allow(headers, origin);
    }
    let status = response.status().as_u16();
    if let Some(app) = door.app() {
        app.metrics.note_request(&path, status);
    }
    let (id, ms) = (id.to_str().unwrap_or_default(), start.elapsed().as_millis());
    tracing::info!(target: "firth_server::access", "{method} {path} {status} {ms} ms {id}");
    response
}

impl Door {
    async fn answer(&self, request: Request) -> Response {
        if request.uri().path() == "/" && matches!(*request.method(), Method::GET | Method::HEAD) {
            return crate::page::chat();
        }
        match self.inside() {
            Inside::Open(_, router) => router.oneshot(request).await.into_response(),
            Inside::Shut(why) => {
                ApiError { retry_after: Some(1), ..ApiError::unavailable(why) }.into_response()
            }
        }
    }
}

fn in_dialect(path: &str, mut response: Response) -> Response {
    let anthropic = path.starts_with("/v1/messages");
    let ollama = path.starts_with("/api/");
    let Some(Shown(e)) = response.extensions_mut().remove::<Shown>().filter(|_| anthropic || ollama) else {
        return response;
    };
    let body = if anthropic { e.anthropic() } else { e.ollama() };
    respond(e, body)
}

fn allow(headers: &mut HeaderMap, origin: HeaderValue) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::VARY, HeaderValue::from_static("Origin"));
    headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
    let methods = HeaderValue::from_static("GET, POST, DELETE, OPTIONS");
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("*"));
}
