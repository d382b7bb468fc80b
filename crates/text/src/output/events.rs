//! What a parser tells, and the tools it may tell of.

use firth_sampling::random_u64;
use serde_json::Value;

/// A part of a generated text. Neighbouring parts of one kind are one text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputEvent {
    /// Thoughts.
    Reasoning(String),
    /// The answer.
    Content(String),
    /// A tool call begins; calls have indices 0, 1, …
    CallStart {
        /// Its index.
        index: usize,
        /// Its id: the model's own where its format has one.
        id: String,
        /// The tool.
        name: String,
    },
    /// More of a call's arguments. The pieces of a call join to one JSON object.
    CallArguments {
        /// The call.
        index: usize,
        /// The piece, JSON text.
        delta: String,
    },
    /// A call is complete.
    CallEnd {
        /// The call.
        index: usize,
    },
    /// A call that had begun does not parse: it is void, and its whole text follows as content (as reasoning where it
    /// stood among thoughts).
    CallBroken {
        /// The call.
        index: usize,
    },
}

/// A tool that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// The JSON schema of its arguments; `true` where it has none.
    pub parameters: Value,
}

/// Why a list of tools is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: found {found}, expected {expected}")]
pub struct ToolError {
    /// Where, such as `tools[0].function.name`.
    pub path: String,
    /// What is there.
    pub found: String,
    /// What should be there.
    pub expected: &'static str,
}

impl Tool {
    /// Reads a request's `tools`: `[{"type": "function", "function": {"name", "parameters"}}]`, or the same without the
    /// inner object. Tools of other types are left out.
    ///
    /// # Errors
    /// Where the list has another form; two tools of one name.
    pub fn list(tools: &Value) -> Result<Vec<Tool>, ToolError> {
        let wrong = |path: String, found: &Value, expected| {
            let found = found.to_string().chars().take(40).collect();
            Err(ToolError { path, found, expected })
        };
        let Some(items) = tools.as_array() else { return wrong("tools".into(), tools, "an array") };
        let mut list: Vec<Tool> = Vec::new();
        for (i, item) in items.iter().enumerate() {
            if item.get("type").is_some_and(|kind| kind != "function") {
                continue;
            }
            let (function, path) = match item.get("function") {
                Some(function) => (function, format!("tools[{i}].function")),
                None => (item, format!("tools[{i}]")),
            };
            let name = match function.get("name") {
                Some(Value::String(name)) if !name.is_empty() && name.len() <= MAX_NAME => name.clone(),
                name => {
                    return wrong(
                        format!("{path}.name"),
                        name.unwrap_or(&Value::Null),
                        "1 to 256 bytes of text",
                    );
                }
            };
            if list.iter().any(|t| t.name == name) {
                return wrong(format!("{path}.name"), &Value::String(name), "a name that no other tool has");
            }
            let parameters = match function.get("parameters").or_else(|| function.get("input_schema")) {
                None | Some(Value::Null) => Value::Bool(true),
                Some(schema @ (Value::Object(_) | Value::Bool(_))) => schema.clone(),
                Some(other) => return wrong(format!("{path}.parameters"), other, "a JSON schema"),
            };
            list.push(Tool { name, parameters });
        }
        Ok(list)
    }

    /// Whether an argument can be nothing but a string.
    pub(crate) fn takes_text(&self, argument: &str) -> bool {
        is_text(&self.parameters["properties"][argument])
    }
}

/// Bytes of a tool's name.
pub(super) const MAX_NAME: usize = 256;

fn is_text(schema: &Value) -> bool {
    if let Some(kind) = schema.get("type") {
        return kind == "string" || kind.as_array().is_some_and(|k| k.len() == 1 && k[0] == "string");
    }
    let all = |key: &str, is: fn(&Value) -> bool| {
        schema.get(key).and_then(Value::as_array).is_some_and(|list| !list.is_empty() && list.iter().all(is))
    };
    schema.get("const").is_some_and(Value::is_string)
        || all("enum", Value::is_string)
        || all("anyOf", is_text)
        || all("oneOf", is_text)
}

/// Gathers events, and numbers calls.
#[derive(Debug)]
pub(super) struct Sink {
    pub events: Vec<OutputEvent>,
    pub tools: Vec<Tool>,
    seed: u64,
    /// Characters of an id.
    id_len: u32,
    calls: usize,
    /// The call under way has been announced.
    pub open: bool,
}

impl Sink {
    pub fn new(tools: Vec<Tool>, seed: u64, id_len: u32) -> Sink {
        Sink { events: Vec::new(), tools, seed, id_len, calls: 0, open: false }
    }

    /// Calls that have ended, well or not.
    pub fn n_calls(&self) -> usize {
        self.calls
    }

    pub fn tool(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|t| t.name == name)
    }

    pub fn content(&mut self, text: &str) {
        match self.events.last_mut() {
            _ if text.is_empty() => {}
            Some(OutputEvent::Content(last)) => last.push_str(text),
            _ => self.events.push(OutputEvent::Content(text.to_owned())),
        }
    }

    pub fn reasoning(&mut self, text: &str) {
        match self.events.last_mut() {
            _ if text.is_empty() => {}
            Some(OutputEvent::Reasoning(last)) => last.push_str(text),
            _ => self.events.push(OutputEvent::Reasoning(text.to_owned())),
        }
    }

    /// Announces a call. Without an id of the model's own, one is made of the seed and the index.
    pub fn start(&mut self, name: &str, id: Option<String>) {
        debug_assert!(!self.open);
        let index = self.calls;
        let id = id.filter(|id| !id.is_empty()).unwrap_or_else(|| call_id(self.seed, index, self.id_len));
        self.events.push(OutputEvent::CallStart { index, id, name: name.to_owned() });
        self.open = true;
    }

    pub fn arguments(&mut self, text: &str) {
        let call = self.calls;
        match self.events.last_mut() {
            _ if text.is_empty() => {}
            Some(OutputEvent::CallArguments { index, delta }) if *index == call => delta.push_str(text),
            _ => self.events.push(OutputEvent::CallArguments { index: call, delta: text.to_owned() }),
        }
    }

    pub fn end(&mut self) {
        debug_assert!(self.open);
        self.events.push(OutputEvent::CallEnd { index: self.calls });
        (self.open, self.calls) = (false, self.calls + 1);
    }

    pub fn broken(&mut self) {
        if std::mem::take(&mut self.open) {
            self.events.push(OutputEvent::CallBroken { index: self.calls });
            self.calls += 1;
        }
    }
}

/// Letters and digits.
fn call_id(seed: u64, index: usize, len: u32) -> String {
    const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    /// Of [`random_u64`]: no draw of the sampler has it.
    const PURPOSE: u32 = 0x1D;
    let key = [seed as u32, (seed >> 32) as u32];
    let letter = |i: u32| {
        let bits = random_u64(key, index as u32, i, PURPOSE);
        char::from(LETTERS[((u128::from(bits) * 62) >> 64) as usize])
    };
    (0..len).map(letter).collect()
}
