//! OpenAI's `POST /v1/responses`.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use firth::StopReason;
use firth::text::output::OutputEvent;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::app::{App, By, Caller};
use crate::body::read;
use crate::conversation::{Conversation, set_effort, tool_choice};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::{Choice, End, Generation, Piece};
use crate::openai_chat::ResponseFormat;
use crate::shape;
use crate::stream::{Form, event, sse};

/// A request for a response; `temperature`, `top_p`, `seed` and `stream` are those of [`Fields`].
#[derive(Debug, Deserialize, Serialize, utoipa::ToSchema)]
pub struct ResponsesRequest {
    /// Ignored: one model is served.
    pub model: Option<String>,
    /// Text, or items of a conversation.
    #[schema(value_type = Object)]
    pub input: Value,
    /// Text that comes before it.
    pub instructions: Option<String>,
    /// Tokens at most.
    pub max_output_tokens: Option<i64>,
    /// Functions that may be called; other kinds are left out.
    #[schema(value_type = Option<Vec<Object>>)]
    pub tools: Option<Vec<Value>>,
    /// `auto`, `none`, `required`, or a function by name.
    #[schema(value_type = Option<Object>)]
    pub tool_choice: Option<Value>,
    /// Whether an answer may call several tools.
    pub parallel_tool_calls: Option<bool>,
    /// `{"effort": …}`.
    pub reasoning: Option<Reasoning>,
    /// `{"format": …}`.
    pub text: Option<TextOptions>,
    /// Not available: nothing is kept.
    pub previous_response_id: Option<String>,
    /// Told back.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Value>,
}

/// How hard the model thinks.
#[derive(Debug, Deserialize, Serialize, utoipa::ToSchema)]
pub struct Reasoning {
    /// `none` turns thinking off; else a variable for the template.
    pub effort: Option<String>,
}

/// The form of the answer.
#[derive(Debug, Deserialize, Serialize, utoipa::ToSchema)]
pub struct TextOptions {
    /// As `response_format` of chat completions, its schema one level up.
    #[schema(value_type = Option<Object>)]
    pub format: Option<Value>,
}

impl ResponsesRequest {
    fn conversation(&self, fields: &mut Fields) -> Result<Conversation, ApiError> {
        if self.previous_response_id.is_some() {
            let message = "previous_response_id is not available: this server keeps no responses";
            return Err(ApiError::field("previous_response_id", message));
        }
        fields.max_tokens = self.max_output_tokens;
        if let Some(format) = self.text.as_ref().and_then(|t| t.format.as_ref()).filter(|f| !f.is_null()) {
            let read = |e: serde_json::Error| ApiError::field("text.format", format!("text.format: {e}"));
            let format: ResponseFormat = serde_json::from_value(format.clone()).map_err(read)?;
            if let Some(schema) = format.schema()? {
                fields.json_schema.get_or_insert(schema);
            }
        }
        let mut extra = Map::new();
        set_effort(&mut extra, self.reasoning.as_ref().and_then(|r| r.effort.as_deref()));
        let mut messages = Vec::new();
        if let Some(text) = &self.instructions {
            messages.push(json!({ "role": "system", "content": text }));
        }
        match &self.input {
            Value::String(text) => messages.push(json!({ "role": "user", "content": text })),
            Value::Array(items) => {
                for (i, item) in items.iter().enumerate() {
                    add_item(i, item, &mut messages)?;
                }
            }
            _ => return Err(ApiError::field("input", "input: expected text or a list of items")),
        }
        let is_function = |t: &&Value| t.get("type").is_none_or(|kind| kind == "function");
        let all = self.tools.as_deref().unwrap_or_default();
        let tools: Vec<Value> = all.iter().filter(is_function).cloned().collect();
        if tools.len() < all.len() {
            tracing::warn!("{} tools that are no functions are left out", all.len() - tools.len());
        }
        Ok(Conversation {
            messages,
            tools: (!tools.is_empty()).then(|| tools.into()),
            tool_choice: tool_choice(self.tool_choice.as_ref())?,
            parallel_calls: self.parallel_tool_calls.unwrap_or(true),
            extra,
            ..Conversation::default()
        })
    }
}

