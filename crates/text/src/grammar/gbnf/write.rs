//! Rules of GBNF as Lark.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use super::{Node, put_escaped};

/// The rules as Lark, whose root is `start`.
pub(super) fn lark(rules: &[Node], root: usize) -> String {
    Writer::new(rules).write(root)
}

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
