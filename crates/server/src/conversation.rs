//! A conversation in the server's own terms, and the prompt that the model's template makes of it.

use std::sync::Arc;

use firth::text::output::Tool;
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::error::ApiError;
use crate::fields::{Fields, Sampling};
use crate::generation::{Generation, Reading};
use crate::structured::Rule;

/// Messages and how to go on from them.
#[derive(Clone, Debug)]
pub struct Conversation {
    /// Messages in OpenAI's form, as a client sent them or a dialect translated them.
    pub messages: Vec<Value>,
    /// Tools in OpenAI's form.
    pub tools: Option<Value>,
    /// Which may or must be called.
    pub tool_choice: ToolChoice,
    /// Whether an answer that must call may call several times.
    pub parallel_calls: bool,
    /// Variables for the template.
    pub extra: Map<String, Value>,
    /// Whether the prompt ends where the assistant begins.
    pub add_generation_prompt: bool,
    /// Whether thoughts are told from the answer.
    pub reads_thoughts: bool,
}

impl Default for Conversation {
    fn default() -> Self {
        Conversation {
            messages: Vec::new(),
            tools: None,
            tool_choice: ToolChoice::Auto,
            parallel_calls: true,
            extra: Map::new(),
            add_generation_prompt: true,
            reads_thoughts: true,
        }
    }
}

/// Whether tools are called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolChoice {
    /// As the model likes.
    Auto,
    /// None.
    None,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}

/// A rendered conversation.
pub struct Rendered {
    /// The prompt.
    pub text: String,
    /// Whether it starts with the start token's text.
    pub has_bos: bool,
    /// The tools that the answer may call.
    pub tools: Vec<Tool>,
}

impl App {
    /// The prompt's text.
    ///
    /// # Errors
    /// Messages without meaning, or that the template refuses.
    pub fn render(&self, c: &Conversation) -> Result<Rendered, ApiError> {
        let mut messages = Vec::with_capacity(c.messages.len());
        for (i, m) in c.messages.iter().enumerate() {
            messages.push(message(i, m)?);
        }
        if messages.is_empty() {
            return Err(ApiError::field("messages", "messages is empty, expected at least one"));
        }
        let prefill = prefill(&mut messages, c.add_generation_prompt)?;
        let wants_tools = c.tool_choice != ToolChoice::None;
        let all = match &c.tools {
            Some(tools) if wants_tools => {
                Tool::list(tools).map_err(|e| ApiError::field(e.path.clone(), e.to_string()))?
            }
            _ => Vec::new(),
        };
        if let ToolChoice::Named(name) = &c.tool_choice
            && !all.iter().any(|t| t.name == *name)
        {
            return Err(ApiError::field("tool_choice", format!("tool_choice: no tool is named `{name}`")));
        }
        if c.tool_choice == ToolChoice::Required && all.is_empty() {
            return Err(ApiError::field(
                "tool_choice",
                "tool_choice: a call is required, but there are no tools",
            ));
        }
        let shown: Option<Value> = c.tools.as_ref().filter(|_| !all.is_empty()).map(functions);
        let messages = Value::Array(messages);
        let text = self.service.text();
        let rendered = text.render(&messages, shown.as_ref(), c.add_generation_prompt, &c.extra)?;
        Ok(Rendered { text: rendered.text + &prefill, has_bos: rendered.has_bos, tools: all })
    }

    /// The generation that answers a conversation.
    ///
    /// # Errors
    /// As [`render`](Self::render), and what the fields ask for and cannot have.
    pub fn converse(
        self: &Arc<App>,
        c: &Conversation,
        fields: &Fields,
        domain: u64,
    ) -> Result<Generation, ApiError> {
        let r = self.render(c)?;
        let text = self.service.text();
        let rendered = firth::text::Rendered { text: r.text, has_bos: r.has_bos };
        let ids = text.rendered_prompt(&rendered)?.ids;
        let sampling = self.sampling(fields)?;
        let at = rendered.text.len().saturating_sub(256);
        let at = (at..).find(|i| rendered.text.is_char_boundary(*i)).unwrap_or(0);
        let tail = rendered.text[at..].to_owned();
        let reads = c.reads_thoughts || !r.tools.is_empty();
        let rule = self.rule(c, fields, &tail, &r.tools)?;
        let reading = reads.then_some(Reading { format: self.format, tail, tools: r.tools });
        Ok(Generation { domain, rule, reading, ..Generation::new(ids, sampling) })
    }

