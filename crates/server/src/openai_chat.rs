//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use firth::text::output::OutputEvent;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::app::{App, Caller};
use crate::body::read;
use crate::conversation::{Conversation, set_effort, tool_choice};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::{Choice, Delta, End, Generation, Piece, Whole};
use crate::shape;
use crate::stream::{Form, event, sse};

/// A request for a chat completion; the fields of [`Fields`] stand beside these.
#[derive(Clone, Debug, Deserialize, Serialize, utoipa::ToSchema)]
pub struct ChatRequest {
    /// Ignored: one model is served.
    pub model: Option<String>,
    /// The conversation.
    #[schema(value_type = Vec<Object>)]
    pub messages: Vec<Value>,
    /// Tools that may be called.
    #[schema(value_type = Option<Vec<Object>>)]
    pub tools: Option<Value>,
    /// `auto`, `none`, `required`, or a function by name.
    #[schema(value_type = Option<Object>)]
    pub tool_choice: Option<Value>,
    /// Whether an answer may call several tools.
    pub parallel_tool_calls: Option<bool>,
    /// `text`, `json_object` or `json_schema`.
    pub response_format: Option<ResponseFormat>,
    /// Tell log probabilities.
    pub logprobs: Option<bool>,
    /// Of so many of the likeliest tokens.
    pub top_logprobs: Option<i64>,
    /// Variables for the template.
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// `none` turns thinking off; else a variable for the template.
    pub reasoning_effort: Option<String>,
    /// `auto`, `none` or `deepseek`.
    pub reasoning_format: Option<String>,
    /// Whether the prompt ends where the assistant begins.
    pub add_generation_prompt: Option<bool>,
    /// Whether the answer goes on with the last message.
    pub continue_final_message: Option<bool>,
}

/// `response_format`.
#[derive(Clone, Debug, Deserialize, Serialize, utoipa::ToSchema)]
pub struct ResponseFormat {
    /// Its kind.
    #[serde(rename = "type")]
    pub kind: String,
    /// A schema for `json_object`.
    #[schema(value_type = Option<Object>)]
    pub schema: Option<Value>,
    /// The schema of `json_schema`.
    pub json_schema: Option<NamedSchema>,
}

/// A schema with a name.
#[derive(Clone, Debug, Deserialize, Serialize, utoipa::ToSchema)]
pub struct NamedSchema {
    /// Its name.
    pub name: Option<String>,
    /// The schema.
    #[schema(value_type = Option<Object>)]
    pub schema: Option<Value>,
    /// Ignored: a schema is always kept to.
    pub strict: Option<bool>,
}

impl ResponseFormat {
    /// The schema that answers keep to; `None` for free text.
    ///
    /// # Errors
    /// 400 for another kind, or a schema that is none.
    pub fn schema(&self) -> Result<Option<Value>, ApiError> {
        let object = |v: Value, at: &str| match v {
            v @ (Value::Object(_) | Value::Bool(_)) => Ok(Some(v)),
            _ => Err(ApiError::field(at, format!("{at}: expected a JSON schema"))),
        };
        match self.kind.as_str() {
            "text" => Ok(None),
            "json_object" => {
                object(self.schema.clone().unwrap_or_else(|| json!({})), "response_format.schema")
            }
            "json_schema" => {
                let named = self.json_schema.as_ref().and_then(|s| s.schema.clone());
                let at = "response_format.json_schema.schema";
                object(named.or_else(|| self.schema.clone()).unwrap_or(Value::Null), at)
            }
            other => Err(ApiError::field(
                "response_format.type",
                format!("response_format.type: `{other}`, expected text, json_object or json_schema"),
            )),
        }
    }
}

impl ChatRequest {
    /// In the server's own terms; a schema moves into the fields.
    ///
    /// # Errors
    /// 400 for fields that exclude each other or have no meaning.
    pub fn conversation(&self, fields: &mut Fields) -> Result<Conversation, ApiError> {
        let mut extra = self.chat_template_kwargs.clone().unwrap_or_default();
        if extra.get("enable_thinking").is_some_and(|v| !v.is_boolean()) {
            let at = "chat_template_kwargs.enable_thinking";
            return Err(ApiError::field(at, format!("{at}: expected true or false")));
        }
        set_effort(&mut extra, self.reasoning_effort.as_deref());
        if let Some(schema) = self.response_format.as_ref().map(ResponseFormat::schema).transpose()?.flatten()
        {
            fields.json_schema.get_or_insert(schema);
        }
        let goes_on = self.continue_final_message.unwrap_or(false);
        if goes_on && self.add_generation_prompt == Some(true) {
            let at = "continue_final_message";
            return Err(ApiError::field(
                at,
                "continue_final_message and add_generation_prompt exclude each other",
            ));
        }
        let reads_thoughts = match self.reasoning_format.as_deref() {
            None | Some("auto" | "deepseek" | "deepseek-legacy") => true,
            Some("none") => false,
            Some(other) => {
                let message = format!("reasoning_format: `{other}`, expected auto, none or deepseek");
                return Err(ApiError::field("reasoning_format", message));
            }
        };
        Ok(Conversation {
            messages: self.messages.clone(),
            tools: self.tools.clone().filter(|t| !t.is_null() && t.as_array().is_none_or(|t| !t.is_empty())),
            tool_choice: tool_choice(self.tool_choice.as_ref())?,
            parallel_calls: self.parallel_tool_calls.unwrap_or(true),
            extra,
            add_generation_prompt: goes_on || self.add_generation_prompt.unwrap_or(true),
            reads_thoughts,
        })
    }

