//! Which of many texts end at each byte of another text.
//!
//! Source: Aho and Corasick 1975. A state knows the nearest state whose text ends there too, not all of them, so memory
//! grows with the bytes of the texts alone, however they lie in one another. (The crate `aho-corasick` writes all of them
//! into every state, which for a vocabulary made to do harm is thousands of times its bytes.)

use crate::VocabError;

/// No text.
const NONE: u32 = u32::MAX;

/// Bytes of all texts at most: states have numbers of 32 bits.
const MAX_BYTES: usize = 1 << 30;

/// So many texts may end in one another where all that end at a byte are looked at. The vocabularies of the world have
/// at most 86, which are runs of spaces.
pub(crate) const MAX_NESTED: usize = 256;

/// A state: what of the text read so far is the start of one of the texts, as long as may be.
#[derive(Clone, Copy, Debug)]
struct State {
    /// Its children follow one another.
    first_child: u32,
    n_children: u16,
    /// The longest other state that what was read ends in.
    fail: u32,
    /// The text that it is.
    text: u32,
    /// The longest shorter state that is a text, 0 for none.
    shorter: u32,
}

/// The texts, ready to be looked for.
#[derive(Debug)]
pub(crate) struct Automaton {
    /// Short ones first, the root at 0.
    states: Vec<State>,
    /// The byte that leads to each state; ascending among children.
    labels: Vec<u8>,
    lens: Vec<u32>,
    nested: usize,
}

impl Automaton {
    /// Of texts by number. An empty one is never found; of equal ones the first is.
    ///
    /// # Errors
    /// Texts of more than 2^30 bytes.
    pub(crate) fn new<T: AsRef<[u8]>>(texts: &[T]) -> Result<Automaton, VocabError> {
        let bytes: usize = texts.iter().map(|t| t.as_ref().len()).sum();
        if bytes > MAX_BYTES || texts.len() >= NONE as usize {
            return Err(VocabError::Bytes { found: bytes });
        }
        let mut out = Automaton {
            states: Vec::new(),
            labels: Vec::new(),
            lens: texts.iter().map(|t| t.as_ref().len() as u32).collect(),
            nested: 0,
        };
        out.grow(texts);
        out.link();
        Ok(out)
    }

    /// As [`Automaton::new`], for those who look at all texts that end at a byte.
    ///
    /// # Errors
    /// Also more than [`MAX_NESTED`] texts that end in one another; `how` says in which sense.
    pub(crate) fn shallow<T: AsRef<[u8]>>(texts: &[T], how: &'static str) -> Result<Automaton, VocabError> {
        let out = Automaton::new(texts)?;
        if out.nested > MAX_NESTED {
            return Err(VocabError::Nested { found: out.nested, how });
        }
        Ok(out)
    }

    /// Where a text begins.
    pub(crate) const START: u32 = 0;

    /// The state behind another byte.
    pub(crate) fn next(&self, state: u32, byte: u8) -> u32 {
        self.go(state, byte, || {})
    }

