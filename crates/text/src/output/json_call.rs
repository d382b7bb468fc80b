//! One call whose arguments are written as JSON: an object with name and arguments, or arguments behind a name.

use super::events::{MAX_NAME, Sink};
use super::json::{JsonScan, Scan, is_json, put_control};
use super::section::Step;

/// Which keys an object of a call uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Keys {
    pub name: &'static [&'static str],
    pub arguments: &'static [&'static str],
    pub id: &'static [&'static str],
    /// Only a tool of the request makes a call of an object: nothing else tells it from an answer in JSON.
    pub known_only: bool,
}

pub(super) const KEYS: Keys = Keys {
    name: &["name", "tool_name", "function"],
    arguments: &["arguments", "parameters", "args"],
    id: &["id", "tool_call_id"],
    known_only: false,
};

/// An object `{"name": …, "arguments": …}`, its keys in any order. It begins behind the brace.
#[derive(Debug)]
pub(super) struct ObjectCall {
    keys: Keys,
    state: State,
    /// The key or value under way, as written.
    text: String,
    name: Option<String>,
    id: Option<String>,
    /// Arguments that could not go out as they came.
    arguments: Option<String>,
    has_arguments: bool,
}

#[derive(Debug)]
enum State {
    /// A key; whether `}` may come instead.
    Key(JsonScan, bool),
    Colon(Part),
    Value(JsonScan, Part),
    /// `,` or `}`.
    After,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Name,
    Arguments,
    Id,
    Other,
}

impl ObjectCall {
    pub fn new(keys: Keys) -> ObjectCall {
        let state = State::Key(JsonScan::new(), true);
        ObjectCall {
            keys,
            state,
            text: String::new(),
            name: None,
            id: None,
            arguments: None,
            has_arguments: false,
        }
    }

    pub fn step(&mut self, c: char, sink: &mut Sink) -> Step {
        let blank = c.is_ascii_whitespace();
        match &mut self.state {
            State::Key(..) | State::Colon(_) | State::After if blank && self.text.is_empty() => Step::More,
            State::Key(_, true) if self.text.is_empty() && c == '}' => self.end(sink),
            State::Key(scan, _) => {
                if self.text.is_empty() && c != '"' {
                    return Step::Broken;
                }
                self.text.push(c);
                match scan.step(c) {
                    Scan::More if self.text.len() <= MAX_NAME => Step::More,
                    Scan::Done => self.key(),
                    _ => Step::Broken,
                }
            }
            State::Colon(part) if c == ':' => {
                self.state = State::Value(JsonScan::new(), *part);
                Step::More
            }
            State::Value(scan, part) => {
                let part = *part;
                let step = scan.step(c);
                if self.text.is_empty() && blank {
                    return Step::More;
                }
                match step {
                    Scan::More => self.put(c, part, sink),
                    Scan::Done => match self.put(c, part, sink) {
                        Step::More => self.value(part, sink),
                        step => step,
                    },
                    Scan::Before => match self.value(part, sink) {
                        Step::More => self.step(c, sink),
                        step => step,
                    },
                    Scan::Broken => Step::Broken,
                }
            }
            State::After if c == ',' => {
                self.state = State::Key(JsonScan::new(), false);
                Step::More
            }
            State::After if c == '}' => self.end(sink),
            _ => Step::Broken,
        }
    }

    fn key(&mut self) -> Step {
        let Ok(key) = serde_json::from_str::<String>(&self.text) else { return Step::Broken };
        self.text.clear();
        let is = |keys: &[&str]| keys.contains(&key.as_str());
        let part = match () {
            () if is(self.keys.name) && self.name.is_none() => Part::Name,
            () if is(self.keys.arguments) && !self.has_arguments => Part::Arguments,
            () if is(self.keys.id) => Part::Id,
            () => Part::Other,
        };
        self.has_arguments |= part == Part::Arguments;
        self.state = State::Colon(part);
        Step::More
    }

