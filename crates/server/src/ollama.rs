//! Ollama's `/api/*`: lines of JSON, streamed unless asked otherwise.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use firth::Timings;
use firth::text::output::OutputEvent;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::app::{App, By, Caller};
use crate::body::{Part, read};
use crate::conversation::Conversation;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::{Choice, Delta, End, Generation, Piece, Whole};
use crate::shape;
use crate::stream::{Form, lines};
use crate::structured::Rule;
use crate::tokens::encode;

/// A request for `/api/chat` or `/api/generate`.
#[derive(Debug, Deserialize, Serialize, utoipa::ToSchema)]
pub struct OllamaRequest {
    /// Ignored: one model is served.
    pub model: Option<String>,
    /// The conversation, for `/api/chat`.
    #[schema(value_type = Option<Vec<Object>>)]
    pub messages: Option<Vec<Value>>,
    /// The prompt, for `/api/generate`.
    pub prompt: Option<String>,
    /// Text before the prompt.
    pub system: Option<String>,
    /// The prompt as it is, without the template.
    pub raw: Option<bool>,
    /// Not available: use /infill.
    pub suffix: Option<String>,
    /// Not available.
    #[schema(value_type = Option<Vec<Object>>)]
    pub images: Option<Vec<Value>>,
    /// Tools that may be called.
    #[schema(value_type = Option<Vec<Object>>)]
    pub tools: Option<Value>,
    /// `json` or a schema.
    #[schema(value_type = Option<Object>)]
    pub format: Option<Value>,
    /// Sampling: num_predict, temperature, top_k and the like.
    #[schema(value_type = Option<Object>)]
    pub options: Option<Map<String, Value>>,
    /// Whether the model thinks first.
    #[schema(value_type = Option<Object>)]
    pub think: Option<Value>,
    /// Lines as they come; true by default.
    pub stream: Option<bool>,
}

impl OllamaRequest {
    /// The fields of sampling that `options` and `format` are.
    fn fields(&self) -> Result<Fields, ApiError> {
        let mut options = self.options.clone().unwrap_or_default();
        if let Some(n) = options.shift_remove("num_predict") {
            // -2 fills the context, as -1 does here.
            options.insert("n_predict".into(), if n == json!(-2) { json!(-1) } else { n });
        }
        match self.format.as_ref().filter(|f| !f.is_null() && **f != "") {
            None => {}
            Some(Value::String(s)) if s == "json" => drop(options.insert("json_schema".into(), json!({}))),
            Some(schema @ Value::Object(_)) => drop(options.insert("json_schema".into(), schema.clone())),
            Some(_) => return Err(ApiError::field("format", "format: expected `json` or a schema")),
        }
        serde_path_to_error::deserialize(Value::Object(options)).map_err(|e| {
            let at = format!("options.{}", e.path());
            ApiError::field(at.clone(), format!("{at}: {}", e.inner()))
        })
    }

    fn conversation(&self, messages: Vec<Value>) -> Conversation {
        let mut extra = Map::new();
        match &self.think {
            Some(Value::Bool(think)) => drop(extra.insert("enable_thinking".into(), (*think).into())),
            Some(Value::String(effort)) => {
                drop(extra.insert("reasoning_effort".into(), effort.as_str().into()))
            }
            _ => {}
        }
        let tools = self.tools.clone().filter(|t| t.as_array().is_some_and(|t| !t.is_empty()));
        Conversation { messages, tools, extra, ..Conversation::default() }
    }
}

/// A message in OpenAI's form.
fn translate(i: usize, m: &Value) -> Result<Value, ApiError> {
    if m.get("images").and_then(Value::as_array).is_some_and(|i| !i.is_empty()) {
        return Err(ApiError::field(
            format!("messages[{i}].images"),
            "image input is not supported by this model",
        ));
    }
    let mut m = m.clone();
    let Some(o) = m.as_object_mut() else {
        return Err(ApiError::field(format!("messages[{i}]"), format!("messages[{i}]: expected an object")));
    };
    if let Some(thinking) = o.shift_remove("thinking").filter(|t| !t.is_null()) {
        o.insert("reasoning_content".into(), thinking);
    }
    if let Some(name) = o.shift_remove("tool_name").filter(|t| !t.is_null()) {
        o.insert("name".into(), name);
    }
    if o.get("content").is_none_or(Value::is_null) {
        o.insert("content".into(), "".into());
    }
    Ok(m)
}