    /// What the answer must be: calls where they must come, else what the fields say, behind thoughts.
    fn rule(
        &self,
        c: &Conversation,
        fields: &Fields,
        tail: &str,
        tools: &[Tool],
    ) -> Result<Option<Rule>, ApiError> {
        let vocab = self.service.text().vocab();
        let calls = Rule::calls(self.format, vocab, tail, tools, &c.tool_choice, c.parallel_calls)?;
        let Some(rule) = Rule::of(fields)? else { return Ok(calls) };
        if fields.grammar.is_some() && !tools.is_empty() {
            return Err(ApiError::field("grammar", "a grammar and tools exclude each other"));
        }
        match calls {
            Some(calls) => Ok(Some(calls)),
            None => Ok(Some(rule.behind_thoughts(self.format, vocab, tail)?)),
        }
    }

    /// How to sample; what the fields leave open is as the server's options say.
    ///
    /// # Errors
    /// As [`Fields::sampling`].
    pub fn sampling(&self, fields: &Fields) -> Result<Sampling, ApiError> {
        let most = self.service.capacity().min(128);
        let mut s = fields.sampling(self.service.text().vocab(), &self.defaults, most)?;
        if s.stop.is_empty() {
            s.stop.clone_from(&self.options.stop);
        }
        s.ignore_eos = fields.ignore_eos.unwrap_or(self.options.ignore_eos);
        if fields.reasoning_budget_tokens.is_none() {
            s.budget.clone_from(&self.options.thoughts);
        }
        if let (None, Some(seed)) = (fields.seed, self.options.seed) {
            s.params.seed = seed;
        }
        Ok(s)
    }
}

/// The tools that a template is shown: functions, in OpenAI's nested form.
fn functions(tools: &Value) -> Value {
    let items = tools.as_array().map_or(&[][..], |t| &t[..]);
    let is_function = |t: &&Value| t.get("type").is_none_or(|kind| kind == "function");
    let nested = |t: &Value| match t.get("function") {
        Some(_) => t.clone(),
        None => {
            let mut f = t.as_object().cloned().unwrap_or_default();
            f.shift_remove("type");
            json!({ "type": "function", "function": f })
        }
    };
    items.iter().filter(is_function).map(nested).collect()
}

/// A message as templates want it: content as text, arguments of calls as objects.
fn message(i: usize, m: &Value) -> Result<Value, ApiError> {
    let at = |field: &str| format!("messages[{i}].{field}");
    let wrong = |field: &str, expected: &str| {
        Err(ApiError::field(at(field), format!("{}: expected {expected}", at(field))))
    };
    let Some(m) = m.as_object() else {
        return Err(ApiError::field(format!("messages[{i}]"), format!("messages[{i}]: expected an object")));
    };
    let Some(role) = m.get("role").and_then(Value::as_str) else { return wrong("role", "text") };
    let mut out = m.clone();
    let calls = m.get("tool_calls").filter(|c| !c.is_null());
    match m.get("content") {
        None | Some(Value::Null) if role == "assistant" && (calls.is_some() || m.contains_key("content")) => {
            out.insert("content".into(), "".into());
        }
        None | Some(Value::Null) => return wrong("content", "text or a list of parts"),
        Some(Value::String(_)) => {}
        Some(Value::Array(parts)) => {
            out.insert("content".into(), text_of(i, parts)?.into());
        }
        Some(_) => return wrong("content", "text or a list of parts"),
    }
    if let Some(calls) = calls {
        let Some(list) = calls.as_array() else { return wrong("tool_calls", "a list") };
        let mut fixed = Vec::with_capacity(list.len());
        for (j, call) in list.iter().enumerate() {
            let name = format!("tool_calls[{j}].function");
            let Some(function) = call.get("function").and_then(Value::as_object) else {
                return wrong(&name, "an object");
            };
            if !function.get("name").is_some_and(Value::is_string) {
                return wrong(&format!("{name}.name"), "text");
            }
            let mut call = call.clone();
            // Templates print arguments as JSON; text would be quoted once more.
            if let Some(text) = function.get("arguments").and_then(Value::as_str)
                && let Ok(object @ Value::Object(_)) = serde_json::from_str::<Value>(text)
            {
                call["function"]["arguments"] = object;
            }
            fixed.push(call);
        }
        match fixed.is_empty() {
            true => out.shift_remove("tool_calls"),
            false => out.insert("tool_calls".into(), fixed.into()),
        };
    }
    Ok(Value::Object(out))
}

