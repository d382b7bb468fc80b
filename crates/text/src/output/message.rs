//! A whole answer, for those who do not stream.

use super::events::OutputEvent;

/// A tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// Its id.
    pub id: String,
    /// The tool.
    pub name: String,
    /// Its arguments, a JSON object.
    pub arguments: String,
}

/// Thoughts, answer and calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Thoughts; empty where there were none.
    pub reasoning: String,
    /// The answer.
    pub content: String,
    /// The calls that parse, in order.
    pub calls: Vec<ToolCall>,
    /// The index in `calls` of a call under way, and its number among events.
    open: Option<(usize, usize)>,
}

impl Output {
    /// The answer of all events.
    pub fn of(events: impl IntoIterator<Item = OutputEvent>) -> Output {
        let mut output = Output::default();
        events.into_iter().for_each(|e| output.add(e));
        output
    }

    /// Adds an event.
    pub fn add(&mut self, event: OutputEvent) {
        match event {
            OutputEvent::Reasoning(text) => self.reasoning.push_str(&text),
            OutputEvent::Content(text) => self.content.push_str(&text),
            OutputEvent::CallStart { index, id, name } => {
                self.open = Some((self.calls.len(), index));
                self.calls.push(ToolCall { id, name, arguments: String::new() });
            }
            OutputEvent::CallArguments { index, delta } => {
                if let Some((at, _)) = self.open.filter(|(_, number)| *number == index) {
                    self.calls[at].arguments.push_str(&delta);
                }
            }
            OutputEvent::CallEnd { .. } => self.open = None,
            OutputEvent::CallBroken { .. } => {
                if let Some((at, _)) = self.open.take() {
                    self.calls.truncate(at);
                }
            }
        }
    }
}
