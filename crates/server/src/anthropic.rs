//! Anthropic's `POST /v1/messages` and `/v1/messages/count_tokens`.

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
use crate::conversation::{Conversation, ToolChoice};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::{Choice, End, Generation, Piece, Whole};
use crate::shape;
use crate::stream::{Form, event, sse};

/// A request for a message; `temperature`, `top_p`, `top_k`, `max_tokens` and `stream` are those of [`Fields`].
#[derive(Debug, Deserialize, Serialize, utoipa::ToSchema)]
pub struct MessagesRequest {
    /// Ignored: one model is served.
    pub model: Option<String>,
    /// The conversation.
    pub messages: Vec<AnthropicMessage>,
    /// Text that comes before it, or text blocks.
    #[schema(value_type = Option<Object>)]
    pub system: Option<Value>,
    /// Texts that end the answer.
    pub stop_sequences: Option<Vec<String>>,
    /// Tools that may be called.
    pub tools: Option<Vec<AnthropicTool>>,
    /// `{"type": "auto" | "any" | "tool" | "none", "name"}`.
    pub tool_choice: Option<AnthropicChoice>,
    /// `{"type": "enabled" | "disabled" | "adaptive"}`.
    pub thinking: Option<Thinking>,
}

/// A message.
#[derive(Debug, Deserialize, Serialize, utoipa::ToSchema)]
pub struct AnthropicMessage {
    /// `user`, `assistant` or `system`.
    pub role: String,
    /// Text or blocks.
    #[schema(value_type = Object)]
    pub content: Value,
}

/// A tool.
#[derive(Debug, Deserialize, Serialize, utoipa::ToSchema)]
pub struct AnthropicTool {
    /// Absent or `custom` for tools of the client's.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// The schema of its arguments.
    #[schema(value_type = Option<Object>)]
    pub input_schema: Option<Value>,
}

/// Which tools may or must be called.
#[derive(Debug, Deserialize, Serialize, utoipa::ToSchema)]
pub struct AnthropicChoice {
    /// Its kind.
    #[serde(rename = "type")]
    pub kind: String,
    /// The tool's name.
    pub name: Option<String>,
}

/// Whether the model thinks first.
#[derive(Debug, Deserialize, Serialize, utoipa::ToSchema)]
pub struct Thinking {
    /// Its kind.
    #[serde(rename = "type")]
    pub kind: String,
    /// Tokens of thoughts at most.
    pub budget_tokens: Option<i64>,
}

impl MessagesRequest {
    fn conversation(&self) -> Result<Conversation, ApiError> {
        let mut messages = Vec::new();
        if let Some(system) = self.system.as_ref().filter(|s| !s.is_null()) {
            messages.push(json!({ "role": "system", "content": plain(system_text(system, "system")?) }));
        }
        for (i, m) in self.messages.iter().enumerate() {
            translate(i, m, &mut messages)?;
        }
        let mut extra = Map::new();
        match self.thinking.as_ref().map(|t| t.kind.as_str()) {
            None => {}
            Some("disabled") => drop(extra.insert("enable_thinking".into(), false.into())),
            Some("enabled" | "adaptive") => drop(extra.insert("enable_thinking".into(), true.into())),
            Some(other) => {
                let message = format!("thinking.type: `{other}`, expected enabled, disabled or adaptive");
                return Err(ApiError::field("thinking.type", message));
            }
        }
        let own = |t: &&AnthropicTool| t.kind.as_deref().is_none_or(|k| k == "custom");
        let tool = |t: &AnthropicTool| {
            json!({ "type": "function", "function": {
                "name": t.name,
                "description": t.description.as_deref().unwrap_or_default(),
                "parameters": t.input_schema.clone().unwrap_or_else(|| json!({ "type": "object" })),
            } })
        };
        let tools: Option<Vec<Value>> = self.tools.as_ref().map(|t| t.iter().filter(own).map(tool).collect());
        let tool_choice = match self.tool_choice.as_ref().map(|c| (c.kind.as_str(), c.name.clone())) {
            None | Some(("auto", _)) => ToolChoice::Auto,
            Some(("none", _)) => ToolChoice::None,
            Some(("any", _)) => ToolChoice::Required,
            Some(("tool", Some(name))) => ToolChoice::Named(name),
            Some(_) => {
                let message = "tool_choice: expected auto, any, none, or tool with a name";
                return Err(ApiError::field("tool_choice", message));
            }
        };
        let tools = tools.filter(|t| !t.is_empty()).map(Value::from);
        Ok(Conversation { messages, tools, tool_choice, extra, ..Conversation::default() })
    }
}

/// Clients put a number into their system text that changes with each request; without it the prefix stays the same.
fn plain(text: String) -> String {
    let Some(at) = text.find("x-anthropic-billing-header:") else { return text };
    let end = text[at..].find('\n').map_or(text.len(), |n| at + n + 1);
    text[..at].to_owned() + &text[end..]
}