/// Adds an item of the input; neighbouring items of the assistant become one message.
fn add_item(i: usize, item: &Value, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    let text = |key: &str| {
        let at = format!("input[{i}].{key}");
        item.get(key)
            .and_then(Value::as_str)
            .ok_or_else(|| ApiError::field(&at, format!("{at}: expected text")))
    };
    let kind = item.get("type").and_then(Value::as_str);
    match kind {
        None | Some("message") => {
            let (role, content) = (text("role")?, item.get("content").cloned().unwrap_or(Value::Null));
            match role {
                "assistant" => {
                    let m = assistant(messages);
                    let new = flat(i, &content)?;
                    let old = m["content"].as_str().unwrap_or_default();
                    m["content"] = if old.is_empty() { new.into() } else { format!("{old}\n{new}").into() };
                }
                // Templates know no developers; they say what a system says.
                "developer" => messages.push(json!({ "role": "system", "content": content })),
                role => messages.push(json!({ "role": role, "content": content })),
            }
        }
        Some("function_call") => {
            let call = json!({ "id": text("call_id")?, "type": "function",
                "function": { "name": text("name")?, "arguments": text("arguments")? } });
            let m = assistant(messages);
            match m.get_mut("tool_calls").and_then(Value::as_array_mut) {
                Some(calls) => calls.push(call),
                None => m["tool_calls"] = json!([call]),
            }
        }
        Some("function_call_output") => {
            let output = flat(i, item.get("output").unwrap_or(&Value::Null))?;
            messages.push(json!({ "role": "tool", "tool_call_id": text("call_id")?, "content": output }));
        }
        Some("reasoning") => {
            let parts = item.get("content").and_then(Value::as_array).map_or(&[][..], |c| &c[..]);
            let thoughts: Vec<&str> = parts.iter().filter_map(|p| p.get("text")?.as_str()).collect();
            if !thoughts.is_empty() {
                assistant(messages)["reasoning_content"] = thoughts.join("\n").into();
            }
        }
        Some(other) => {
            let message = format!("input[{i}].type: `{other}` is not supported by this server");
            return Err(ApiError::field(format!("input[{i}].type"), message));
        }
    }
    Ok(())
}

/// The assistant's message at the end, made if there is none.
fn assistant(messages: &mut Vec<Value>) -> &mut Value {
    if messages.last().is_none_or(|m| m["role"] != "assistant") {
        messages.push(json!({ "role": "assistant", "content": "" }));
    }
    messages.last_mut().expect("it was just looked at")
}

/// Text, or the texts of parts.
fn flat(i: usize, v: &Value) -> Result<String, ApiError> {
    let wrong = || ApiError::field(format!("input[{i}]"), format!("input[{i}]: expected text or text parts"));
    match v {
        Value::Null => Ok(String::new()),
        Value::String(s) => Ok(s.clone()),
        Value::Array(parts) => {
            let text =
                |p: &Value| p.get("text").or(p.get("refusal")).and_then(Value::as_str).map(str::to_owned);
            let is_image = |p: &Value| p.get("type").is_some_and(|t| t == "input_image");
            if parts.iter().any(is_image) {
                return Err(ApiError::field(
                    format!("input[{i}]"),
                    "image input is not supported by this model",
                ));
            }
            let texts: Option<Vec<String>> = parts.iter().map(text).collect();
            Ok(texts.ok_or_else(wrong)?.join("\n"))
        }
        _ => Err(wrong()),
    }
}

fn prepare(
    app: &Arc<App>,
    caller: &Caller,
    body: &Bytes,
) -> Result<(Generation, Fields, ResponsesRequest), ApiError> {
    let (request, mut fields) = (read::<ResponsesRequest>(body)?, read::<Fields>(body)?);
    let c = request.conversation(&mut fields)?;
    let mut g = app.converse(&c, &fields, caller.domain(fields.cache_salt.as_deref()))?;
    g.sampling.n = 1;
    Ok((g, fields, request))
}

/// `POST /v1/responses`.
///
/// # Errors
/// Whatever is wrong with the request, before the first byte of the answer.
pub async fn responses(
    State(app): State<Arc<App>>,
    axum::Extension(caller): By,
    body: Bytes,
) -> Result<Response, ApiError> {
    let (g, fields, request) = prepare(&app, &caller, &body)?;
    let mut choices = app.start(g).await?;
    let mut form = ResponseForm::new(&app, &fields, request);
    if fields.streams() {
        return Ok(sse(choices, form, app.options.ping));
    }
    let mut choice = choices.remove(0);
    let mut ignored = String::new();
    while let Some(piece) = choice.next().await {
        form.piece(0, piece?, &choice, &mut ignored);
        ignored.clear();
    }
    Ok(Json(form.response(form.status())).into_response())
}

/// `POST /v1/responses/input_tokens`.
///
/// # Errors
/// As [`responses`].
pub async fn input_tokens(
    State(app): State<Arc<App>>,
    axum::Extension(caller): By,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let (g, ..) = prepare(&app, &caller, &body)?;
    Ok(Json(json!({ "object": "response.input_tokens", "input_tokens": g.ids.len() })))
}

