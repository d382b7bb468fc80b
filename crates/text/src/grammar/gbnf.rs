//! GBNF, the grammar notation of llama.cpp, into the notation that the library reads.
//!
//! A rule that does not lead back to itself becomes one regular expression, with all that it uses. In a rule that does,
//! every stretch without recursion becomes one; there, as in Lark, the longest match of a stretch counts.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use super::GrammarError;
use super::compile::{check_source, deep};

/// Brackets in brackets.
const MAX_DEPTH: usize = 100;
/// Rules of a grammar.
const MAX_RULES: usize = 2_000;
/// Numbers in `{m,n}`.
const MAX_REPEAT: u32 = 10_000;

#[derive(Clone, Debug, PartialEq)]
enum Node {
    /// Characters one after the other.
    Text(String),
    /// A class as a regular expression spells it.
    Class(String),
    /// A token of the vocabulary, as the library spells it.
    Token(String),
    Rule(usize),
    Sequence(Vec<Node>),
    Choice(Vec<Node>),
    /// At least, at most.
    Repeat(Box<Node>, u32, Option<u32>),
}

/// Turns GBNF into Lark.
///
/// # Errors
/// What is no GBNF, with its line: rules that are missing or named twice, and what the library has no notation for (a
/// token that is excluded, `!<...>`).
pub fn gbnf_to_lark(source: &str) -> Result<String, GrammarError> {
    check_source(source)?;
    let source = source.to_owned();
    deep(move || convert(&source)).unwrap_or_else(|e| Err(GrammarError::Compile(e)))
}

fn convert(source: &str) -> Result<String, GrammarError> {
    let mut parser =
        Parser { chars: source.chars().collect(), at: 0, names: HashMap::new(), rules: Vec::new() };
    parser.grammar()?;
    let Some(&root) = parser.names.get("root") else {
        return Err(GrammarError::Syntax {
            line: 1,
            reason: "found no rule `root`, expected one to begin with".into(),
        });
    };
    let mut rules = Vec::new();
    for rule in &parser.rules {
        match &rule.body {
            Some(body) => rules.push(body.clone()),
            None => {
                let reason = format!("rule `{}` is used and not defined", rule.name);
                return Err(GrammarError::Syntax { line: parser.line(rule.at), reason });
            }
        }
    }
    Ok(Writer::new(&rules).write(root))
}

struct Rule {
    name: String,
    /// Where it is first seen.
    at: usize,
    body: Option<Node>,
}

struct Parser {
    chars: Vec<char>,
    at: usize,
    names: HashMap<String, usize>,
    rules: Vec<Rule>,
}

impl Parser {
    fn line(&self, at: usize) -> usize {
        1 + self.chars[..at.min(self.chars.len())].iter().filter(|c| **c == '\n').count()
    }

