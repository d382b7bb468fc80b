//! Calls written as in a programming language: `f(a='x', n=5)` and `call:f{a:<|"|>x<|"|>,n:5}`.

use super::events::{MAX_NAME, Sink};
use super::json::{is_json, put_text};
use super::section::Step;

/// Nesting of values.
const MAX_DEPTH: usize = 64;

/// How calls and their values are spelt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spelling {
    /// Around the arguments.
    pub brackets: [char; 2],
    /// Between an argument's name and its value.
    pub is: char,
    /// What begins and ends a string.
    pub quotes: &'static [&'static str],
    /// Whether `\` escapes in strings.
    pub escapes: bool,
}

pub(super) const PYTHON: Spelling =
    Spelling { brackets: ['(', ')'], is: '=', quotes: &["'", "\""], escapes: true };
pub(super) const GEMMA: Spelling =
    Spelling { brackets: ['{', '}'], is: ':', quotes: &["<|\"|>", "<escape>"], escapes: false };

/// A call, from its name on. Each argument goes out when it is whole.
#[derive(Debug)]
pub(super) struct LiteralCall {
    spelling: Spelling,
    /// Name, or argument under way.
    text: String,
    named: bool,
    depth: usize,
    /// The quote of the string under way.
    quote: Option<&'static str>,
    escaped: bool,
    n_arguments: usize,
}

impl LiteralCall {
    pub fn new(spelling: Spelling) -> LiteralCall {
        LiteralCall {
            spelling,
            text: String::new(),
            named: false,
            depth: 0,
            quote: None,
            escaped: false,
            n_arguments: 0,
        }
    }

    pub fn step(&mut self, c: char, sink: &mut Sink) -> Step {
        if !self.named {
            return self.name(c, sink);
        }
        if let Some(quote) = self.quote {
            self.text.push(c);
            if std::mem::take(&mut self.escaped) {
            } else if self.spelling.escapes && c == '\\' {
                self.escaped = true;
            } else if self.text.ends_with(quote) {
                self.quote = None;
            }
            return Step::More;
        }
        let top = self.depth == 0;
        match c {
            ',' if top => return self.argument(sink),
            c if top && c == self.spelling.brackets[1] => return self.end(sink),
            '(' | '[' | '{' => self.depth += 1,
            ')' | ']' | '}' if top => return Step::Broken,
            ')' | ']' | '}' => self.depth -= 1,
            _ => {}
        }
        if self.depth > MAX_DEPTH {
            return Step::Broken;
        }
        self.text.push(c);
        self.quote = self.spelling.quotes.iter().find(|q| self.text.ends_with(**q)).copied();
        Step::More
    }

    fn name(&mut self, c: char, sink: &mut Sink) -> Step {
        if c == self.spelling.brackets[0] {
            if self.text.is_empty() {
                return Step::Broken;
            }
            let name = std::mem::take(&mut self.text);
            sink.start(name.strip_prefix("call:").unwrap_or(&name), None);
            self.named = true;
            return Step::More;
        }
        let ok =
            c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/') || (c == ':' && self.spelling == GEMMA);
        if !ok || self.text.len() > MAX_NAME {
            return Step::Broken;
        }
        self.text.push(c);
        Step::More
    }

    fn argument(&mut self, sink: &mut Sink) -> Step {
        let text = std::mem::take(&mut self.text);
        let Some((key, value)) = text.split_once(self.spelling.is) else { return Step::Broken };
        let key = key.trim().trim_matches('"');
        if key.is_empty() || key.contains(['\'', '(', '[', '{']) {
            return Step::Broken;
        }
        let mut piece = String::from(if self.n_arguments == 0 { "{" } else { "," });
        put_text(&mut piece, key);
        piece.push(':');
        let mut reader = Reader { rest: value, spelling: self.spelling, out: piece };
        if reader.value(0).is_none() || !reader.rest.trim().is_empty() {
            return Step::Broken;
        }
        sink.arguments(&reader.out);
        self.n_arguments += 1;
        Step::More
    }