    /// How many log probabilities are told of each token.
    fn logprobs(&self) -> Result<Option<usize>, ApiError> {
        let on = self.logprobs.unwrap_or(false);
        match self.top_logprobs {
            Some(_) if !on => Err(ApiError::field("top_logprobs", "top_logprobs needs logprobs to be true")),
            Some(n @ 0..=128) => Ok(Some(n as usize)),
            Some(n) => Err(ApiError::field(
                "top_logprobs",
                format!("Field 'top_logprobs': Value must be between 0 <= value <= 128, but got {n}"),
            )),
            None => Ok(on.then_some(20)),
        }
    }
}

/// The whole path: a generation of a body.
pub fn prepare(app: &Arc<App>, body: &Bytes, caller: &Caller) -> Result<(Generation, Fields), ApiError> {
    let (request, mut fields) = (read::<ChatRequest>(body)?, read::<Fields>(body)?);
    let c = request.conversation(&mut fields)?;
    let logprobs = request.logprobs()?;
    let domain = caller.domain(fields.cache_salt.as_deref());
    Ok((Generation { logprobs, ..app.converse(&c, &fields, domain)? }, fields))
}

/// Answers a conversation.
///
/// # Errors
/// Whatever is wrong with the request, before the first byte of the answer.
pub async fn chat(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let (g, fields) = prepare(&app, &body, &caller)?;
    let form = ChatForm::new(&app, &fields, &g);
    let choices = app.start(g).await?;
    if fields.streams() {
        return Ok(sse(choices, form, app.options.ping));
    }
    let mut wholes = Vec::with_capacity(choices.len());
    let n_prompt = choices[0].n_prompt;
    for choice in choices {
        wholes.push(choice.whole().await?);
    }
    Ok(Json(form.whole(n_prompt, &wholes)).into_response())
}

/// The shape of answers.
struct ChatForm {
    app: Arc<App>,
    id: String,
    created: u64,
    usage: bool,
    each_timings: bool,
    progress: bool,
    logprobs: bool,
    ids: Vec<u32>,
    n_said: usize,
    n_cached: usize,
    ends: Vec<Option<End>>,
}

impl ChatForm {
    fn new(app: &Arc<App>, fields: &Fields, g: &Generation) -> ChatForm {
        ChatForm {
            app: app.clone(),
            id: shape::new_id("chatcmpl-"),
            created: shape::now(),
            usage: fields.includes_usage(),
            each_timings: fields.timings_per_token.unwrap_or(false),
            progress: fields.return_progress.unwrap_or(false),
            logprobs: g.logprobs.is_some(),
            ids: g.ids.clone(),
            n_said: 0,
            n_cached: 0,
            ends: vec![None; g.sampling.n],
        }
    }

    fn timings(&self, end: &End) -> Value {
        shape::timings(&end.timings, &self.ids, self.app.service.text().vocab())
    }

