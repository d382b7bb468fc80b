//! Text as it is generated, split into thoughts, answer and calls.

use super::events::{OutputEvent, Sink, Tool};
use super::format::{Family, THOUGHTS};
use super::harmony::Harmony;
use super::section::{Calls, Section, Step};
use crate::vocab::Vocab;

/// How a model's answers are read: its family and the marks around its thoughts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputFormat {
    family: Family,
    thoughts: Option<[&'static str; 2]>,
    ticks: bool,
}

impl Default for OutputFormat {
    fn default() -> Self {
        OutputFormat::PLAIN
    }
}

impl OutputFormat {
    /// Answers of a model without a template: text and nothing else.
    pub const PLAIN: OutputFormat = OutputFormat { family: Family::Plain, thoughts: None, ticks: false };

    /// The format of a chat template, by the marks that its source names ([`Family::detect`]).
    pub fn detect(template: &str) -> OutputFormat {
        let family = Family::detect(template);
        // Some templates only cut thoughts away, and some end their prompt with the closing mark.
        let thoughts =
            THOUGHTS.into_iter().find(|[open, close]| template.contains(close) || template.contains(open));
        OutputFormat {
            family,
            thoughts: thoughts.filter(|_| family != Family::Harmony),
            ticks: template.contains("```json"),
        }
    }

    /// How calls are written.
    pub fn family(&self) -> Family {
        self.family
    }

    /// The marks around thoughts, where the family has such.
    pub fn thoughts(&self) -> Option<[&'static str; 2]> {
        self.thoughts
    }

    /// Whether arguments stand in a block of three ticks.
    pub(crate) fn ticks(&self) -> bool {
        self.ticks
    }

    /// Whether thoughts are told from the answer.
    pub fn has_reasoning(&self) -> bool {
        self.thoughts.is_some() || self.family == Family::Harmony
    }

    /// Whether the model's template shows how tools are called.
    pub fn has_tools(&self) -> bool {
        self.family != Family::Plain
    }

    /// Whether a prompt ends within thoughts that its template has opened.
    pub fn opens_thoughts(&self, prompt: &str) -> bool {
        let prompt = prompt.trim_end();
        self.thoughts.is_some_and(|[open, _]| prompt.ends_with(open))
    }

    /// What a token adds to the text that a parser reads: also a control token's text where it is a mark of the format.
    pub fn piece<'v>(&self, vocab: &'v Vocab, id: u32) -> &'v [u8] {
        let shown = vocab.piece(id, false);
        if !shown.is_empty() {
            return shown;
        }
        let hidden = vocab.piece(id, true);
        let mark = std::str::from_utf8(hidden).is_ok_and(|text| self.is_mark(text));
        if mark { hidden } else { shown }
    }

    fn is_mark(&self, text: &str) -> bool {
        // Marks between names and arguments, which the tables know as parts of headers.
        const HEADERS: [&str; 8] = [
            "[ARGS]",
            "[CALL_ID]",
            "<｜tool▁sep｜>",
            "<|tool_call_argument_begin|>",
            "<|\"|>",
            "<escape>",
            "<arg_key>",
            "<arg_value>",
        ];
        if text.is_empty() || self.family == Family::Plain && self.thoughts.is_none() {
            return false;
        }
        let section = self.family.section();
        let lists = section.map(|s| [s.open, s.close, s.between]).into_iter().flatten().flatten();
        let mut marks = lists.chain(&HEADERS).copied();
        let thought = self.thoughts.is_some_and(|t| t.iter().any(|m| *m == text || m.starts_with(text)));
        let closing = ["</arg_key>", "</arg_value>", "</tool_call>"].contains(&text);
        thought
            || closing
            || marks.any(|m| m == text)
            || (self.family == Family::Harmony && Harmony::is_mark(text))
    }
}

/// Splits the text of an answer as it comes.
///
/// However the text is cut into pieces, the events are the same but for where their texts are cut. A call goes out as it
/// comes. No text is lost: what looks like a call and does not parse comes back as content (among thoughts: as
/// reasoning), and a call that had been announced is then taken back by [`OutputEvent::CallBroken`]. Only white space
/// around thoughts and calls belongs to nobody.
#[derive(Debug)]
pub struct OutputParser {
    sink: Sink,
    thoughts: Option<[&'static str; 2]>,
    section: Option<&'static Section>,
    family: Family,
    harmony: Option<Harmony>,
    mode: Mode,
    /// What may be the beginning of a mark.
    held: String,
    /// White space that belongs to what follows, if that is of the same kind.
    blanks: String,
    /// The text of a section since its last whole call.
    raw: String,
    /// Something of the present kind has been said that is no white space.
    said: bool,
    /// White space at the start of the answer is between it and something else.
    after: bool,
}

#[derive(Debug)]
enum Mode {
    Content,
    Reasoning,
    /// A section, and whether it stands among thoughts.
    Calls(Box<Calls>, bool),
}

impl OutputParser {
    /// A parser of one answer to `prompt`, of which the end suffices: a template may have opened thoughts there.
    ///
    /// Without `tools`, calls are text. Ids of calls are made of `seed`.
    pub fn new(format: OutputFormat, prompt: &str, tools: Vec<Tool>, seed: u64) -> OutputParser {
        let section = format.family.section().filter(|_| !tools.is_empty());
        let mut sink = Sink::new(tools, seed, format.family.id_len());
        let harmony = (format.family == Family::Harmony).then(|| Harmony::new(prompt, &mut sink));
        let mode = if format.opens_thoughts(prompt) { Mode::Reasoning } else { Mode::Content };
        OutputParser {
            sink,
            thoughts: format.thoughts,
            section,
            family: format.family,
            harmony,
            mode,
            held: String::new(),
            blanks: String::new(),
            raw: String::new(),
            said: false,
            after: false,
        }
    }

