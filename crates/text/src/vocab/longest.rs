//! The longest token that starts at each byte of a text, for vocabularies that take the longest first.
//!
//! Tokens are looked for backwards, all at once: where one ends then, it starts in the text, and of those that end at one
//! place the longest is known. Looking forwards from each place would read a long token's first half again and again.

use super::VocabError;
use crate::automaton::Automaton;

/// A search for the longest token.
#[derive(Debug)]
pub(super) struct Longest {
    backwards: Automaton,
}

impl Longest {
    /// From the bytes of every token, by id. An empty token is never found.
    pub(super) fn new<T: AsRef<[u8]>>(tokens: impl Iterator<Item = T>) -> Result<Longest, VocabError> {
        Ok(Longest { backwards: Automaton::new(&tokens.map(backwards).collect::<Vec<_>>())? })
    }

    /// The id and the length of the longest token that starts at each byte; of equal tokens the first.
    pub(super) fn at_each_byte(&self, text: &[u8]) -> Vec<Option<(u32, usize)>> {
        let mut state = Automaton::START;
        let mut out = vec![None; text.len()];
        for (at, byte) in text.iter().enumerate().rev() {
            state = self.backwards.next(state, *byte);
            let longest = self.backwards.ending(state).next();
            out[at] = longest.map(|token| (token, self.backwards.len_of(token)));
        }
        out
    }
}

/// The bytes of a text, last first.
pub(super) fn backwards(text: impl AsRef<[u8]>) -> Vec<u8> {
    text.as_ref().iter().rev().copied().collect()
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;

    use super::*;

    #[test]
    fn as_looking_forwards_from_each_byte_would_find() {
        let tokens = ["", "a", "aa", "ab", "aab", "aaaab", "ba", "a"];
        let longest = Longest::new(tokens.iter()).unwrap();
        let mut text = String::new();
        for i in 0..400u32 {
            text.push(if i.wrapping_mul(2_654_435_761) >> 29 == 0 { 'b' } else { 'a' });
        }
        text.push('x');
        let found = longest.at_each_byte(text.as_bytes());
        for at in 0..text.len() {
            let all = tokens.iter().enumerate().filter(|(_, t)| !t.is_empty() && text[at..].starts_with(**t));
            let expected = all.max_by_key(|(id, t)| (t.len(), Reverse(*id)));
            assert_eq!(found[at], expected.map(|(id, t)| (id as u32, t.len())), "byte {at}");
        }
    }
}
