//! Thoughts of a limited length: where they reach it, what ends them must follow.

use std::collections::VecDeque;
use std::sync::Arc;

use firth_sampling::{Constraint, ConstraintError};

use super::{Family, OutputFormat};
use crate::vocab::{Encode, Vocab};

/// Tokens that may be taken back: more than the longest draft.
const KEPT: usize = 128;

/// Ends thoughts after so many tokens, by allowing nothing but what ends them; around another constraint, if any.
pub struct ThoughtBudget {
    vocab: Arc<Vocab>,
    format: OutputFormat,
    inner: Option<Box<dyn Constraint>>,
    open: &'static str,
    close: &'static str,
    /// What must be said when the tokens are used up.
    ending: Vec<u32>,
    limit: usize,
    at: At,
    /// The end of the answer's text, and what each of its last tokens added: where it stood before, and bytes.
    text: Vec<u8>,
    taken: VecDeque<(At, usize)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// Outside of thoughts.
    Outside { used: usize },
    /// Within thoughts, so many tokens of the limit used.
    Inside { used: usize },
    /// What ends them is under way, from this token of it on.
    Ending(usize),
}

impl ThoughtBudget {
    /// Thoughts of `limit` tokens at most, ended by `message` and the format's mark. `prompt` is the end of the prompt's
    /// text, which may have opened them.
    ///
    /// # Errors
    /// `inner` is given back where the format has no thoughts, or what ends them cannot be encoded.
    pub fn new(
        vocab: Arc<Vocab>,
        format: OutputFormat,
        prompt: &str,
        limit: usize,
        message: &str,
        inner: Option<Box<dyn Constraint>>,
    ) -> Result<ThoughtBudget, Option<Box<dyn Constraint>>> {
        let [open, close, next] = match (format.family(), format.thoughts()) {
            // Which channel comes behind them is for the inner constraint to say: a call has another than an answer.
            (Family::Harmony, _) if inner.is_some() => {
                ["<|channel|>analysis<|message|>", "<|end|>", "<|end|><|start|>assistant"]
            }
            (Family::Harmony, _) => [
                "<|channel|>analysis<|message|>",
                "<|end|>",
                "<|end|><|start|>assistant<|channel|>final<|message|>",
            ],
            (_, Some([open, close])) => [open, close, close],
            (_, None) => return Err(inner),
        };
        let encode = |text: &str, special| {
            vocab.encode(text, Encode { add_special: false, parse_special: special }).unwrap_or_default()
        };
        let mut ending = encode(message, false);
        ending.extend(encode(next, true));
        if ending.is_empty() {
            return Err(inner);
        }
        let inside = format.opens_thoughts(prompt);
        let at = if inside { At::Inside { used: 0 } } else { At::Outside { used: 0 } };
        let text = Vec::with_capacity(8192);
        let taken = VecDeque::with_capacity(KEPT + 1);
        let mut budget = ThoughtBudget { vocab, format, inner, open, close, ending, limit, at, text, taken };
        budget.at = budget.limited(budget.at);
        Ok(budget)
    }

    fn limited(&self, at: At) -> At {
        match at {
            At::Inside { used } if used >= self.limit => At::Ending(0),
            at => at,
        }
    }

    /// Where the answer stands behind a token whose text has just been added.
    fn behind(&self, added: usize) -> At {
        // A mark of which the last piece completes the end.
        let ends = |mark: &str| {
            let from = self.text.len().saturating_sub(added + mark.len());
            self.text[from..].windows(mark.len()).any(|w| w == mark.as_bytes())
        };
        match self.at {
            At::Outside { used } if ends(self.open) => self.limited(At::Inside { used }),
            At::Outside { used } => At::Outside { used },
            At::Inside { used } if ends(self.close) => At::Outside { used: used + 1 },
            At::Inside { used } => self.limited(At::Inside { used: used + 1 }),
            At::Ending(i) if i + 1 < self.ending.len() => At::Ending(i + 1),
            // Thoughts that begin once more are ended at once.
            At::Ending(_) => At::Outside { used: self.limit },
        }
    }

    fn trim(&mut self) {
        if self.taken.len() > KEPT {
            self.taken.pop_front();
        }
        if self.text.len() > 8000 {
            let kept: usize = self.taken.iter().map(|(_, n)| n).sum::<usize>() + 256;
            self.text.drain(..self.text.len().saturating_sub(kept));
        }
    }
}

impl Constraint for ThoughtBudget {
    fn mask(&mut self, out: &mut [u32]) -> Result<(), ConstraintError> {
        match &mut self.inner {
            Some(inner) => inner.mask(out)?,
            None => out.fill(u32::MAX),
        }
        if let At::Ending(i) = self.at {
            let (word, bit) = (self.ending[i] as usize / 32, 1 << (self.ending[i] % 32));
            // What the inner constraint does not allow cannot be said, whatever the limit.
            if out.get(word).is_some_and(|w| w & bit != 0) {
                out.fill(0);
                out[word] = bit;
            }
        }
        Ok(())
    }