    /// The texts that end in a state, longest first.
    pub(crate) fn ending(&self, state: u32) -> impl Iterator<Item = u32> + '_ {
        let nearest =
            |s: u32| if s == 0 || self.states[s as usize].text != NONE { s } else { self.shorter(s) };
        let found = std::iter::successors(Some(nearest(state)), |s| Some(self.shorter(*s)));
        found.take_while(|s| *s != 0).map(|s| self.states[s as usize].text)
    }

    /// Bytes of a text.
    pub(crate) fn len_of(&self, text: u32) -> usize {
        self.lens[text as usize] as usize
    }

    fn shorter(&self, state: u32) -> u32 {
        self.states[state as usize].shorter
    }

    /// As [`Automaton::next`]; `tried` is called for each state that was looked at.
    fn go(&self, mut state: u32, byte: u8, mut tried: impl FnMut()) -> u32 {
        loop {
            tried();
            match self.child(state, byte) {
                Some(child) => return child,
                None if state == 0 => return 0,
                None => state = self.states[state as usize].fail,
            }
        }
    }

    fn child(&self, state: u32, byte: u8) -> Option<u32> {
        let s = &self.states[state as usize];
        let (first, n) = (s.first_child as usize, usize::from(s.n_children));
        let at = self.labels[first..first + n].binary_search(&byte).ok()?;
        Some((first + at) as u32)
    }

    /// Makes the tree, level by level: a state stands for a run of the sorted texts that begin alike.
    fn grow<T: AsRef<[u8]>>(&mut self, texts: &[T]) {
        let text = |i: u32| texts[i as usize].as_ref();
        let mut order: Vec<u32> = (0..texts.len() as u32).collect();
        order.sort_by(|&a, &b| text(a).cmp(text(b)).then(a.cmp(&b)));
        let leaf = State { first_child: 0, n_children: 0, fail: 0, text: NONE, shorter: 0 };
        // Runs of the states not yet looked at, and their length in bytes.
        let mut runs = std::collections::VecDeque::from([(0..order.len(), 0usize)]);
        self.states.push(leaf);
        self.labels.push(0);
        let mut state = 0;
        while let Some((mut run, depth)) = runs.pop_front() {
            while !run.is_empty() && text(order[run.start]).len() == depth {
                let own = &mut self.states[state].text;
                if depth > 0 && *own == NONE {
                    *own = order[run.start];
                }
                run.start += 1;
            }
            self.states[state].first_child = self.states.len() as u32;
            while !run.is_empty() {
                let byte = text(order[run.start])[depth];
                let same = order[run.clone()].partition_point(|i| text(*i)[depth] == byte);
                runs.push_back((run.start..run.start + same, depth + 1));
                self.states.push(leaf);
                self.labels.push(byte);
                self.states[state].n_children += 1;
                run.start += same;
            }
            state += 1;
        }
    }

    /// Finds where each state goes on when it has no child, shorter states first.
    fn link(&mut self) {
        let mut hits = vec![0u32; self.states.len()];
        for parent in 0..self.states.len() as u32 {
            let s = self.states[parent as usize];
            for child in s.first_child..s.first_child + u32::from(s.n_children) {
                let label = self.labels[child as usize];
                let fail = if parent == 0 { 0 } else { self.next(s.fail, label) };
                let f = self.states[fail as usize];
                let shorter = if f.text == NONE { f.shorter } else { fail };
                let c = &mut self.states[child as usize];
                (c.fail, c.shorter) = (fail, shorter);
                hits[child as usize] = hits[shorter as usize] + u32::from(c.text != NONE);
            }
        }
        self.nested = hits.into_iter().max().unwrap_or(0) as usize;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letters(n: usize, odd: u32) -> String {
        let letter = |i: u32| if i.wrapping_mul(2_654_435_761) >> 27 < odd { 'b' } else { 'a' };
        (0..n as u32).map(letter).collect()
    }

    #[test]
    fn as_looking_from_each_byte_would_find() {
        let texts = ["", "a", "aa", "ab", "aab", "aaaab", "ba", "a", "bab", "\u{e9}"];
        let automaton = Automaton::new(&texts).unwrap();
        let text = letters(400, 5) + "x\u{e9}ab";
        let mut state = Automaton::START;
        for (at, byte) in text.bytes().enumerate() {
            state = automaton.next(state, byte);
            let found: Vec<&str> = automaton.ending(state).map(|t| texts[t as usize]).collect();
            let ends = |t: &&str| !t.is_empty() && text.as_bytes()[..=at].ends_with(t.as_bytes());
            let mut expected: Vec<&str> =
                texts[..7].iter().chain(&texts[8..]).copied().filter(ends).collect();
            expected.sort_by_key(|t| std::cmp::Reverse(t.len()));
            assert_eq!(found, expected, "byte {at}");
        }
        assert_eq!(automaton.nested, 3);
        assert_eq!(automaton.ending(automaton.next(0, b'a')).collect::<Vec<_>>(), [1]);
    }

    /// States, looks and hits of texts made to cost much: all in proportion to the bytes.
    #[test]
    fn hostile_texts_cost_no_more_than_their_bytes() {
        let mut texts: Vec<String> = (1..=MAX_NESTED).map(|n| "a".repeat(n)).collect();
        texts.push("a".repeat(65_536) + "c");
        texts.push("b".to_string() + &"a".repeat(30_000) + "d");
        let automaton = Automaton::shallow(&texts, "end in").unwrap();
        assert!(automaton.states.len() <= texts.iter().map(String::len).sum::<usize>() + 1);
        for text in ["a".repeat(200_000), letters(200_000, 1), ("a".repeat(60_000) + "b").repeat(3)] {
            let (mut state, mut looks, mut hits) = (Automaton::START, 0, 0);
            for byte in text.bytes() {
                state = automaton.go(state, byte, || looks += 1);
                hits += automaton.ending(state).count();
            }
            assert!(looks <= 2 * text.len(), "{looks} looks at {} bytes", text.len());
            assert!(hits <= MAX_NESTED * text.len());
        }
    }

    #[test]
    fn too_many_texts_in_one_another_are_refused() {
        let texts: Vec<String> = (1..=MAX_NESTED + 1).map(|n| "a".repeat(n)).collect();
        let message = Automaton::shallow(&texts, "end in").unwrap_err().to_string();
        let expected = "257 tokens of the vocabulary end in one another, expected at most 256: the time to cut a text \
                        would grow with both";
        assert_eq!(message, expected);
        // Those that only begin alike are no trouble.
        let texts: Vec<String> = (1..=900).map(|n| format!("x{}", "y".repeat(n))).collect();
        assert_eq!(Automaton::shallow(&texts, "end in").unwrap().nested, 1);
    }
}
