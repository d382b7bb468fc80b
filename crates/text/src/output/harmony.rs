//! Messages with channels and recipients, as gpt-oss writes them.

use super::events::{MAX_NAME, Sink};
use super::json_call::HeaderCall;
use super::section::Step;

const MARKS: [&str; 7] =
    ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>", "<|constrain|>"];
/// Bytes of a message's header.
const MAX_HEADER: usize = 2 * MAX_NAME;

#[derive(Debug)]
pub(super) struct Harmony {
    state: State,
    /// What may be the beginning of a mark.
    held: String,
    /// Role, channel and recipient of the message, with the marks among them.
    header: String,
    /// The text of a call.
    raw: String,
}

#[derive(Debug)]
enum State {
    Header,
    Reasoning,
    Content,
    /// A call: before its arguments, or among them.
    Call(Option<HeaderCall>),
    /// A call is over; white space may follow.
    Called,
    /// Between messages.
    Between,
}

impl Harmony {
    /// The last message of the prompt is the one that the answer goes on with.
    pub fn new(prompt: &str, sink: &mut Sink) -> Harmony {
        let mut harmony =
            Harmony { state: State::Content, held: String::new(), header: String::new(), raw: String::new() };
        if let Some(at) = prompt.rfind(MARKS[0]) {
            let calls = std::mem::take(&mut sink.tools);
            harmony.state = State::Header;
            prompt[at + MARKS[0].len()..].chars().for_each(|c| harmony.step(c, sink));
            sink.events.clear();
            sink.tools = calls;
        }
        harmony
    }

    pub fn is_mark(text: &str) -> bool {
        MARKS.contains(&text)
    }

    pub fn step(&mut self, c: char, sink: &mut Sink) {
        self.held.push(c);
        while !self.held.is_empty() {
            if MARKS.contains(&self.held.as_str()) {
                let mark = std::mem::take(&mut self.held);
                return self.mark(&mark, sink);
            }
            if MARKS.iter().any(|m| m.starts_with(&self.held)) {
                return;
            }
            let c = self.held.remove(0);
            self.put(c, sink);
        }
    }

    fn mark(&mut self, mark: &str, sink: &mut Sink) {
        match (mark, &self.state) {
            ("<|message|>", State::Header) => self.body(sink),
            ("<|message|>", _) => {}
            ("<|start|>", _) => {
                self.close(sink);
                self.state = State::Header;
            }
            ("<|channel|>" | "<|constrain|>", State::Header) => self.header.push_str(mark),
            // A message that was not closed.
            ("<|channel|>", _) => {
                self.close(sink);
                self.header.push_str(mark);
                self.state = State::Header;
            }
            ("<|constrain|>", _) => {}
            _ => {
                self.close(sink);
                self.state = State::Between;
            }
        }
    }

    /// The header is there.
    fn body(&mut self, sink: &mut Sink) {
        let channel = self.header.split_once("<|channel|>").map_or("", |(_, rest)| rest.trim_start());
        let recipient = self.header.split_once("to=").map(|(_, rest)| {
            let end = rest.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(rest.len());
            &rest[..end]
        });
        let called =
            recipient.filter(|_| !sink.tools.is_empty()).and_then(|to| match to.strip_prefix("functions.") {
                Some(name) => Some(name),
                None => sink.tool(to).map(|t| t.name.as_str()),
            });
        self.state = match called.map(str::to_owned) {
            Some(name) if !name.is_empty() => {
                sink.start(&name, None);
                State::Call(None)
            }
            _ if channel.starts_with("analysis") => State::Reasoning,
            _ => State::Content,
        };
        self.header.clear();
        self.raw.clear();
    }

    fn put(&mut self, c: char, sink: &mut Sink) {
        let mut text = [0; 4];
        let text = c.encode_utf8(&mut text);
        match &mut self.state {
            State::Header => {
                self.header.push(c);
                if self.header.len() > MAX_HEADER {
                    let header = std::mem::take(&mut self.header);
                    sink.content(&header);
                    self.state = State::Content;
                }
            }
            State::Reasoning => sink.reasoning(text),
            State::Content => sink.content(text),
            State::Called | State::Between if c.is_whitespace() => {}
            State::Called | State::Between => {
                self.state = State::Content;
                sink.content(text);
            }
            State::Call(arguments) => {
                if arguments.is_none() && c.is_whitespace() {
                    return;
                }
                self.raw.push(c);
                let step = match arguments {
                    Some(arguments) => arguments.step(c, sink),
                    None if c == '{' => {
                        *arguments = Some(HeaderCall::begun(sink));
                        Step::More
                    }
                    None => Step::Broken,
                };
                match step {
                    Step::More => {}
                    Step::Done | Step::DoneAll => self.state = State::Called,
                    Step::Broken => self.broken(sink),
                }
            }
        }
    }

    fn broken(&mut self, sink: &mut Sink) {
        sink.broken();
        sink.content(&std::mem::take(&mut self.raw));
        self.state = State::Content;
    }

    /// The end of a message, whatever it is.
    fn close(&mut self, sink: &mut Sink) {
        match &self.state {
            // A call without arguments.
            State::Call(None) => {
                sink.arguments("{}");
                sink.end();
            }
            State::Call(_) => self.broken(sink),
            State::Header => {
                let words = self.header.trim_start().strip_prefix("assistant").unwrap_or(&self.header);
                if !words.trim().is_empty() {
                    sink.content(words);
                }
            }
            _ => {}
        }
        self.header.clear();
    }

    pub fn finish(&mut self, sink: &mut Sink) {
        for c in std::mem::take(&mut self.held).chars() {
            self.put(c, sink);
        }
        // A header under way at the end says nothing, but words without a mark are an answer.
        if matches!(self.state, State::Header) && self.header.contains('<') {
            self.header.clear();
        }
        self.close(sink);
    }
}