/// `POST /api/chat`.
///
/// # Errors
/// Whatever is wrong with the request, before the first byte of the answer.
pub async fn chat(
    State(app): State<Arc<App>>,
    axum::Extension(caller): By,
    body: Bytes,
) -> Result<Response, ApiError> {
    let r: OllamaRequest = read(&body)?;
    let messages = r.messages.as_deref().unwrap_or_default();
    if messages.is_empty() {
        return Ok(Json(loaded(&app, true)).into_response());
    }
    let messages = messages.iter().enumerate().map(|(i, m)| translate(i, m)).collect::<Result<_, _>>()?;
    let g = app.converse(&r.conversation(messages), &r.fields()?, caller.domain(None))?;
    answer(&app, g, r.stream.unwrap_or(true), true).await
}

/// `POST /api/generate`.
///
/// # Errors
/// As [`chat`].
pub async fn generate(
    State(app): State<Arc<App>>,
    axum::Extension(caller): By,
    body: Bytes,
) -> Result<Response, ApiError> {
    let r: OllamaRequest = read(&body)?;
    if r.suffix.as_deref().is_some_and(|s| !s.is_empty()) {
        return Err(ApiError::unsupported_field("suffix", "suffix is not available here; use /infill"));
    }
    if r.images.as_ref().is_some_and(|i| !i.is_empty()) {
        return Err(ApiError::field("images", "image input is not supported by this model"));
    }
    let prompt = r.prompt.clone().unwrap_or_default();
    if prompt.is_empty() {
        return Ok(Json(loaded(&app, false)).into_response());
    }
    let g = generation(&app, &caller, &r, prompt)?;
    answer(&app, g, r.stream.unwrap_or(true), false).await
}

fn generation(
    app: &Arc<App>,
    caller: &Caller,
    r: &OllamaRequest,
    prompt: String,
) -> Result<Generation, ApiError> {
    let fields = r.fields()?;
    if !r.raw.unwrap_or(false) && app.service.text().template().is_some() {
        let mut messages = Vec::new();
        if let Some(system) = &r.system {
            messages.push(json!({ "role": "system", "content": system }));
        }
        messages.push(json!({ "role": "user", "content": prompt }));
        return app.converse(&r.conversation(messages), &fields, caller.domain(None));
    }
    Ok(Generation {
        domain: caller.domain(None),
        rule: Rule::of(&fields)?,
        ..Generation::new(
            encode(app.service.text().vocab(), &[Part::Text(prompt)], true, true)?,
            app.sampling(&fields)?,
        )
    })
}

/// The answer to a request for nothing: the model is there.
fn loaded(app: &App, chat: bool) -> Value {
    let mut v = json!({ "model": app.name, "created_at": time(), "done": true, "done_reason": "load" });
    match chat {
        true => v["message"] = json!({ "role": "assistant", "content": "" }),
        false => v["response"] = "".into(),
    }
    v
}

async fn answer(app: &Arc<App>, mut g: Generation, stream: bool, chat: bool) -> Result<Response, ApiError> {
    g.sampling.n = 1;
    let mut choices = app.start(g).await?;
    let form = OllamaForm { app: app.clone(), chat, calls: Vec::new() };
    if stream {
        return Ok(lines(choices, form));
    }
    let choice = choices.remove(0);
    let n_prompt = choice.n_prompt;
    let whole = choice.whole().await?;
    Ok(Json(form.whole(n_prompt, &whole)).into_response())
}

struct OllamaForm {
    app: Arc<App>,
    chat: bool,
    /// Name and arguments of the call under way; calls go out whole.
    calls: Vec<(String, String)>,
}

impl OllamaForm {
    fn line(&self, text: &str, thoughts: &str, calls: &[(String, String)]) -> Value {
        let mut v = json!({ "model": self.app.name, "created_at": time() });
        if !self.chat {
            v["response"] = text.into();
            if !thoughts.is_empty() {
                v["thinking"] = thoughts.into();
            }
            return v;
        }
        let mut m = json!({ "role": "assistant", "content": text });
        if !thoughts.is_empty() {
            m["thinking"] = thoughts.into();
        }
        if !calls.is_empty() {
            let call = |(name, arguments): &(String, String)| {
                let arguments: Value = serde_json::from_str(arguments).unwrap_or_else(|_| json!({}));
                json!({ "function": { "name": name, "arguments": arguments } })
            };
            m["tool_calls"] = calls.iter().map(call).collect();
        }
        v["message"] = m;
        v
    }

    fn finish(v: &mut Value, n_prompt: usize, end: &End) {
        let t: &Timings = &end.timings;
        let nanos = |seconds: f64| json!((seconds * 1e9) as u64);
        v["done"] = true.into();
        v["done_reason"] =
            if shape::finish_reason(end.stop, false) == "length" { "length" } else { "stop" }.into();
        v["total_duration"] = nanos(t.queue_seconds + t.prompt_seconds + t.predicted_seconds);
        v["load_duration"] = 0.into();
        v["prompt_eval_count"] = n_prompt.into();
        v["prompt_eval_duration"] = nanos(t.prompt_seconds);
        v["eval_count"] = t.predicted_n.into();
        v["eval_duration"] = nanos(t.predicted_seconds);
    }