    fn head(&self, object: &str) -> Map<String, Value> {
        let v = json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.app.name,
            "system_fingerprint": self.app.fingerprint,
        });
        v.as_object().cloned().unwrap_or_default()
    }

    fn whole(&self, n_prompt: usize, wholes: &[Whole]) -> Value {
        let vocab = self.app.service.text().vocab();
        let choice = |(i, w): (usize, &Whole)| {
            let mut message = json!({ "role": "assistant", "content": w.output.content });
            if !w.output.reasoning.is_empty() {
                message["reasoning_content"] = w.output.reasoning.as_str().into();
            }
            if !w.output.calls.is_empty() {
                let call = |c: &firth::text::output::ToolCall| {
                    json!({ "type": "function", "id": c.id,
                        "function": { "name": c.name, "arguments": c.arguments } })
                };
                message["tool_calls"] = w.output.calls.iter().map(call).collect();
            }
            let mut v = json!({
                "index": i,
                "finish_reason": shape::finish_reason(w.end.stop, w.end.has_calls),
                "message": message,
            });
            if self.logprobs {
                v["logprobs"] = json!({ "content": shape::logprobs(vocab, &w.logprobs), "refusal": null });
            }
            v
        };
        let mut v = self.head("chat.completion");
        v.insert("choices".into(), wholes.iter().enumerate().map(choice).collect());
        let said = wholes.iter().map(|w| w.end.timings.predicted_n).sum();
        let first = &wholes[0].end;
        v.insert("usage".into(), shape::usage(n_prompt, first.timings.cached_n, said));
        v.insert("timings".into(), self.timings(first));
        Value::Object(v)
    }

    fn chunk(&self, index: usize, delta: Value, finish: Option<&str>) -> Map<String, Value> {
        let mut v = self.head("chat.completion.chunk");
        let choice = json!({ "index": index, "finish_reason": finish, "delta": delta });
        v.insert("choices".into(), json!([choice]));
        v
    }

    /// A part of an answer as a delta; `None` where nothing is shown.
    fn delta(e: OutputEvent) -> Option<Value> {
        Some(match e {
            OutputEvent::Reasoning(text) => json!({ "reasoning_content": text }),
            OutputEvent::Content(text) => json!({ "content": text }),
            OutputEvent::CallStart { index, id, name } => json!({ "tool_calls": [{
                "index": index, "id": id, "type": "function", "function": { "name": name, "arguments": "" }
            }] }),
            OutputEvent::CallArguments { index, delta } => json!({ "tool_calls": [{
                "index": index, "function": { "arguments": delta }
            }] }),
            _ => return None,
        })
    }

    fn write(&mut self, i: usize, d: Delta, out: &mut String) {
        let vocab = self.app.service.text().vocab();
        let mut logprobs = self.logprobs.then(|| shape::logprobs(vocab, &d.logprobs));
        let mut shown = false;
        for delta in d.events.into_iter().filter_map(Self::delta) {
            let mut chunk = self.chunk(i, delta, None);
            if let Some(content) = logprobs.take() {
                chunk["choices"][0]["logprobs"] = json!({ "content": content, "refusal": null });
            }
            if self.each_timings {
                chunk.insert("timings".into(), json!({ "predicted_n": self.n_said }));
            }
            event(None, &Value::Object(chunk), out);
            shown = true;
        }
        if let (Some(content), false) =
            (logprobs.filter(|l| l.as_array().is_some_and(|l| !l.is_empty())), shown)
        {
            let mut chunk = self.chunk(i, json!({ "content": "" }), None);
            chunk["choices"][0]["logprobs"] = json!({ "content": content, "refusal": null });
            event(None, &Value::Object(chunk), out);
        }
    }
}

impl Form for ChatForm {
    fn begin(&mut self, choices: &[Choice], out: &mut String) {
        self.n_cached = choices[0].n_cached;
        for i in 0..choices.len() {
            let chunk = self.chunk(i, json!({ "role": "assistant", "content": null }), None);
            event(None, &Value::Object(chunk), out);
        }
    }

    fn piece(&mut self, i: usize, piece: Piece, choice: &Choice, out: &mut String) {
        match piece {
            Piece::Progress(done) if self.progress && i == 0 => {
                let mut chunk = self.chunk(i, json!({ "role": "assistant", "content": null }), None);
                chunk.insert("prompt_progress".into(), choice.progress(done));
                event(None, &Value::Object(chunk), out);
            }
            Piece::Progress(_) => {}
            Piece::Delta(d) => {
                self.n_said += d.ids.len();
                self.write(i, d, out);
            }
            Piece::End(end) => {
                let mut chunk = self.chunk(i, json!({}), Some(shape::finish_reason(end.stop, end.has_calls)));
                self.ends[i] = Some(end);
                if let (false, true, Some(first)) =
                    (self.usage, self.ends.iter().all(Option::is_some), &self.ends[0])
                {
                    chunk.insert("timings".into(), self.timings(first));
                }
                event(None, &Value::Object(chunk), out);
            }
        }
    }

    fn end(&mut self, out: &mut String) {
        if let (true, Some(first)) = (self.usage, &self.ends[0]) {
            let mut chunk = self.head("chat.completion.chunk");
            chunk.insert("choices".into(), json!([]));
            let said = self.ends.iter().flatten().map(|e| e.timings.predicted_n).sum();
            chunk.insert("usage".into(), shape::usage(self.ids.len(), first.timings.cached_n, said));
            chunk.insert("timings".into(), self.timings(first));
            event(None, &Value::Object(chunk), out);
        }
        out.push_str("data: [DONE]\n\n");
    }

    fn fail(&mut self, e: &ApiError, out: &mut String) {
        event(None, &e.openai(), out);
        out.push_str("data: [DONE]\n\n");
    }
}

/// `POST /v1/chat/completions/input_tokens`.
///
/// # Errors
/// As [`chat`].
pub async fn input_tokens(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let (g, _) = prepare(&app, &body, &caller)?;
    Ok(Json(json!({ "object": "response.input_tokens", "input_tokens": g.ids.len() })))
}