/// A response as it grows: items that are done, and the one under way.
struct ResponseForm {
    app: Arc<App>,
    id: String,
    created: u64,
    request: ResponsesRequest,
    temperature: Option<f64>,
    top_p: Option<f64>,
    sequence: u64,
    done: Vec<Value>,
    open: Option<Open>,
    thoughts: usize,
    n_prompt: usize,
    end: Option<End>,
}

struct Open {
    kind: Kind,
    id: String,
    text: String,
    call: (String, String),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Message,
    Call,
}

impl Open {
    fn item(&self, status: &str) -> Value {
        let whole = status == "completed";
        match self.kind {
            Kind::Reasoning => {
                json!({ "type": "reasoning", "id": self.id, "summary": [], "encrypted_content": "",
                "content": if whole { json!([{ "type": "reasoning_text", "text": self.text }]) } else { json!([]) },
                "status": status })
            }
            Kind::Message => json!({ "type": "message", "id": self.id, "role": "assistant", "status": status,
                "content": if whole { json!([part(&self.text)]) } else { json!([]) } }),
            Kind::Call => json!({ "type": "function_call", "id": self.id, "call_id": self.call.0,
                "name": self.call.1, "arguments": self.text, "status": status }),
        }
    }
}

fn part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

impl ResponseForm {
    fn new(app: &Arc<App>, fields: &Fields, request: ResponsesRequest) -> ResponseForm {
        ResponseForm {
            app: app.clone(),
            id: shape::new_id("resp_"),
            created: shape::now(),
            temperature: fields.temperature,
            top_p: fields.top_p,
            request,
            sequence: 0,
            done: Vec::new(),
            open: None,
            thoughts: 0,
            n_prompt: 0,
            end: None,
        }
    }

    fn is_cut(&self) -> bool {
        self.end.as_ref().is_some_and(|e| matches!(e.stop, StopReason::Limit | StopReason::Context))
    }

    fn status(&self) -> &'static str {
        if self.is_cut() { "incomplete" } else { "completed" }
    }

    fn response(&self, status: &str) -> Value {
        let r = &self.request;
        let usage = self.end.as_ref().map(|e| {
            let (n, said) = (self.n_prompt, e.timings.predicted_n);
            json!({
                "input_tokens": n,
                "input_tokens_details": { "cached_tokens": e.timings.cached_n },
                "output_tokens": said,
                "output_tokens_details": { "reasoning_tokens": self.thoughts },
                "total_tokens": n + said,
            })
        });
        let format =
            r.text.as_ref().and_then(|t| t.format.clone()).unwrap_or_else(|| json!({ "type": "text" }));
        json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": self.end.as_ref().map(|_| shape::now()),
            "status": status,
            "background": false,
            "error": null,
            "incomplete_details": self.is_cut().then(|| json!({ "reason": "max_output_tokens" })),
            "instructions": r.instructions,
            "max_output_tokens": r.max_output_tokens,
            "metadata": r.metadata.clone().unwrap_or_else(|| json!({})),
            "model": self.app.name,
            "output": self.done,
            "parallel_tool_calls": r.parallel_tool_calls.unwrap_or(true),
            "previous_response_id": null,
            "reasoning": { "effort": r.reasoning.as_ref().and_then(|r| r.effort.clone()), "summary": null },
            "store": false,
            "temperature": self.temperature.unwrap_or(f64::from(self.app.defaults.temperature)),
            "text": { "format": format },
            "tool_choice": r.tool_choice.clone().unwrap_or_else(|| "auto".into()),
            "tools": r.tools.clone().unwrap_or_default(),
            "top_p": self.top_p.unwrap_or(f64::from(self.app.defaults.top_p)),
            "truncation": "disabled",
            "usage": usage,
        })
    }

    fn tell(&mut self, name: &str, members: Value, out: &mut String) {
        let mut v = json!({ "type": name, "sequence_number": self.sequence });
        if let (Value::Object(v), Value::Object(m)) = (&mut v, members) {
            v.extend(m);
        }
        self.sequence += 1;
        event(Some(name), &v, out);
    }

    /// Where the item under way stands.
    fn place(&self) -> Value {
        let id = self.open.as_ref().map_or("", |o| o.id.as_str());
        json!({ "item_id": id, "output_index": self.done.len(), "content_index": 0 })
    }

    /// An event about the item under way.
    fn tell_of_item(&mut self, name: &str, members: Value, out: &mut String) {
        let mut v = self.place();
        if let (Value::Object(v), Value::Object(m)) = (&mut v, members) {
            v.extend(m);
        }
        self.tell(name, v, out);
    }

    fn begin_item(&mut self, kind: Kind, call: (String, String), out: &mut String) {
        if kind != Kind::Call && self.open.as_ref().is_some_and(|o| o.kind == kind) {
            return;
        }
        self.end_item(out);
        let prefix = match kind {
            Kind::Reasoning => "rs_",
            Kind::Message => "msg_",
            Kind::Call => "fc_",
        };
        let open = Open { kind, id: shape::new_id(prefix), text: String::new(), call };
        let item = open.item("in_progress");
        self.open = Some(open);
        let index = self.done.len();
        self.tell("response.output_item.added", json!({ "output_index": index, "item": item }), out);
        if kind == Kind::Message {
            self.tell_of_item("response.content_part.added", json!({ "part": part("") }), out);
        }
    }

    fn add(&mut self, name: &str, text: &str, out: &mut String) {
        if let Some(open) = &mut self.open {
            open.text.push_str(text);
            let mut members = json!({ "delta": text });
            if open.kind == Kind::Message {
                members["logprobs"] = json!([]);
            }
            self.tell_of_item(name, members, out);
        }
    }

    fn end_item(&mut self, out: &mut String) {
        self.end_item_as("completed", out);
    }

    fn end_item_as(&mut self, status: &str, out: &mut String) {
        let Some(open) = &self.open else { return };
        let (kind, text, name) = (open.kind, open.text.clone(), open.call.1.clone());
        let item = open.item(status);
        match kind {
            Kind::Reasoning => {
                self.tell_of_item("response.reasoning_text.done", json!({ "text": text }), out);
            }
            Kind::Message => {
                let members = json!({ "text": text, "logprobs": [] });
                self.tell_of_item("response.output_text.done", members, out);
                self.tell_of_item("response.content_part.done", json!({ "part": part(&text) }), out);
            }
            Kind::Call => {
                let members = json!({ "arguments": text, "name": name });
                self.tell_of_item("response.function_call_arguments.done", members, out);
            }
        }
        let index = self.done.len();
        self.tell("response.output_item.done", json!({ "output_index": index, "item": item }), out);
        self.done.push(item);
        self.open = None;
    }
}

