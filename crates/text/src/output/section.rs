//! A stretch of calls, from the mark that opens it to its end.

use super::events::Sink;
use super::json_call::{HeaderCall, Keys, ObjectCall};
use super::literal::{LiteralCall, Spelling};
use super::tagged::{TaggedCall, Tags};

/// What one more character made of a call or a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It goes on.
    More,
    /// It is over; the character was its last.
    Done,
    /// The call is over, and the section with it.
    DoneAll,
    /// The character fits nowhere. What came since the last whole call is text.
    Broken,
}

/// How a call is written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Body {
    /// A JSON object with a name and arguments.
    Object(Keys),
    /// Tags, if the text begins with the first of them. A first tag that is empty fits a letter.
    Tagged(&'static Tags),
    /// A name, and a JSON object of arguments. A function reads name and id of what stands before the brace.
    Header(fn(&str) -> Option<(String, Option<String>)>),
    /// A call in a language.
    Literal(Spelling),
}

/// Marks around calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Section {
    /// Any of them opens a section. One that is also the beginning of a body is part of it.
    pub open: &'static [&'static str],
    /// Any of them closes it. Where there is none, the section ends where something else begins.
    pub close: &'static [&'static str],
    /// What stands between calls besides white space and commas.
    pub between: &'static [&'static str],
    pub bodies: &'static [Body],
}

#[derive(Debug)]
enum Call {
    Object(ObjectCall),
    Tagged(TaggedCall),
    Header(HeaderCall),
    Literal(LiteralCall),
}

impl Body {
    /// Whether the text begins a call: `Some(true)`, may come to: `Some(false)`, or never will.
    fn fits(&self, text: &str) -> Option<bool> {
        let word = |text: &str| text.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        match self {
            Body::Object(_) => (text == "{").then_some(true),
            Body::Tagged(tags) if tags.call[0].is_empty() => word(text).then_some(true),
            Body::Tagged(tags) => tags.call[0].starts_with(text).then_some(text == tags.call[0]),
            Body::Header(_) | Body::Literal(_) => word(text).then_some(true),
        }
    }

    /// The call, and whether the text that began it is part of it.
    fn begin(&self) -> (Call, bool) {
        match self {
            Body::Object(keys) => (Call::Object(ObjectCall::new(*keys)), false),
            Body::Tagged(tags) => (Call::Tagged(TaggedCall::new(tags)), tags.call[0].is_empty()),
            Body::Header(read) => (Call::Header(HeaderCall::new(*read)), true),
            Body::Literal(spelling) => (Call::Literal(LiteralCall::new(*spelling)), true),
        }
    }
}

impl Call {
    fn step(&mut self, c: char, sink: &mut Sink) -> Step {
        match self {
            Call::Object(call) => call.step(c, sink),
            Call::Tagged(call) => call.step(c, sink),
            Call::Header(call) => call.step(c, sink),
            Call::Literal(call) => call.step(c, sink),
        }
    }
}

/// A section under way.
#[derive(Debug)]
pub(super) struct Calls {
    section: &'static Section,
    call: Option<Call>,
    /// What stands between calls and may be the beginning of a mark.
    held: String,
    n_calls: usize,
}

impl Calls {
    /// Behind the mark `open`.
    pub fn new(section: &'static Section, open: &str, sink: &mut Sink) -> Calls {
        let mut calls = Calls { section, call: None, held: String::new(), n_calls: 0 };
        if section
            .bodies
            .iter()
            .any(|b| matches!(b, Body::Object(_) | Body::Tagged(_)) && b.fits(open) == Some(true))
        {
            for c in open.chars() {
                calls.step(c, sink);
            }
        }
        calls
    }

    pub fn step(&mut self, c: char, sink: &mut Sink) -> Step {
        if let Some(call) = &mut self.call {
            let step = call.step(c, sink);
            if matches!(step, Step::Done | Step::DoneAll) {
                (self.call, self.n_calls) = (None, self.n_calls + 1);
            }
            return match step {
                Step::Done => Step::More,
                Step::DoneAll => Step::Done,
                step => step,
            };
        }
        let list = match c {
            '[' => self.n_calls == 0,
            ',' | ';' | ']' => self.n_calls > 0,
            c => c.is_whitespace(),
        };
        if self.held.is_empty() && list && !self.marks().any(|m| m.starts_with(c)) {
            return Step::More;
        }
        self.held.push(c);
        self.held()
            .map(|begun| if let Some(text) = begun { self.begin(&text, sink) } else { Step::More })
            .unwrap_or_else(|step| step)
    }

    /// Whether a call has been read.
    pub fn any(&self) -> bool {
        self.n_calls > 0
    }

    fn marks(&self) -> impl Iterator<Item = &'static str> {
        let Section { open, close, between, .. } = self.section;
        [*close, *between, *open].into_iter().flatten().copied()
    }

    /// Looks at what is held: goes on, begins a call with a text, or ends.
    fn held(&mut self) -> Result<Option<String>, Step> {
        if self.section.close.contains(&self.held.as_str()) {
            return Err(Step::Done);
        }
        let bodies = || self.section.bodies.iter();
        if bodies().any(|b| b.fits(&self.held) == Some(true)) {
            return Ok(Some(std::mem::take(&mut self.held)));
        }
        let mark = self.marks().any(|m| m == self.held);
        if mark {
            self.held.clear();
        }
        let begins =
            self.marks().any(|m| m.starts_with(&self.held)) || bodies().any(|b| b.fits(&self.held).is_some());
        if mark || begins {
            return Ok(None);
        }
        // A bracket that began no mark begins a list.
        if self.n_calls == 0 && self.held.len() > 1 && self.held.starts_with('[') {
            self.held.remove(0);
            return self.held();
        }
        Err(Step::Broken)
    }

    fn begin(&mut self, text: &str, sink: &mut Sink) -> Step {
        let body =
            self.section.bodies.iter().find(|b| b.fits(text) == Some(true)).expect("it has just fitted");
        let (mut call, part) = body.begin();
        let mut step = Step::More;
        if part {
            text.chars().for_each(|c| step = call.step(c, sink));
        }
        self.call = Some(call);
        step
    }

    /// Whether the text may end here, with what closes the section missing; ends a call that may end.
    pub fn finish(&mut self, sink: &mut Sink) -> bool {
        match &mut self.call {
            Some(Call::Tagged(call)) if call.may_end() => {
                call.end(sink);
                true
            }
            Some(_) => false,
            None => self.n_calls > 0,
        }
    }
}