    fn whole(&self, n_prompt: usize, w: &Whole) -> Value {
        let calls: Vec<_> = w.output.calls.iter().map(|c| (c.name.clone(), c.arguments.clone())).collect();
        let mut v = self.line(&w.output.content, &w.output.reasoning, &calls);
        Self::finish(&mut v, n_prompt, &w.end);
        v
    }

    fn write(&mut self, d: Delta, out: &mut String) {
        for e in d.events {
            let v = match e {
                OutputEvent::Reasoning(text) => self.line("", &text, &[]),
                OutputEvent::Content(text) => self.line(&text, "", &[]),
                OutputEvent::CallStart { name, .. } => {
                    self.calls = vec![(name, String::new())];
                    continue;
                }
                OutputEvent::CallArguments { delta, .. } => {
                    self.calls.iter_mut().for_each(|c| c.1.push_str(&delta));
                    continue;
                }
                OutputEvent::CallEnd { .. } => {
                    let calls = std::mem::take(&mut self.calls);
                    self.line("", "", &calls)
                }
                OutputEvent::CallBroken { .. } => {
                    self.calls.clear();
                    continue;
                }
            };
            put(v, false, out);
        }
    }
}

fn put(mut v: Value, done: bool, out: &mut String) {
    if !done {
        v["done"] = false.into();
    }
    out.push_str(&v.to_string());
    out.push('\n');
}

impl Form for OllamaForm {
    fn piece(&mut self, _: usize, piece: Piece, choice: &Choice, out: &mut String) {
        match piece {
            Piece::Progress(_) => {}
            Piece::Delta(d) => self.write(d, out),
            Piece::End(end) => {
                let mut v = self.line("", "", &[]);
                Self::finish(&mut v, choice.n_prompt, &end);
                put(v, true, out);
            }
        }
    }

    fn fail(&mut self, e: &ApiError, out: &mut String) {
        put(e.ollama(), true, out);
    }
}

/// The present time as RFC 3339.
fn time() -> String {
    rfc3339(shape::now())
}

/// Seconds since 1970 as RFC 3339 in UTC.
fn rfc3339(seconds: u64) -> String {
    let at = i64::try_from(seconds).ok().and_then(|s| jiff::Timestamp::from_second(s).ok());
    at.unwrap_or_default().to_string()
}

fn details(app: &App) -> Value {
    let m = app.service.text().file().metadata();
    let text = |key: &str| m.str(key).ok().flatten().unwrap_or_default().to_owned();
    json!({
        "format": "gguf",
        "family": text("general.architecture"),
        "families": [text("general.architecture")],
        "parameter_size": text("general.size_label"),
        "quantization_level": "",
    })
}

fn entry(app: &App) -> Value {
    json!({
        "name": app.name,
        "model": app.name,
        "modified_at": rfc3339(app.created),
        "size": app.service.text().file().file_bytes(),
        "digest": format!("{:016x}", app.service.fingerprint()),
        "details": details(app),
    })
}

/// `GET /api/tags`.
pub async fn tags(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({ "models": [entry(&app)] }))
}

/// `GET /api/ps`.
pub async fn ps(State(app): State<Arc<App>>) -> Json<Value> {
    let mut v = entry(&app);
    v["expires_at"] = "9999-12-31T23:59:59Z".into();
    v["size_vram"] = 0.into();
    v["context_length"] = app.service.ctx().into();
    Json(json!({ "models": [v] }))
}

/// `POST /api/show`.
pub async fn show(State(app): State<Arc<App>>) -> Json<Value> {
    let text = app.service.text();
    let mut capabilities = vec![if app.service.has_logits() { "completion" } else { "embedding" }];
    if app.format.has_tools() {
        capabilities.push("tools");
    }
    if app.format.has_reasoning() {
        capabilities.push("thinking");
    }
    let arch = text.file().metadata().str("general.architecture").ok().flatten().unwrap_or_default();
    let mut info = Map::new();
    info.insert("general.architecture".into(), arch.into());
    info.insert(format!("{arch}.context_length"), app.service.ctx().into());
    Json(json!({
        "modelfile": format!("FROM {}", app.name),
        "parameters": "",
        "template": text.template().map_or("", |t| t.source()),
        "details": details(&app),
        "model_info": info,
        "capabilities": capabilities,
        "modified_at": rfc3339(app.created),
    }))
}

/// `GET /api/version`.
pub async fn version() -> Json<Value> {
    Json(json!({ "version": env!("CARGO_PKG_VERSION") }))
}