impl Form for ResponseForm {
    fn begin(&mut self, _: &[Choice], out: &mut String) {
        let r = self.response("in_progress");
        self.tell("response.created", json!({ "response": r }), out);
        self.tell("response.in_progress", json!({ "response": r }), out);
    }

    fn piece(&mut self, _: usize, piece: Piece, choice: &Choice, out: &mut String) {
        self.n_prompt = choice.n_prompt;
        let none = (String::new(), String::new());
        match piece {
            Piece::Progress(_) => {}
            Piece::Delta(d) => {
                let all_thoughts = d.events.iter().all(|e| matches!(e, OutputEvent::Reasoning(_)));
                self.thoughts += d.ids.len() * usize::from(all_thoughts);
                for e in d.events {
                    match e {
                        OutputEvent::Reasoning(text) => {
                            self.begin_item(Kind::Reasoning, none.clone(), out);
                            self.add("response.reasoning_text.delta", &text, out);
                        }
                        OutputEvent::Content(text) => {
                            self.begin_item(Kind::Message, none.clone(), out);
                            self.add("response.output_text.delta", &text, out);
                        }
                        OutputEvent::CallStart { id, name, .. } => {
                            self.begin_item(Kind::Call, (id, name), out);
                        }
                        OutputEvent::CallArguments { delta, .. } => {
                            self.add("response.function_call_arguments.delta", &delta, out);
                        }
                        OutputEvent::CallEnd { .. } => self.end_item(out),
                        OutputEvent::CallBroken { .. } => self.end_item_as("incomplete", out),
                    }
                }
            }
            Piece::End(end) => {
                self.end_item(out);
                self.end = Some(end);
            }
        }
    }

    fn end(&mut self, out: &mut String) {
        let (status, name) = match self.is_cut() {
            true => ("incomplete", "response.incomplete"),
            false => ("completed", "response.completed"),
        };
        let r = self.response(status);
        self.tell(name, json!({ "response": r }), out);
    }

    fn fail(&mut self, e: &ApiError, out: &mut String) {
        let mut r = self.response("failed");
        r["error"] = json!({ "code": "server_error", "message": e.message });
        self.tell("response.failed", json!({ "response": r }), out);
    }
}
