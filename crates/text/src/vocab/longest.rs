//! The longest token that starts at each byte of a text, for vocabularies that take the longest first.
//!
//! Tokens are looked for backwards, all at once: where one ends then, it starts in the text, and of those that end at one
//! place the longest is known. Looking forwards from each place would read a long token's first half again and again.

use std::cmp::Reverse;
use std::collections::HashMap;

use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Anchored, BuildError, MatchKind, PatternID};

/// A search for the longest token.
#[derive(Debug)]
pub(super) struct Longest {
    backwards: NFA,
}

impl Longest {
    /// From the bytes of every token, by id. An empty token is never found.
    pub(super) fn new<T: AsRef<[u8]>>(tokens: impl Iterator<Item = T>) -> Result<Longest, BuildError> {
        let reversed = tokens.map(|token| token.as_ref().iter().rev().copied().collect::<Vec<u8>>());
        Ok(Longest { backwards: NFA::builder().match_kind(MatchKind::Standard).build(reversed)? })
    }

    /// The id and the length of the longest token that starts at each byte; of equal tokens the first.
    pub(super) fn at_each_byte(&self, text: &[u8]) -> Vec<Option<(u32, usize)>> {
        let mut known = HashMap::new();
        let mut state = self.backwards.start_state(Anchored::No).expect("the search may start anywhere");
        let mut out = vec![None; text.len()];
        for (at, byte) in text.iter().enumerate().rev() {
            state = self.backwards.next_state(Anchored::No, state, *byte);
            if self.backwards.is_match(state) {
                out[at] = *known.entry(state).or_insert_with(|| self.longest_of(state));
            }
        }
        out
    }

    /// The longest of the tokens that are found in a state.
    fn longest_of(&self, state: StateID) -> Option<(u32, usize)> {
        let tokens = (0..self.backwards.match_len(state)).map(|i| self.backwards.match_pattern(state, i));
        let sized = |token: PatternID| (token.as_u32(), self.backwards.pattern_len(token));
        tokens.map(sized).filter(|(_, len)| *len > 0).max_by_key(|(id, len)| (*len, Reverse(*id)))
    }
}

#[cfg(test)]
mod tests {
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
