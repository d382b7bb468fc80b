//! GBNF, the grammar notation of llama.cpp, into the notation that the library reads.
//!
//! A rule that does not lead back to itself becomes one regular expression, with all that it uses. In a rule that does,
//! every stretch without recursion becomes one; there, as in Lark, the longest match of a stretch counts.

mod read;
mod write;

use std::fmt::Write as _;

use super::GrammarError;
use super::compile::{check_source, deep};

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
    let convert = move || read::rules(&source).map(|(rules, root)| write::lark(&rules, root));
    deep(convert).unwrap_or_else(|e| Err(GrammarError::Compile(e)))
}

/// A character of a regular expression or a class, no matter where.
fn put_escaped(out: &mut String, c: char) {
    match c {
        c if c.is_alphanumeric() || c == ' ' => out.push(c),
        c if !c.is_ascii() && !c.is_control() => out.push(c),
        c => drop(write!(out, "\\x{{{:X}}}", c as u32)),
    }
}