    fn fail<T>(&self, expected: &str) -> Result<T, GrammarError> {
        let found = match self.peek() {
            Some('\n') => "the end of the line".to_owned(),
            Some(c) => format!("`{c}`"),
            None => "the end".to_owned(),
        };
        Err(GrammarError::Syntax {
            line: self.line(self.at),
            reason: format!("found {found}, expected {expected}"),
        })
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn take(&mut self, text: &str) -> bool {
        let fits = text.chars().enumerate().all(|(i, c)| self.chars.get(self.at + i) == Some(&c));
        if fits {
            self.at += text.chars().count();
        }
        fits
    }

    /// White space and comments; line breaks only within brackets, and between rules.
    fn blanks(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                '#' => {
                    while self.peek().is_some_and(|c| c != '\n') {
                        self.at += 1;
                    }
                }
                ' ' | '\t' => self.at += 1,
                '\n' | '\r' if lines => self.at += 1,
                '\r' => self.at += 1,
                _ => return,
            }
        }
    }

    fn name(&mut self) -> Option<String> {
        let start = self.at;
        while self.peek().is_some_and(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_') {
            self.at += 1;
        }
        (self.at > start).then(|| self.chars[start..self.at].iter().collect())
    }

    fn rule(&mut self, name: String) -> usize {
        if let Some(id) = self.names.get(&name) {
            return *id;
        }
        let id = self.rules.len();
        self.rules.push(Rule { name: name.clone(), at: self.at, body: None });
        self.names.insert(name, id);
        id
    }

    fn grammar(&mut self) -> Result<(), GrammarError> {
        self.blanks(true);
        while self.peek().is_some() {
            let Some(name) = self.name() else { return self.fail("the name of a rule") };
            let id = self.rule(name);
            if self.rules.len() > MAX_RULES {
                return Err(GrammarError::TooLarge {
                    what: "rules",
                    found: self.rules.len(),
                    limit: MAX_RULES,
                });
            }
            self.blanks(false);
            if !self.take("::=") {
                return self.fail("`::=`");
            }
            if self.rules[id].body.is_some() {
                let reason = format!("rule `{}` is defined twice", self.rules[id].name);
                return Err(GrammarError::Syntax { line: self.line(self.at), reason });
            }
            self.blanks(true);
            let body = self.choice(0)?;
            self.rules[id].body = Some(body);
            self.blanks(false);
            if !matches!(self.peek(), None | Some('\n')) {
                return self.fail("the end of the rule");
            }
            self.blanks(true);
        }
        Ok(())
    }

    fn choice(&mut self, depth: usize) -> Result<Node, GrammarError> {
        let mut options = vec![self.sequence(depth)?];
        loop {
            // The next option may stand on a line of its own.
            let before = self.at;
            self.blanks(true);
            if !self.take("|") {
                if depth == 0 {
                    self.at = before;
                }
                break;
            }
            self.blanks(true);
            options.push(self.sequence(depth)?);
        }
        Ok(if options.len() == 1 { options.remove(0) } else { Node::Choice(options) })
    }

    fn sequence(&mut self, depth: usize) -> Result<Node, GrammarError> {
        if depth > MAX_DEPTH {
            return Err(GrammarError::TooLarge { what: "brackets open", found: depth, limit: MAX_DEPTH });
        }
        let mut items: Vec<Node> = Vec::new();
        loop {
            self.blanks(depth > 0);
            let item = match self.peek() {
                Some('"') => Node::Text(self.text()?),
                Some('[') => self.class()?,
                Some('.') => {
                    self.at += 1;
                    Node::Class("(?s:.)".into())
                }
                Some('(') => {
                    self.at += 1;
                    let inner = self.choice(depth + 1)?;
                    self.blanks(true);
                    if !self.take(")") {
                        return self.fail("`)`");
                    }
                    inner
                }
                Some('<') => self.token()?,
                Some('!') => return self.fail("an element; a token cannot be excluded"),
                Some(c) if c.is_ascii_alphanumeric() || c == '-' || c == '_' => {
                    let name = self.name().unwrap_or_default();
                    Node::Rule(self.rule(name))
                }
                _ => break,
            };
            items.push(self.repeated(item)?);
        }
        Ok(if items.len() == 1 { items.remove(0) } else { Node::Sequence(items) })
    }

    fn repeated(&mut self, mut item: Node) -> Result<Node, GrammarError> {
        loop {
            self.blanks(false);
            let (least, most) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    self.at += 1;
                    let bounds = self.bounds()?;
                    item = Node::Repeat(Box::new(item), bounds.0, bounds.1);
                    continue;
                }
                _ => return Ok(item),
            };
            self.at += 1;
            item = Node::Repeat(Box::new(item), least, most);
        }
    }

    fn bounds(&mut self) -> Result<(u32, Option<u32>), GrammarError> {
        self.blanks(false);
        let least = self.number()?;
        self.blanks(false);
        let most = match self.take(",") {
            true => {
                self.blanks(false);
                if self.peek() == Some('}') { None } else { Some(self.number()?) }
            }
            false => Some(least),
        };
        self.blanks(false);
        if most.is_some_and(|most| most < least) {
            return self.fail("a most that is not below the least");
        }
        if self.take("}") { Ok((least, most)) } else { self.fail("`}`") }
    }

    fn number(&mut self) -> Result<u32, GrammarError> {
        let start = self.at;
        while self.peek().is_some_and(|c| c.is_ascii_digit()) {
            self.at += 1;
        }
        let text: String = self.chars[start..self.at].iter().collect();
        match text.parse::<u32>() {
            Ok(n) if n <= MAX_REPEAT => Ok(n),
            Err(_) if text.is_empty() => self.fail("a number"),
            _ => self.fail("a number up to 10000"),
        }
    }

    fn text(&mut self) -> Result<String, GrammarError> {
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.peek() {
                Some('"') => break,
                None | Some('\n') => return self.fail("`\"`"),
                _ => text.push(self.character()?),
            }
        }
        self.at += 1;
        Ok(text)
    }

    /// A character, which may be escaped.
    fn character(&mut self) -> Result<char, GrammarError> {
        let Some(c) = self.peek() else { return self.fail("a character") };
        self.at += 1;
        if c != '\\' {
            return Ok(c);
        }
        let escape = self.peek();
        self.at += 1;
        Ok(match escape {
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('x') => self.code(2)?,
            Some('u') => self.code(4)?,
            Some('U') => self.code(8)?,
            Some(c @ ('\\' | '"' | '[' | ']' | '-' | '^')) => c,
            _ => {
                self.at -= 1;
                return self.fail("an escape: one of n r t x u U \\ \" [ ] - ^");
            }
        })
    }

    fn code(&mut self, digits: usize) -> Result<char, GrammarError> {
        let mut code = 0u32;
        for _ in 0..digits {
            let Some(digit) = self.peek().and_then(|c| c.to_digit(16)) else {
                return self.fail("a hexadecimal digit");
            };
            code = code << 4 | digit;
            self.at += 1;
        }
        char::from_u32(code).map_or_else(|| self.fail("a code point before this place"), Ok)
    }

    fn class(&mut self) -> Result<Node, GrammarError> {
        self.at += 1;
        let mut out = String::from("[");
        let mut n = 0;
        if self.take("^") {
            out.push('^');
        }
        while self.peek() != Some(']') {
            if matches!(self.peek(), None | Some('\n')) {
                return self.fail("`]`");
            }
            let first = self.character()?;
            put_escaped(&mut out, first);
            n += 1;
            if self.peek() == Some('-') && self.chars.get(self.at + 1).is_some_and(|c| *c != ']') {
                self.at += 1;
                let last = self.character()?;
                if last < first {
                    return self.fail("a range that ascends before this place");
                }
                out.push('-');
                put_escaped(&mut out, last);
            }
        }
        self.at += 1;
        out.push(']');
        match (n, out.as_str()) {
            (0, "[^]") => Ok(Node::Class("(?s:.)".into())),
            (0, _) => self.fail("a class that is not empty before this place"),
            _ => Ok(Node::Class(out)),
        }
    }

    /// `<text>` or `<[id]>`.
    fn token(&mut self) -> Result<Node, GrammarError> {
        let start = self.at;
        while let Some(c) = self.peek() {
            self.at += 1;
            match c {
                '>' => return Ok(Node::Token(self.chars[start..self.at].iter().collect())),
                c if c.is_whitespace() => break,
                _ => {}
            }
        }
        self.at = start;
        self.fail("a token `<name>` or `<[id]>`")
    }
}