    fn accept(&mut self, id: u32) -> Result<(), ConstraintError> {
        let astray = matches!(self.at, At::Ending(i) if self.ending[i] != id);
        match &mut self.inner {
            Some(inner) => inner.accept(id)?,
            None if astray => return Err(ConstraintError::Refused { id }),
            None => {}
        }
        let piece = match (id as usize) < self.vocab.len() {
            true => self.format.piece(&self.vocab, id),
            false => &[],
        };
        let added = piece.len();
        self.text.extend_from_slice(piece);
        let before = self.at;
        if astray {
            // An end that may not begin here, within a character say, is asked for again; one that has begun is let be.
            self.at = match before {
                At::Ending(0) => At::Inside { used: self.limit },
                _ => At::Outside { used: self.limit },
            };
        }
        self.at = self.behind(added);
        self.taken.push_back((before, added));
        self.trim();
        Ok(())
    }

    fn rollback(&mut self, n: usize) {
        if let Some(inner) = &mut self.inner {
            inner.rollback(n);
        }
        for _ in 0..n {
            let Some((at, added)) = self.taken.pop_back() else { return };
            self.at = at;
            self.text.truncate(self.text.len() - added);
        }
    }
}

#[cfg(test)]
mod tests {
    use firth_gguf::{Array, Metadata, Strings, Value};

    use super::*;

    const TOKENS: [&str; 6] = ["a", "b", "<think>", "</think>", ".", "<|end|>"];

    fn vocab() -> Arc<Vocab> {
        let mut m = Metadata::new();
        m.insert("tokenizer.ggml.model", Value::Str("gpt2".into()));
        m.insert("tokenizer.ggml.pre", Value::Str("gpt-2".into()));
        let mut tokens = Strings::new();
        TOKENS.iter().for_each(|t| tokens.push(t));
        m.insert("tokenizer.ggml.tokens", Value::Array(Array::Str(tokens)));
        m.insert("tokenizer.ggml.merges", Value::Array(Array::Str(Strings::new())));
        m.insert("tokenizer.ggml.token_type", Value::Array(Array::I32(vec![1, 1, 3, 3, 1, 3])));
        Arc::new(Vocab::from_metadata(&m).unwrap())
    }

    fn budget(prompt: &str, limit: usize, message: &str) -> ThoughtBudget {
        let format = OutputFormat::detect("<think> </think>");
        ThoughtBudget::new(vocab(), format, prompt, limit, message, None).ok().unwrap()
    }

    /// The one token that may follow; `None` where several may.
    fn only(b: &mut ThoughtBudget) -> Option<u32> {
        let mut mask = [0];
        b.mask(&mut mask).unwrap();
        (mask[0].count_ones() == 1).then(|| mask[0].trailing_zeros())
    }

    #[test]
    fn thoughts_end_at_their_limit() {
        let mut b = budget("<think>\n", 2, ".");
        for _ in 0..2 {
            assert_eq!(only(&mut b), None);
            b.accept(0).unwrap();
        }
        assert_eq!(only(&mut b), Some(4), "the message comes first");
        assert!(b.accept(0).is_err());
        b.accept(4).unwrap();
        assert_eq!(only(&mut b), Some(3));
        b.accept(3).unwrap();
        assert_eq!(only(&mut b), None, "the answer is free");
    }

    #[test]
    fn none_are_had_where_none_are_allowed() {
        assert_eq!(only(&mut budget("<think>", 0, "")), Some(3));
        let mut b = budget("", 0, "");
        assert_eq!(only(&mut b), None);
        b.accept(2).unwrap();
        assert_eq!(only(&mut b), Some(3));
    }

    #[test]
    fn short_thoughts_are_left_alone_and_drafts_are_taken_back() {
        let mut b = budget("", 3, "");
        for id in [2, 0, 3, 1, 1, 1, 1] {
            assert_eq!(only(&mut b), None);
            b.accept(id).unwrap();
        }
        b.rollback(6);
        for id in [0, 0, 0] {
            b.accept(id).unwrap();
        }
        assert_eq!(only(&mut b), Some(3));
        b.accept(3).unwrap();
        b.rollback(2);
        assert_eq!(only(&mut b), None);
        b.accept(1).unwrap();
        assert_eq!(only(&mut b), Some(3));
    }

    /// Lets no thoughts end behind the token `b`, as a grammar does within a character.
    struct NotBehindB(Vec<u32>);

    impl Constraint for NotBehindB {
        fn mask(&mut self, out: &mut [u32]) -> Result<(), ConstraintError> {
            out.fill(if self.0.last() == Some(&1) { !(1 << 3) } else { u32::MAX });
            Ok(())
        }

        fn accept(&mut self, id: u32) -> Result<(), ConstraintError> {
            self.0.push(id);
            Ok(())
        }

        fn rollback(&mut self, n: usize) {
            self.0.truncate(self.0.len() - n);
        }
    }

    #[test]
    fn what_may_not_end_yet_ends_where_it_may() {
        let inner: Box<dyn Constraint> = Box::new(NotBehindB(Vec::new()));
        let format = OutputFormat::detect("<think> </think>");
        let mut b = ThoughtBudget::new(vocab(), format, "<think>", 1, "", Some(inner)).ok().unwrap();
        for id in [1, 1, 0] {
            b.accept(id).unwrap();
        }
        assert_eq!(only(&mut b), Some(3));
        b.rollback(1);
        let mut mask = [0];
        b.mask(&mut mask).unwrap();
        assert_eq!(mask[0], !(1 << 3), "the end may not come here");
        b.accept(0).unwrap();
        b.accept(3).unwrap();
        assert_eq!(only(&mut b), None, "the answer is free");
    }

    #[test]
    fn without_thoughts_there_is_no_budget() {
        assert!(ThoughtBudget::new(vocab(), OutputFormat::PLAIN, "", 0, "", None).is_err());
    }
}
