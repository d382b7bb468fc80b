//! PLaMo-2: the cut of least cost, found from the end of the text with scores in whole numbers.

use super::longest::backwards;
use super::{EncodeError, VocabError};
use crate::automaton::Automaton;
use crate::tokens::{TokenType, Tokens};

/// Cost of a character that no token covers.
const UNKNOWN: i64 = 10_000_000;
/// Scores are kept in this part of one.
const UNIT: f64 = 1e4;

/// What a PLaMo-2 vocabulary has besides its tokens.
#[derive(Debug)]
pub(super) struct Plamo2 {
    /// Finds all tokens that start at a position, looking from the end; its texts are places in `pieces`.
    search: Automaton,
    /// Id and score of each piece.
    pieces: Vec<(u32, i64)>,
    bytes: [Option<u32>; 256],
}

/// The best way from a position to the end: its cost, where its first piece ends, and that piece; `None` is a
/// character spelt in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    cost: i64,
    end: u32,
    id: Option<u32>,
}

impl Plamo2 {
    /// Byte tokens serve only for what no other token covers.
    pub(super) fn new(tokens: &Tokens) -> Result<Plamo2, VocabError> {
        let mut bytes = [None; 256];
        for (byte, token) in bytes.iter_mut().enumerate() {
            *token = tokens.id(format!("<0x{byte:02X}>").as_bytes());
        }
        let taken = |id: &u32| tokens.kind(*id) != TokenType::Byte && tokens.score(*id).is_finite();
        let pieces: Vec<(u32, i64)> = tokens
            .ids()
            .filter(taken)
            .map(|id| (id, (f64::from(tokens.score(id)) * UNIT).round().clamp(-1e15, 1e15) as i64))
            .collect();
        let texts: Vec<Vec<u8>> = pieces.iter().map(|(id, _)| backwards(tokens.text(*id))).collect();
        let search = Automaton::shallow(&texts, "begin with")?;
        Ok(Plamo2 { search, pieces, bytes })
    }

    /// Appends the ids of a fragment. A byte order mark at its start is dropped; of equal costs the longest first
    /// piece stays.
    ///
    /// # Errors
    /// A byte without token.
    pub(super) fn encode(
        &self,
        text: &str,
        steps: &mut Vec<Step>,
        out: &mut Vec<u32>,
    ) -> Result<(), EncodeError> {
        let text = text.strip_prefix('\u{FEFF}').unwrap_or(text);
        steps.clear();
        steps.resize(text.len() + 1, Step { cost: i64::MAX, end: 0, id: None });
        steps[text.len()].cost = 0;
        let mut state = Automaton::START;
        for (start, c) in text.char_indices().rev() {
            for byte in text.as_bytes()[start..start + c.len_utf8()].iter().rev() {
                state = self.search.next(state, *byte);
            }
            let mut best = Step { cost: i64::MAX, end: 0, id: None };
            for found in self.search.ending(state) {
                let ((id, score), end) = (self.pieces[found as usize], start + self.search.len_of(found));
                let rest = steps[end].cost;
                let cost = rest.saturating_sub(score);
                if rest < i64::MAX && cost < best.cost {
                    best = Step { cost, end: end as u32, id: Some(id) };
                }
            }
            let end = start + c.len_utf8();
            let cost = steps[end].cost.saturating_add(UNKNOWN);
            if cost < best.cost {
                best = Step { cost, end: end as u32, id: None };
            }
            steps[start] = best;
        }
        let mut at = 0;
        while at < text.len() {
            let Step { end, id, .. } = steps[at];
            match id {
                Some(id) => out.push(id),
                None => {
                    for &byte in &text.as_bytes()[at..end as usize] {
                        out.push(self.bytes[usize::from(byte)].ok_or(EncodeError::Byte { byte })?);
                    }
                }
            }
            at = end as usize;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_cost_wins() {
        let mut tokens = Tokens::default();
        for byte in 0..=255u8 {
            tokens.push(format!("<0x{byte:02X}>").as_bytes(), TokenType::Byte, 0.0).unwrap();
        }
        for (text, score) in
            [("a", -1.0), ("b", -1.0), ("ab", -2.0), ("abc", -9.0), ("c", -2.0), ("bad", f32::NAN)]
        {
            tokens.push(text.as_bytes(), TokenType::Normal, score).unwrap();
        }
        let plamo = Plamo2::new(&tokens).unwrap();
        let check = |text: &str, expected: &[&str]| {
            let mut out = Vec::new();
            plamo.encode(text, &mut Vec::new(), &mut out).unwrap();
            let out: Vec<_> = out.iter().map(|&id| std::str::from_utf8(tokens.text(id)).unwrap()).collect();
            assert_eq!(out, expected, "{text:?}");
        };
        // Equal costs: the longer first piece.
        check("ab", &["ab"]);
        check("abc", &["ab", "c"]);
        check("\u{FEFF}aé", &["a", "<0xC3>", "<0xA9>"]);
        check("bad", &["b", "a", "<0x64>"]);
        check("", &[]);
    }

    #[test]
    fn tokens_that_begin_with_too_many_others_are_refused() {
        let mut tokens = Tokens::default();
        (1..=300).for_each(|k| tokens.push("a".repeat(k).as_bytes(), TokenType::Normal, -1.0).unwrap());
        let message = Plamo2::new(&tokens).unwrap_err().to_string();
        assert!(message.starts_with("300 tokens of the vocabulary begin with one another"), "{message}");
    }
}
