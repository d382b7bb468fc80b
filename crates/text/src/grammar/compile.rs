//! From grammars to matchers, within limits.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory, toktrie};
use serde_json::Value;

use super::constraint::GrammarConstraint;
use super::{Grammar, GrammarError, gbnf_to_lark, lark, schema, trie};
use crate::vocab::Vocab;

/// Bytes of a grammar or schema.
const MAX_SOURCE: usize = 1 << 18;
/// Seconds that compiling may take. Ordinary ones take milliseconds.
const MAX_COMPILE: Duration = Duration::from_secs(10);
/// The library calls itself for each property of an object and each bracket of a grammar. Untouched stack costs nothing.
const STACK: usize = 512 << 20;
/// States of the lexer, one or two KB each.
const MAX_STATES: usize = 50_000;

/// A vocabulary prepared for grammars. Cheap to clone.
#[derive(Clone)]
pub struct Grammars {
    factory: Arc<ParserFactory>,
}

impl Grammars {
    /// Prepares a vocabulary.
    ///
    /// # Errors
    /// [`GrammarError::Vocab`].
    pub fn new(vocab: &Vocab) -> Result<Grammars, GrammarError> {
        let environment = trie::environment(vocab)?;
        let mut factory =
            ParserFactory::new_simple(&environment).map_err(|e| GrammarError::Vocab(short(&e)))?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.max_lexer_states = MAX_STATES;
        limits.verbose_errors = false;
        Ok(Grammars { factory: Arc::new(factory) })
    }

    /// The constraint of a request.
    ///
    /// # Errors
    /// What cannot be read, enforced or compiled within the limits.
    pub fn constraint(&self, grammar: &Grammar) -> Result<GrammarConstraint, GrammarError> {
        if let Grammar::JsonSchema(value) = grammar {
            return self.json(value);
        }
        let source = match grammar {
            Grammar::Gbnf(text) => gbnf_to_lark(text)?,
            Grammar::Regex(text) => {
                check_source(text)?;
                format!("start: /{}/\n", lark_regex(text))
            }
            Grammar::Lark(text) => text.clone(),
            Grammar::JsonSchema(_) => unreachable!("it has just been seen to"),
        };
        lark::check(&source)?;
        let matcher = self.compile(TopLevelGrammar::from_lark(source)).map_err(GrammarError::Compile)?;
        Ok(self.begin(matcher))
    }

    fn begin(&self, matcher: Matcher) -> GrammarConstraint {
        GrammarConstraint::new(matcher, self.factory.tok_env().tok_trie().vocab_size())
    }

    fn json(&self, value: &Value) -> Result<GrammarConstraint, GrammarError> {
        check_source(&value.to_string())?;
        let prepared = schema::prepare(value)?;
        let compile = |value: &Value| {
            self.compile(TopLevelGrammar::from_json_schema(schema::with_options(value)))
                .map_err(|e| e.to_string())
        };
        match compile(&prepared) {
            Ok(matcher) => Ok(self.begin(matcher)),
            Err(reason) => Err(schema::locate(&prepared, &reason, &|value| compile(value).err())),
        }
    }

    fn compile(&self, grammar: TopLevelGrammar) -> Result<Matcher, String> {
        let factory = self.factory.clone();
        deep(move || {
            let parser = factory.create_parser(grammar).map_err(|e| short(&e))?;
            let mut matcher = Matcher::new(Ok(parser));
            // The first mask shows what compiling alone does not, and is asked for anyway.
            matcher.compute_mask_or_eos().map_err(|e| short(&e))?;
            Ok(matcher)
        })?
    }
}

/// Works on a stack that is deep enough for any grammar, within a time. A thread that takes longer ends some time later:
/// the work is bounded by its own limits.
pub(super) fn deep<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    let (done, result) = sync_channel(1);
    let work = move || drop(done.send(work()));
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(work);
    thread.map_err(|e| format!("no thread to compile it: {e}"))?;
    match result.recv_timeout(MAX_COMPILE) {
        Ok(result) => Ok(result),
        Err(RecvTimeoutError::Timeout) => {
            Err(format!("it takes longer than {} seconds", MAX_COMPILE.as_secs()))
        }
        Err(RecvTimeoutError::Disconnected) => Err("the compiler gave up".into()),
    }
}

/// A vocabulary that is prepared for grammars when the first one comes. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct LazyGrammars {
    grammars: Arc<OnceLock<Result<Grammars, GrammarError>>>,
}

impl LazyGrammars {
    /// The vocabulary, prepared. It must be the same each time.
    ///
    /// # Errors
    /// As [`Grammars::new`], each time.
    pub fn of(&self, vocab: &Vocab) -> Result<&Grammars, GrammarError> {
        self.grammars.get_or_init(|| Grammars::new(vocab)).as_ref().map_err(Clone::clone)
    }
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let trie: &toktrie::TokTrie = self.factory.tok_env().tok_trie();
        f.debug_struct("Grammars").field("tokens", &trie.vocab_size()).finish_non_exhaustive()
    }
}

/// A regular expression within Lark's slashes.
pub(super) fn lark_regex(text: &str) -> String {
    let mut out = String::new();
    let mut escaped = false;
    for c in text.chars() {
        match c {
            '/' if !escaped => out.push_str("\\/"),
            '\n' => out.push_str(if escaped { "n" } else { "\\n" }),
            c => out.push(c),
        }
        escaped = c == '\\' && !escaped;
    }
    out
}

pub(super) fn check_source(text: &str) -> Result<(), GrammarError> {
    match text.len() <= MAX_SOURCE {
        true => Ok(()),
        false => Err(GrammarError::TooLarge { what: "bytes", found: text.len(), limit: MAX_SOURCE }),
    }
}

/// A reason without the library's traces, and not as long as the grammar.
fn short(e: &dyn std::fmt::Display) -> String {
    let text = e.to_string();
    let text =
        text.split("<backtrace>").next().unwrap_or_default().split("<state>").next().unwrap_or_default();
    let text = text.replace("<non-verbose/>", "").replace("NoExtensionBias", "nothing satisfies it");
    text.trim().chars().take(400).collect()
}