    /// Adds a piece of text; the events that are now certain.
    pub fn push(&mut self, text: &str) -> Vec<OutputEvent> {
        match &mut self.harmony {
            Some(harmony) => text.chars().for_each(|c| harmony.step(c, &mut self.sink)),
            None if self.thoughts.is_none() && self.section.is_none() => self.sink.content(text),
            None => text.chars().for_each(|c| self.step(c)),
        }
        std::mem::take(&mut self.sink.events)
    }

    /// Ends the text; the events that were held back.
    pub fn finish(&mut self) -> Vec<OutputEvent> {
        if let Some(harmony) = &mut self.harmony {
            harmony.finish(&mut self.sink);
            return std::mem::take(&mut self.sink.events);
        }
        if let Mode::Calls(calls, _) = &mut self.mode {
            match calls.finish(&mut self.sink) {
                true => self.raw.clear(),
                false => self.broken(),
            }
        }
        for c in std::mem::take(&mut self.held).chars() {
            self.put(c);
        }
        if self.said || !self.after {
            let blanks = std::mem::take(&mut self.blanks);
            if !matches!(self.mode, Mode::Reasoning) {
                self.sink.content(&blanks);
            }
        }
        std::mem::take(&mut self.sink.events)
    }

    fn step(&mut self, c: char) {
        if let Mode::Calls(calls, _) = &mut self.mode {
            let before = self.sink.n_calls();
            self.raw.push(c);
            let step = calls.step(c, &mut self.sink);
            if self.sink.n_calls() > before {
                self.raw.clear();
            }
            match step {
                Step::More => {}
                Step::Done | Step::DoneAll if calls.any() => {
                    self.raw.clear();
                    (self.mode, self.said, self.after) = (Mode::Content, false, true);
                }
                _ => self.broken(),
            }
            return;
        }
        self.held.push(c);
        while !self.held.is_empty() {
            if self.mark() {
                return;
            }
            if self.marks().any(|m| m.starts_with(&self.held)) {
                return;
            }
            let c = self.held.remove(0);
            self.put(c);
        }
    }

    /// Marks that mean something here.
    fn marks(&self) -> impl Iterator<Item = &'static str> {
        let thinking = matches!(self.mode, Mode::Reasoning);
        let thoughts = self.thoughts.filter(|_| thinking || !self.said).unwrap_or([""; 2]);
        let open = if thinking { "" } else { thoughts[0] };
        // Thoughts speak of calls, too: one that is meant stands at the start of a line.
        let section = self.section.filter(|_| !thinking || !self.said || self.blanks.contains('\n'));
        let bare = section.is_some() && self.family == Family::Llama3 && !self.said && !thinking;
        let opens = section.map_or(&[][..], |s| s.open).iter().copied();
        opens.chain([open, thoughts[1], if bare { "{" } else { "" }]).filter(|m| !m.is_empty())
    }

    /// Acts on a mark, if one is held.
    fn mark(&mut self) -> bool {
        let Some(mark) = self.marks().find(|m| *m == self.held) else { return false };
        self.held.clear();
        let thinking = matches!(self.mode, Mode::Reasoning);
        if self.thoughts.is_some_and(|t| t.contains(&mark)) {
            let opens = self.thoughts.is_some_and(|t| t[0] == mark);
            self.mode = if opens { Mode::Reasoning } else { Mode::Content };
            (self.said, self.after) = (false, true);
            self.blanks.clear();
            return true;
        }
        let section = self.section.expect("the mark is one of a section");
        self.raw = std::mem::take(&mut self.blanks);
        self.raw.push_str(mark);
        self.mode = Mode::Calls(Box::new(Calls::new(section, mark, &mut self.sink)), thinking);
        true
    }

    /// The section does not parse: its text is text.
    fn broken(&mut self) {
        self.sink.broken();
        let thinking = matches!(&self.mode, Mode::Calls(_, true));
        self.mode = if thinking { Mode::Reasoning } else { Mode::Content };
        for c in std::mem::take(&mut self.raw).chars() {
            self.put(c);
        }
    }

    /// One character of text.
    fn put(&mut self, c: char) {
        if c.is_whitespace() {
            self.blanks.push(c);
            return;
        }
        let thinking = matches!(self.mode, Mode::Reasoning);
        let mut text = std::mem::take(&mut self.blanks);
        if !self.said && (thinking || self.after) {
            text.clear();
        }
        text.push(c);
        match thinking {
            true => self.sink.reasoning(&text),
            false => self.sink.content(&text),
        }
        text.clear();
        (self.blanks, self.said) = (text, true);
    }
}