/// A character of a regular expression or a class, no matter where.
fn put_escaped(out: &mut String, c: char) {
    match c {
        c if c.is_alphanumeric() || c == ' ' => out.push(c),
        c if !c.is_ascii() && !c.is_control() => out.push(c),
        c => drop(write!(out, "\\x{{{:X}}}", c as u32)),
    }
}

/// Writes Lark.
struct Writer<'a> {
    rules: &'a [Node],
    /// Rules that lead back to themselves, or hold a token: those stay rules.
    recursive: Vec<bool>,
    empty: Vec<bool>,
    out: String,
    /// Expressions written so far, by their text.
    terminals: HashMap<String, usize>,
    /// Rules that are terminals, written so far.
    written: HashSet<usize>,
}

impl<'a> Writer<'a> {
    fn new(rules: &'a [Node]) -> Writer<'a> {
        let recursive = structured(rules);
        let mut empty = vec![false; rules.len()];
        loop {
            let next: Vec<bool> = rules.iter().map(|r| may_be_empty(r, &empty)).collect();
            if next == empty {
                break;
            }
            empty = next;
        }
        Writer {
            rules,
            recursive,
            empty,
            out: String::new(),
            terminals: HashMap::new(),
            written: HashSet::new(),
        }
    }

    fn write(mut self, root: usize) -> String {
        let mut needed = vec![root];
        let mut done = vec![false; self.rules.len()];
        let _ = writeln!(self.out, "start: r{root}");
        while let Some(id) = needed.pop() {
            if std::mem::replace(&mut done[id], true) {
                continue;
            }
            let rules = self.rules;
            let body = match self.recursive[id] {
                true => self.structure(&rules[id], &mut needed),
                false => self.terminal(&rules[id]),
            };
            let _ = writeln!(self.out, "r{id}: {body}");
        }
        self.out
    }

    fn is_plain(&self, node: &Node) -> bool {
        is_plain(node, &self.recursive)
    }

    /// A node within a rule.
    fn structure(&mut self, node: &Node, needed: &mut Vec<usize>) -> String {
        if self.is_plain(node) {
            return self.terminal(node);
        }
        match node {
            Node::Token(token) => token.clone(),
            Node::Rule(id) => {
                needed.push(*id);
                format!("r{id}")
            }
            Node::Choice(options) => {
                let options: Vec<String> = options.iter().map(|o| self.structure(o, needed)).collect();
                format!("({})", options.join(" | "))
            }
            Node::Repeat(inner, least, most) => {
                let inner = self.structure(inner, needed);
                format!("({inner}){}", bounds(*least, *most))
            }
            Node::Sequence(items) => {
                let mut parts = Vec::new();
                let mut rest = &items[..];
                while !rest.is_empty() {
                    // A stretch without recursion is one expression.
                    let plain = rest.iter().take_while(|i| self.is_plain(i)).count();
                    if plain > 0 {
                        parts.push(self.terminal(&Node::Sequence(rest[..plain].to_vec())));
                    } else {
                        parts.push(self.structure(&rest[0], needed));
                    }
                    rest = &rest[plain.max(1)..];
                }
                format!("({})", parts.join(" "))
            }
            Node::Text(_) | Node::Class(_) => unreachable!("it is plain"),
        }
    }

    /// An expression as a terminal of its own. One that may be empty is optional and else at least a character long.
    fn terminal(&mut self, node: &Node) -> String {
        let text = self.expression(node);
        if text == "\"\"" {
            return text;
        }
        let empty = may_be_empty(node, &self.empty);
        let text = if empty { format!("({text}) & /(?s:.+)/") } else { text };
        let next = self.terminals.len();
        let id = *self.terminals.entry(text.clone()).or_insert(next);
        if id == next {
            let _ = writeln!(self.out, "T{id}: {text}");
        }
        if empty { format!("T{id}?") } else { format!("T{id}") }
    }

    /// A node without recursion. Rules become terminals, so that what is used twice is written once.
    fn expression(&mut self, node: &Node) -> String {
        match node {
            Node::Text(text) if text.is_empty() => "\"\"".into(),
            Node::Text(text) => {
                let mut out = String::from("/");
                text.chars().for_each(|c| put_escaped(&mut out, c));
                out + "/"
            }
            Node::Class(class) => format!("/{class}/"),
            Node::Rule(id) => {
                let name = format!("R{id}");
                if self.written.insert(*id) {
                    let rules = self.rules;
                    let body = self.expression(&rules[*id]);
                    let _ = writeln!(self.out, "{name}: {body}");
                }
                name
            }
            Node::Sequence(items) if items.is_empty() => "\"\"".into(),
            Node::Sequence(items) => {
                let items: Vec<String> = items.iter().map(|i| self.expression(i)).collect();
                format!("({})", items.join(" "))
            }
            Node::Choice(options) => {
                let options: Vec<String> = options.iter().map(|o| self.expression(o)).collect();
                format!("({})", options.join(" | "))
            }
            Node::Repeat(inner, least, most) => {
                let inner = self.expression(inner);
                format!("({inner}){}", bounds(*least, *most))
            }
            Node::Token(_) => unreachable!("a token is no part of an expression"),
        }
    }
}

fn bounds(least: u32, most: Option<u32>) -> String {
    match (least, most) {
        (0, None) => "*".into(),
        (1, None) => "+".into(),
        (0, Some(1)) => "?".into(),
        (least, None) => format!("{{{least},}}"),
        (least, Some(most)) => format!("{{{least},{most}}}"),
    }
}

fn may_be_empty(node: &Node, rules: &[bool]) -> bool {
    match node {
        Node::Text(text) => text.is_empty(),
        Node::Class(_) | Node::Token(_) => false,
        Node::Rule(id) => rules[*id],
        Node::Sequence(items) => items.iter().all(|i| may_be_empty(i, rules)),
        Node::Choice(options) => options.iter().any(|o| may_be_empty(o, rules)),
        Node::Repeat(inner, least, _) => *least == 0 || may_be_empty(inner, rules),
    }
}

fn is_plain(node: &Node, structured: &[bool]) -> bool {
    match node {
        Node::Text(_) | Node::Class(_) => true,
        Node::Token(_) => false,
        Node::Rule(id) => !structured[*id],
        Node::Sequence(items) | Node::Choice(items) => items.iter().all(|i| is_plain(i, structured)),
        Node::Repeat(inner, ..) => is_plain(inner, structured),
    }
}

/// Rules that lead back to themselves or to such, or hold tokens: all but those that use plain rules alone.
fn structured(rules: &[Node]) -> Vec<bool> {
    let mut structured = vec![true; rules.len()];
    loop {
        let next: Vec<bool> = rules.iter().map(|r| !is_plain(r, &structured)).collect();
        if next == structured {
            return structured;
        }
        structured = next;
    }
}
