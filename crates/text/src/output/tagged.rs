//! Calls whose arguments stand between tags, one by one.

use super::events::{MAX_NAME, Sink};
use super::json::{is_json, put_char, put_text};
use super::json_call::HeaderCall;
use super::section::Step;

/// Tags of a call: what begins a name, what ends it, and where what follows begins; empty where that is the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tags {
    /// A name without an end of its own ends at white space or `<`.
    pub call: [&'static str; 3],
    pub call_close: &'static str,
    pub argument: [&'static str; 3],
    pub argument_close: &'static str,
    /// One line break at the start and at the end of a value belongs to the tags.
    pub trim: bool,
    /// The end of the call ends the section.
    pub last: bool,
}

#[derive(Debug)]
pub(super) struct TaggedCall {
    tags: &'static Tags,
    state: State,
    /// Characters that may be the beginning of a tag, or a name.
    held: String,
    name: String,
    key: String,
    n_arguments: usize,
    /// Arguments as one JSON object in place of tags.
    object: Option<HeaderCall>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Name,
    /// Between the end of a name and what follows.
    NameRest,
    /// Between arguments.
    Between,
    Key,
    KeyRest,
    /// A string's value under way; whether its first character has come.
    Text(bool),
    /// Another value under way; it goes out when it is whole.
    Value,
}

impl TaggedCall {
    /// Behind `tags.call[0]`.
    pub fn new(tags: &'static Tags) -> TaggedCall {
        TaggedCall {
            tags,
            state: State::Name,
            held: String::new(),
            name: String::new(),
            key: String::new(),
            n_arguments: 0,
            object: None,
        }
    }

    pub fn step(&mut self, c: char, sink: &mut Sink) -> Step {
        if let Some(object) = &mut self.object {
            let step = object.step(c, sink);
            if step == Step::Done {
                (self.object, self.state) = (None, State::Between);
                return Step::More;
            }
            return step;
        }
        match self.state {
            State::Name if self.tags.call[1].is_empty() && (c.is_whitespace() || c == '<') => {
                self.name = std::mem::take(&mut self.held);
                self.named(c, sink)
            }
            State::Name if self.tags.call[1].is_empty() => {
                self.held.push(c);
                self.short()
            }
            State::Name => match self.until(c, self.tags.call[1]) {
                Some(name) => {
                    self.name = name;
                    if !self.tags.call[2].is_empty() {
                        return self.to(State::NameRest);
                    }
                    self.named('\n', sink)
                }
                None => self.short(),
            },
            State::NameRest => match self.until(c, self.tags.call[2]) {
                Some(_) => self.named('\n', sink),
                None => self.short(),
            },
            State::Between => self.between(c, sink),
            State::Key => match self.until(c, self.tags.argument[1]) {
                Some(key) => {
                    self.key = key;
                    let state =
                        if self.tags.argument[2].is_empty() { State::Text(false) } else { State::KeyRest };
                    self.keyed(state, "", sink)
                }
                None => self.short(),
            },
            State::KeyRest => match self.until(c, self.tags.argument[2]) {
                Some(rest) => self.keyed(State::Text(false), &rest, sink),
                None => self.short(),
            },
            State::Text(began) => self.text(c, began, sink),
            State::Value => match self.until(c, self.tags.argument_close) {
                Some(value) => self.whole(&value, sink),
                None => Step::More,
            },
        }
    }

    /// Whether the text may end here: all arguments are closed.
    pub fn may_end(&self) -> bool {
        self.state == State::Between && self.object.is_none() && self.n_arguments > 0
    }

    fn to(&mut self, state: State) -> Step {
        self.state = state;
        Step::More
    }

    /// Names and attributes are short.
    fn short(&self) -> Step {
        if self.held.len() > MAX_NAME { Step::Broken } else { Step::More }
    }

    /// Adds a character; the text before `end` where that has come.
    fn until(&mut self, c: char, end: &str) -> Option<String> {
        self.held.push(c);
        let text = self.held.strip_suffix(end)?.to_owned();
        self.held.clear();
        Some(text)
    }

    fn named(&mut self, next: char, sink: &mut Sink) -> Step {
        let ok = |c: char| c.is_alphanumeric() || "_-.:/".contains(c);
        if self.name.is_empty() || !self.name.chars().all(ok) {
            return Step::Broken;
        }
        sink.start(&self.name.clone(), None);
        self.state = State::Between;
        self.between(next, sink)
    }

    fn between(&mut self, c: char, sink: &mut Sink) -> Step {
        if self.held.is_empty() && c.is_whitespace() {
            return Step::More;
        }
        if self.held.is_empty() && c == '{' && self.n_arguments == 0 && !self.tags.call[1].is_empty() {
            self.object = Some(HeaderCall::begun(sink));
            self.n_arguments = 1;
            return Step::More;
        }
        self.held.push(c);
        if self.held == self.tags.argument[0] {
            self.held.clear();
            return self.to(State::Key);
        }
        if self.held == self.tags.call_close {
            self.end(sink);
            return if self.tags.last { Step::DoneAll } else { Step::Done };
        }
        let begins = |tag: &str| tag.starts_with(&self.held);
        if begins(self.tags.argument[0]) || begins(self.tags.call_close) {
            return Step::More;
        }
        // A closing tag too many does no harm.
        if self.held.starts_with("</") && self.held.len() < 64 && !self.held[2..].contains(['<', '\n']) {
            if c == '>' {
                self.held.clear();
            }
            return Step::More;
        }
        if begins("</") { Step::More } else { Step::Broken }
    }

    /// The key is there, and attributes behind it.
    fn keyed(&mut self, state: State, attributes: &str, sink: &mut Sink) -> Step {
        if state != State::Text(false) {
            return self.to(state);
        }
        let text = match attributes {
            a if a.contains("string=\"true\"") => true,
            a if a.contains("string=\"false\"") => false,
            _ => sink.tool(&self.name).is_some_and(|t| t.takes_text(&self.key)),
        };
        let mut piece = String::from(if self.n_arguments == 0 { "{" } else { "," });
        put_text(&mut piece, &self.key);
        piece.push(':');
        if text {
            piece.push('"');
        }
        sink.arguments(&piece);
        self.n_arguments += 1;
        self.to(if text { State::Text(false) } else { State::Value })
    }

    /// A string's value goes out as it comes, but for what may be the end.
    fn text(&mut self, c: char, began: bool, sink: &mut Sink) -> Step {
        let mut piece = String::new();
        if !began {
            self.state = State::Text(true);
            if self.tags.trim && c == '\n' {
                return Step::More;
            }
        }
        self.held.push(c);
        let close = self.tags.argument_close;
        let lines = |text: &str| if self.tags.trim && text.starts_with('\n') { 1 } else { 0 };
        while !self.held.is_empty() {
            let rest = &self.held[lines(&self.held)..];
            if rest == close {
                self.held.clear();
                piece.push('"');
                self.state = State::Between;
                break;
            }
            if close.starts_with(rest) {
                break;
            }
            put_char(&mut piece, self.held.remove(0));
        }
        sink.arguments(&piece);
        Step::More
    }

    /// A value that is whole: JSON where it reads as such, else a string.
    fn whole(&mut self, value: &str, sink: &mut Sink) -> Step {
        let value = match self.tags.trim {
            true => value.strip_prefix('\n').unwrap_or(value),
            false => value,
        };
        let value = match self.tags.trim {
            true => value.strip_suffix('\n').unwrap_or(value),
            false => value,
        };
        let mut piece = String::new();
        match value.trim() {
            "True" => piece.push_str("true"),
            "False" => piece.push_str("false"),
            "None" => piece.push_str("null"),
            trimmed if is_json(trimmed) => piece.push_str(trimmed),
            _ => put_text(&mut piece, value),
        }
        sink.arguments(&piece);
        self.to(State::Between)
    }

    /// Ends the call.
    pub fn end(&mut self, sink: &mut Sink) {
        self.held.clear();
        if !sink.open {
            return;
        }
        sink.arguments(if self.n_arguments == 0 { "{}" } else { "}" });
        sink.end();
    }
}