fn system_text(v: &Value, at: &str) -> Result<String, ApiError> {
    let wrong = || ApiError::field(at, format!("{at}: expected text or text blocks"));
    match v {
        Value::String(s) => Ok(s.clone()),
        Value::Array(blocks) => {
            let text = |b: &Value| b.get("text").and_then(Value::as_str).map(str::to_owned);
            let texts: Option<Vec<String>> = blocks.iter().map(text).collect();
            Ok(texts.ok_or_else(wrong)?.join("\n"))
        }
        _ => Err(wrong()),
    }
}

/// A message in OpenAI's form; results of tools become messages of their own.
fn translate(i: usize, m: &AnthropicMessage, out: &mut Vec<Value>) -> Result<(), ApiError> {
    let blocks = match &m.content {
        Value::String(text) => {
            out.push(json!({ "role": m.role, "content": text }));
            return Ok(());
        }
        Value::Array(blocks) => blocks,
        _ => {
            let at = format!("messages[{i}].content");
            return Err(ApiError::field(at.clone(), format!("{at}: expected text or blocks")));
        }
    };
    let (mut texts, mut thoughts, mut calls, mut results) =
        (Vec::new(), String::new(), Vec::new(), Vec::new());
    for (j, b) in blocks.iter().enumerate() {
        let at = format!("messages[{i}].content[{j}]");
        let text = |key: &str| {
            let wrong = || ApiError::field(format!("{at}.{key}"), format!("{at}.{key}: expected text"));
            b.get(key).and_then(Value::as_str).map(str::to_owned).ok_or_else(wrong)
        };
        match b.get("type").and_then(Value::as_str).unwrap_or_default() {
            "text" => texts.push(text("text")?),
            "thinking" => thoughts.push_str(&text("thinking")?),
            "redacted_thinking" => {}
            "tool_use" => calls.push(json!({ "id": text("id")?, "type": "function", "function": {
                "name": text("name")?,
                "arguments": b.get("input").cloned().unwrap_or_else(|| json!({})),
            } })),
            "tool_result" => {
                let content = match b.get("content") {
                    None | Some(Value::Null) => String::new(),
                    Some(content) => system_text(content, &format!("{at}.content"))?,
                };
                results.push(
                    json!({ "role": "tool", "tool_call_id": text("tool_use_id")?, "content": content }),
                );
            }
            "image" => return Err(ApiError::field(at, "image input is not supported by this model")),
            other => {
                return Err(ApiError::field(at.clone(), format!("{at}.type: `{other}` is not supported")));
            }
        }
    }
    let mut message = json!({ "role": m.role, "content": texts.join("\n") });
    if !thoughts.is_empty() {
        message["reasoning_content"] = thoughts.into();
    }
    let has_calls = !calls.is_empty();
    if has_calls {
        message["tool_calls"] = calls.into();
    }
    if has_calls || !texts.is_empty() || results.is_empty() {
        out.push(message);
    }
    out.extend(results);
    Ok(())
}

fn prepare(app: &Arc<App>, caller: &Caller, body: &Bytes) -> Result<(Generation, Fields), ApiError> {
    let (request, mut fields) = (read::<MessagesRequest>(body)?, read::<Fields>(body)?);
    fields.stop = request.stop_sequences.clone().map(crate::body::OneOrMany::Many);
    if let Some(t) = request.thinking.as_ref().filter(|t| t.kind == "enabled") {
        fields.reasoning_budget_tokens = fields.reasoning_budget_tokens.or(t.budget_tokens);
    }
    if fields.max_tokens == Some(0) {
        return Err(ApiError::field("max_tokens", "max_tokens: expected 1 or more"));
    }
    fields.max_tokens.get_or_insert(4096);
    let c = request.conversation()?;
    Ok((app.converse(&c, &fields, caller.domain(fields.cache_salt.as_deref()))?, fields))
}

/// `POST /v1/messages`.
///
/// # Errors
/// Whatever is wrong with the request, before the first byte of the answer.
pub async fn messages(
    State(app): State<Arc<App>>,
    axum::Extension(caller): By,
    body: Bytes,
) -> Result<Response, ApiError> {
    let (mut g, fields) = prepare(&app, &caller, &body)?;
    g.sampling.n = 1;
    let mut choices = app.start(g).await?;
    let form = MessageForm { id: shape::new_id("msg_"), app: app.clone(), blocks: 0, open: None };
    if fields.streams() {
        return Ok(sse(choices, form, app.options.ping));
    }
    let choice = choices.remove(0);
    let n_prompt = choice.n_prompt;
    let whole = choice.whole().await?;
    Ok(Json(form.whole(n_prompt, &whole)).into_response())
}

/// `POST /v1/messages/count_tokens`.
///
/// # Errors
/// As [`messages`].
pub async fn count_tokens(
    State(app): State<Arc<App>>,
    axum::Extension(caller): By,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let (g, _) = prepare(&app, &caller, &body)?;
    Ok(Json(json!({ "input_tokens": g.ids.len() })))
}