    /// One more character of a value. Arguments go out at once where they can.
    fn put(&mut self, c: char, part: Part, sink: &mut Sink) -> Step {
        match part {
            Part::Other => {
                self.text.clear();
                self.text.push(c);
            }
            Part::Arguments if self.streams(sink) => {
                let mut piece = String::new();
                put_inside(&mut piece, c, &self.state);
                if self.text.is_empty() {
                    self.text.push(c);
                    let (name, id) = (self.name.clone().unwrap_or_default(), self.id.take());
                    sink.start(&name, id);
                }
                sink.arguments(&piece);
            }
            _ => put_inside(&mut self.text, c, &self.state),
        }
        let limit = if matches!(part, Part::Name | Part::Id) { MAX_NAME } else { usize::MAX };
        if self.text.len() > limit { Step::Broken } else { Step::More }
    }

    /// Whether arguments go out as they come: the name is there, and they are an object.
    fn streams(&self, sink: &Sink) -> bool {
        let object = matches!(&self.state, State::Value(scan, Part::Arguments) if scan.is_object());
        sink.open || (self.name.is_some() && self.text.is_empty() && object)
    }

    /// A value is whole.
    fn value(&mut self, part: Part, sink: &mut Sink) -> Step {
        let text = std::mem::take(&mut self.text);
        match part {
            Part::Name => match serde_json::from_str::<String>(&text) {
                Ok(name) if name.is_empty() => return Step::Broken,
                Ok(name) if self.keys.known_only && sink.tool(&name).is_none() => return Step::Broken,
                Ok(name) => self.name = Some(name),
                // Such as {"function": {"name": …}}: no form that any model was taught.
                Err(_) => return Step::Broken,
            },
            Part::Id => {
                self.id = serde_json::from_str::<String>(&text).ok().or(Some(text));
            }
            Part::Arguments if sink.open => {}
            Part::Arguments => match object_of(text) {
                Some(object) => self.arguments = Some(object),
                None => return Step::Broken,
            },
            Part::Other => {}
        }
        self.state = State::After;
        Step::More
    }

    fn end(&mut self, sink: &mut Sink) -> Step {
        if !sink.open {
            let Some(name) = self.name.take() else { return Step::Broken };
            sink.start(&name, self.id.take());
            sink.arguments(self.arguments.as_deref().unwrap_or("{}"));
        }
        sink.end();
        Step::Done
    }
}

/// Arguments that are an object, one within a string, or nothing.
fn object_of(text: String) -> Option<String> {
    if text.starts_with('{') {
        return Some(text);
    }
    if text == "null" {
        return Some("{}".to_owned());
    }
    let inner = serde_json::from_str::<String>(&text).ok()?;
    match inner.trim() {
        "" => Some("{}".to_owned()),
        inner => (inner.starts_with('{') && is_json(inner)).then(|| inner.to_owned()),
    }
}

/// A raw control character in a string is escaped.
fn put_inside(out: &mut String, c: char, state: &State) {
    match state {
        State::Value(scan, _) if scan.in_text() => put_control(out, c),
        _ => out.push(c),
    }
}

/// Arguments behind a name: text up to a brace, which a function reads, and the object.
#[derive(Debug)]
pub(super) struct HeaderCall {
    /// Name and id.
    read: fn(&str) -> Option<(String, Option<String>)>,
    header: String,
    scan: Option<JsonScan>,
}

impl HeaderCall {
    pub fn new(read: fn(&str) -> Option<(String, Option<String>)>) -> HeaderCall {
        HeaderCall { read, header: String::new(), scan: None }
    }

    /// Of a call that is announced, behind the brace.
    pub fn begun(sink: &mut Sink) -> HeaderCall {
        let mut scan = JsonScan::new();
        scan.step('{');
        sink.arguments("{");
        HeaderCall { read: |_| None, header: String::new(), scan: Some(scan) }
    }

    pub fn step(&mut self, c: char, sink: &mut Sink) -> Step {
        let Some(scan) = &mut self.scan else {
            if c != '{' {
                self.header.push(c);
                return if self.header.len() > 2 * MAX_NAME { Step::Broken } else { Step::More };
            }
            let Some((name, id)) = (self.read)(&self.header) else { return Step::Broken };
            sink.start(&name, id);
            *self = HeaderCall::begun(sink);
            return Step::More;
        };
        let step = scan.step(c);
        let mut piece = String::new();
        match scan.in_text() {
            true => put_control(&mut piece, c),
            false => piece.push(c),
        }
        match step {
            Scan::More => sink.arguments(&piece),
            Scan::Done => {
                sink.arguments(&piece);
                sink.end();
                return Step::Done;
            }
            Scan::Before | Scan::Broken => return Step::Broken,
        }
        Step::More
    }
}
