//! PLaMo-2: the cut of least cost, found from the end of the text with scores in whole numbers.

use aho_corasick::{AhoCorasick, Input, MatchKind};

use super::{EncodeError, VocabError};
use crate::tokens::{TokenType, Tokens};

/// Cost of a character that no token covers.
const UNKNOWN: i64 = 10_000_000;
/// Scores are kept in this part of one.
const UNIT: f64 = 1e4;

/// What a PLaMo-2 vocabulary has besides its tokens.
#[derive(Debug)]
pub(super) struct Plamo2 {
    search: AhoCorasick,
    /// Id and score of each pattern.
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
        let texts = pieces.iter().map(|(id, _)| tokens.text(*id));
        let search = AhoCorasick::builder().match_kind(MatchKind::Standard).build(texts)?;
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
        // By starts: matches come by ends, so those of the whole text are kept as (start, end, pattern).
        let mut found: Vec<(u32, u32, u32)> = self
            .search
            .find_overlapping_iter(Input::new(text))
            .map(|m| (m.start() as u32, m.end() as u32, m.pattern().as_u32()))
            .collect();
        found.sort_unstable();
        steps.clear();
        steps.resize(text.len() + 1, Step { cost: i64::MAX, end: 0, id: None });
        steps[text.len()].cost = 0;
        for (start, c) in text.char_indices().rev() {
            let mut best = Step { cost: i64::MAX, end: 0, id: None };
            while let Some(&(_, end, pattern)) = found.last().filter(|f| f.0 as usize >= start) {
                found.pop();
                let (id, score) = self.pieces[pattern as usize];
                let rest = steps[end as usize].cost;
                let cost = rest.saturating_sub(score);
                if rest < i64::MAX && cost < best.cost {
                    best = Step { cost, end, id: Some(id) };
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
}