struct MessageForm {
    app: Arc<App>,
    id: String,
    /// Blocks begun.
    blocks: usize,
    open: Option<Block>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    Tool,
}

fn stop_reason(end: &End) -> &'static str {
    match end.stop {
        StopReason::Limit | StopReason::Context => "max_tokens",
        _ if end.has_calls => "tool_use",
        StopReason::Word if end.word.is_some() => "stop_sequence",
        StopReason::Eos | StopReason::Word => "end_turn",
    }
}

fn usage(n_prompt: usize, n_cached: usize, n_said: usize) -> Value {
    json!({
        "input_tokens": n_prompt - n_cached,
        "cache_read_input_tokens": n_cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": n_said,
    })
}

/// The arguments of a call as an object.
fn object(arguments: &str) -> Value {
    serde_json::from_str(arguments).unwrap_or_else(|_| json!({}))
}

impl MessageForm {
    fn message(&self, content: Vec<Value>, end: Option<&End>, usage: Value) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.app.name,
            "content": content,
            "stop_reason": end.map(stop_reason),
            "stop_sequence": end.and_then(|e| e.word.clone()),
            "usage": usage,
        })
    }

    fn whole(&self, n_prompt: usize, w: &Whole) -> Value {
        let mut content = Vec::new();
        if !w.output.reasoning.is_empty() {
            content.push(json!({ "type": "thinking", "thinking": w.output.reasoning, "signature": "" }));
        }
        if !w.output.content.is_empty() {
            content.push(json!({ "type": "text", "text": w.output.content }));
        }
        for c in &w.output.calls {
            let input = object(&c.arguments);
            content.push(json!({ "type": "tool_use", "id": c.id, "name": c.name, "input": input }));
        }
        let t = &w.end.timings;
        self.message(content, Some(&w.end), usage(n_prompt, t.cached_n, t.predicted_n))
    }

    fn close(&mut self, out: &mut String) {
        if let Some(block) = self.open.take() {
            let index = self.blocks - 1;
            if block == Block::Thinking {
                self.delta(json!({ "type": "signature_delta", "signature": "" }), out);
            }
            event(Some("content_block_stop"), &json!({ "type": "content_block_stop", "index": index }), out);
        }
    }

    fn open(&mut self, block: Block, shape: Value, out: &mut String) {
        if self.open == Some(block) && block != Block::Tool {
            return;
        }
        self.close(out);
        let v = json!({ "type": "content_block_start", "index": self.blocks, "content_block": shape });
        event(Some("content_block_start"), &v, out);
        (self.open, self.blocks) = (Some(block), self.blocks + 1);
    }

    fn delta(&self, delta: Value, out: &mut String) {
        let v =
            json!({ "type": "content_block_delta", "index": self.blocks.saturating_sub(1), "delta": delta });
        event(Some("content_block_delta"), &v, out);
    }
}

impl Form for MessageForm {
    fn begin(&mut self, choices: &[Choice], out: &mut String) {
        let c = &choices[0];
        let message = self.message(Vec::new(), None, usage(c.n_prompt, c.n_cached, 0));
        event(Some("message_start"), &json!({ "type": "message_start", "message": message }), out);
    }

    fn piece(&mut self, _: usize, piece: Piece, _: &Choice, out: &mut String) {
        match piece {
            Piece::Progress(_) => {}
            Piece::Delta(d) => {
                for e in d.events {
                    match e {
                        OutputEvent::Reasoning(text) => {
                            let shape = json!({ "type": "thinking", "thinking": "", "signature": "" });
                            self.open(Block::Thinking, shape, out);
                            self.delta(json!({ "type": "thinking_delta", "thinking": text }), out);
                        }
                        OutputEvent::Content(text) => {
                            self.open(Block::Text, json!({ "type": "text", "text": "" }), out);
                            self.delta(json!({ "type": "text_delta", "text": text }), out);
                        }
                        OutputEvent::CallStart { id, name, .. } => {
                            let shape = json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
                            self.open(Block::Tool, shape, out);
                        }
                        OutputEvent::CallArguments { delta, .. } => {
                            self.delta(json!({ "type": "input_json_delta", "partial_json": delta }), out);
                        }
                        _ => self.close(out),
                    }
                }
            }
            Piece::End(end) => {
                self.close(out);
                let v = json!({
                    "type": "message_delta",
                    "delta": { "stop_reason": stop_reason(&end), "stop_sequence": end.word },
                    "usage": { "output_tokens": end.timings.predicted_n },
                });
                event(Some("message_delta"), &v, out);
            }
        }
    }

    fn end(&mut self, out: &mut String) {
        event(Some("message_stop"), &json!({ "type": "message_stop" }), out);
    }

    fn fail(&mut self, e: &ApiError, out: &mut String) {
        event(Some("error"), &e.anthropic(), out);
    }

    fn ping(&self) -> &'static str {
        "event: ping\ndata: {\"type\": \"ping\"}\n\n"
    }
}