    fn end(&mut self, sink: &mut Sink) -> Step {
        if !self.text.trim().is_empty() && self.argument(sink) == Step::Broken {
            return Step::Broken;
        }
        sink.arguments(if self.n_arguments == 0 { "{}" } else { "}" });
        sink.end();
        Step::Done
    }
}

/// From a literal to JSON.
struct Reader<'a> {
    rest: &'a str,
    spelling: Spelling,
    out: String,
}

impl Reader<'_> {
    fn value(&mut self, depth: usize) -> Option<()> {
        self.rest = self.rest.trim_start();
        if depth > MAX_DEPTH {
            return None;
        }
        if let Some(quote) = self.spelling.quotes.iter().find(|q| self.rest.starts_with(**q)) {
            return self.text(quote);
        }
        match self.rest.chars().next()? {
            '[' => self.list(']', depth),
            '(' => self.list(')', depth),
            '{' => self.object(depth),
            _ => self.word(),
        }
    }

    fn take(&mut self, text: &str) -> bool {
        let rest = self.rest.trim_start().strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn list(&mut self, close: char, depth: usize) -> Option<()> {
        self.rest = &self.rest[1..];
        self.out.push('[');
        let close = close.to_string();
        let mut n = 0;
        while !self.take(&close) {
            if n > 0 && !self.take(",") {
                return None;
            }
            if n > 0 && self.take(&close) {
                break;
            }
            self.out.push_str(if n > 0 { "," } else { "" });
            self.value(depth + 1)?;
            n += 1;
        }
        self.out.push(']');
        Some(())
    }

    fn object(&mut self, depth: usize) -> Option<()> {
        self.rest = &self.rest[1..];
        self.out.push('{');
        let mut n = 0;
        while !self.take("}") {
            if n > 0 && !self.take(",") {
                return None;
            }
            if n > 0 && self.take("}") {
                break;
            }
            self.out.push_str(if n > 0 { "," } else { "" });
            self.rest = self.rest.trim_start();
            match self.spelling.quotes.iter().find(|q| self.rest.starts_with(**q)) {
                Some(quote) => self.text(quote)?,
                None => {
                    let (key, rest) = self.rest.split_once(':')?;
                    put_text(&mut self.out, key.trim());
                    self.rest = rest;
                    self.out.push(':');
                    self.value(depth + 1)?;
                    n += 1;
                    continue;
                }
            }
            if !self.take(":") {
                return None;
            }
            self.out.push(':');
            self.value(depth + 1)?;
            n += 1;
        }
        self.out.push('}');
        Some(())
    }

    fn word(&mut self) -> Option<()> {
        let end = self.rest.find([',', ']', ')', '}']).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        match word.trim() {
            "True" | "true" => self.out.push_str("true"),
            "False" | "false" => self.out.push_str("false"),
            "None" | "null" => self.out.push_str("null"),
            number if is_json(number) => self.out.push_str(number),
            _ => return None,
        }
        Some(())
    }

    fn text(&mut self, quote: &str) -> Option<()> {
        let inside = &self.rest[quote.len()..];
        let mut text = String::new();
        let mut chars = inside.char_indices();
        while let Some((at, c)) = chars.next() {
            if inside[at..].starts_with(quote) {
                self.rest = &inside[at + quote.len()..];
                put_text(&mut self.out, &text);
                return Some(());
            }
            if c != '\\' || !self.spelling.escapes {
                text.push(c);
                continue;
            }
            match chars.next()?.1 {
                'n' => text.push('\n'),
                't' => text.push('\t'),
                'r' => text.push('\r'),
                '\n' => {}
                c @ ('x' | 'u' | 'U') => {
                    let n = [2, 4, 8][['x', 'u', 'U'].iter().position(|k| *k == c)?];
                    let mut code = 0u32;
                    for _ in 0..n {
                        code = code << 4 | chars.next()?.1.to_digit(16)?;
                    }
                    text.push(char::from_u32(code)?);
                }
                c @ ('\\' | '\'' | '"') => text.push(c),
                c => text.extend(['\\', c]),
            }
        }
        None
    }
}
