//! Answers that are kept to a grammar.

use firth_engine::Request;
use firth_text::Vocab;
use firth_text::grammar::{Grammar, GrammarConstraint, LazyGrammars, answer_grammar};
use firth_text::output::OutputFormat;

use crate::error::Error;

/// Tokens at the end of a prompt that show whether it opens thoughts.
const TAIL: usize = 24;

/// The constraint of an answer to a prompt. Where the answer is read in a format with thoughts, they may come first.
///
/// # Errors
/// The grammar cannot be read or enforced.
pub(crate) fn constraint(
    vocab: &Vocab,
    grammars: &LazyGrammars,
    prompt: &[u32],
    grammar: &Grammar,
    format: OutputFormat,
) -> Result<GrammarConstraint, Error> {
    let grammars = grammars.of(vocab)?;
    let tail = vocab.decode_text(&prompt[prompt.len().saturating_sub(TAIL)..], true);
    let whole = answer_grammar(format, vocab, &tail, grammar)?;
    match grammars.constraint(&whole) {
        Ok(constraint) => Ok(constraint),
        // Alone, a schema says where it fails.
        Err(e) if whole != *grammar => Err(grammars.constraint(grammar).err().unwrap_or(e).into()),
        Err(e) => Err(e.into()),
    }
}

/// Keeps a request to a grammar, and ends it where nothing can follow.
///
/// # Errors
/// As [`constraint`].
pub(crate) fn constrain(
    vocab: &Vocab,
    grammars: &LazyGrammars,
    request: &mut Request,
    grammar: &Grammar,
    format: OutputFormat,
) -> Result<(), Error> {
    let constraint = constraint(vocab, grammars, &request.ids, grammar, format)?;
    request.watch = Some(Box::new(constraint.watch()));
    request.constraint = Some(Box::new(constraint));
    Ok(())
}