/// The text of a list of parts.
fn text_of(i: usize, parts: &[Value]) -> Result<String, ApiError> {
    let mut texts = Vec::new();
    for (j, part) in parts.iter().enumerate() {
        let at = format!("messages[{i}].content[{j}]");
        let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
        match (kind, part.get("text").and_then(Value::as_str)) {
            ("text" | "input_text" | "output_text" | "refusal", Some(text)) => texts.push(text),
            ("image_url" | "input_image" | "image", _) => {
                return Err(ApiError::field(at, "image input is not supported by this model"));
            }
            ("input_audio" | "input_video" | "video_url" | "input_file", _) => {
                return Err(ApiError::field(at, format!("{kind} is not supported by this model")));
            }
            _ => return Err(ApiError::field(format!("{at}.type"), "unsupported content[].type")),
        }
    }
    Ok(texts.join("\n"))
}

/// Takes a last message of the assistant, which the answer goes on with; its text.
fn prefill(messages: &mut Vec<Value>, goes_on: bool) -> Result<String, ApiError> {
    let is_assistant = |m: &Value| m["role"] == "assistant";
    if !goes_on || messages.len() < 2 || !messages.last().is_some_and(is_assistant) {
        return Ok(String::new());
    }
    let last = messages.len() - 1;
    let wrong = |what: &str| Err(ApiError::field(format!("messages[{last}]"), what.to_owned()));
    if is_assistant(&messages[last - 1]) {
        return wrong("two messages of the assistant at the end cannot both be gone on with");
    }
    if messages[last].get("tool_calls").is_some() {
        return wrong("an answer cannot go on from a message with tool calls");
    }
    let m = messages.pop().expect("it was just looked at");
    Ok(m["content"].as_str().unwrap_or_default().to_owned())
}

/// What templates are told of how hard to think: `none` turns thinking off.
pub fn set_effort(extra: &mut Map<String, Value>, effort: Option<&str>) {
    match effort {
        None => {}
        Some("none") => drop(extra.insert("enable_thinking".into(), false.into())),
        Some(effort) => drop(extra.insert("reasoning_effort".into(), effort.into())),
    }
}

/// Reads `tool_choice` of OpenAI's dialects.
///
/// # Errors
/// 400 for any other form.
pub fn tool_choice(v: Option<&Value>) -> Result<ToolChoice, ApiError> {
    let wrong = || {
        let expected = "expected auto, none, required, or a function by name";
        Err(ApiError::field("tool_choice", format!("tool_choice: {expected}")))
    };
    match v {
        None | Some(Value::Null) => Ok(ToolChoice::Auto),
        Some(Value::String(s)) => match s.as_str() {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" | "any" => Ok(ToolChoice::Required),
            _ => wrong(),
        },
        Some(Value::Object(o)) => {
            let name = o.get("function").map_or(o.get("name"), |f| f.get("name"));
            match name.and_then(Value::as_str) {
                Some(name) => Ok(ToolChoice::Named(name.into())),
                None => wrong(),
            }
        }
        _ => wrong(),
    }
}
