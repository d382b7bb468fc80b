//! GBNF as it is written.

use std::collections::HashMap;

use super::{GrammarError, Node, put_escaped};

/// Brackets in brackets, and repetitions of repetitions.
const MAX_DEPTH: usize = 100;
/// Rules of a grammar.
const MAX_RULES: usize = 2_000;
/// Numbers in `{m,n}`.
const MAX_REPEAT: u32 = 10_000;

/// The rules of a grammar, and which of them is the root.
pub(super) fn rules(source: &str) -> Result<(Vec<Node>, usize), GrammarError> {
    let mut parser =
        Parser { chars: source.chars().collect(), at: 0, names: HashMap::new(), rules: Vec::new() };
    parser.grammar()?;
    let Some(&root) = parser.names.get("root") else {
        return Err(GrammarError::Syntax {
            line: 1,
            reason: "found no rule `root`, expected one to begin with".into(),
        });
    };
    let rules = std::mem::take(&mut parser.rules);
    let body = |rule: Rule| {
        rule.body.ok_or_else(|| GrammarError::Syntax {
            line: parser.line(rule.at),
            reason: format!("rule `{}` is used and not defined", rule.name),
        })
    };
    Ok((rules.into_iter().map(body).collect::<Result<_, _>>()?, root))
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
        for _ in 0..=MAX_DEPTH {
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
        self.fail("at most 100 repetitions of one element")
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
