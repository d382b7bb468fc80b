//! Cutting special tokens out of a text: the longest one over the whole text first.

use crate::VocabError;
use crate::automaton::Automaton;
use crate::tokens::Tokens;

/// A piece of the text to encode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fragment {
    /// Bytes `start..end` of the text.
    Text(usize, usize),
    /// A special token.
    Token(u32),
}

/// Which white space a token swallows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Strip {
    /// In front of it.
    pub left: bool,
    /// Behind it.
    pub right: bool,
}

#[derive(Clone, Copy, Debug)]
struct Special {
    id: u32,
    len: usize,
    hidden: bool,
    strip: Strip,
}

/// The special tokens of a vocabulary.
#[derive(Debug, Default)]
pub(crate) struct Specials {
    /// Longest text first, of equal length the lowest id.
    list: Vec<Special>,
    texts: Vec<String>,
    search: Option<Automaton>,
}

/// Working memory of a cut.
#[derive(Debug, Default)]
pub(crate) struct CutScratch {
    counts: Vec<u32>,
    hits: Vec<(u32, usize)>,
    covered: Vec<bool>,
    found: Vec<(usize, usize, u32)>,
    /// The fragments of the last cut.
    pub fragments: Vec<Fragment>,
}

/// A token that occurs at more than one in this many positions is searched for on its own.
const RARE: usize = 64;

impl Specials {
    /// Collects the special tokens; a text that is no UTF-8 can occur in no text and is left out.
    pub(crate) fn new(tokens: &Tokens, strip: impl Fn(u32) -> Strip) -> Result<Specials, VocabError> {
        let mut list = tokens.ids().filter(|&id| tokens.is_special(id)).collect::<Vec<_>>();
        list.retain(|&id| std::str::from_utf8(tokens.text(id)).is_ok());
        list.sort_by_key(|&id| (std::cmp::Reverse(tokens.text(id).len()), id));
        let text = |&id: &u32| String::from_utf8_lossy(tokens.text(id)).into_owned();
        let texts = list.iter().map(text).collect::<Vec<_>>();
        let search = if texts.is_empty() { None } else { Some(Automaton::shallow(&texts, "end in")?) };
        let special =
            |id| Special { id, len: tokens.text(id).len(), hidden: tokens.is_hidden(id), strip: strip(id) };
        Ok(Specials { list: list.into_iter().map(special).collect(), texts, search })
    }

    /// Cuts `text`. Control and unknown tokens are looked for only with `parse_special`.
    pub(crate) fn cut(&self, text: &str, parse_special: bool, s: &mut CutScratch) {
        s.fragments.clear();
        s.found.clear();
        if self.count(text, parse_special, s) {
            self.choose(text, s);
        }
        s.found.sort_unstable();
        let mut at = 0;
        for &(start, end, id) in &s.found {
            if start > at {
                s.fragments.push(Fragment::Text(at, start));
            }
            s.fragments.push(Fragment::Token(id));
            at = end;
        }
        if at < text.len() {
            s.fragments.push(Fragment::Text(at, text.len()));
        }
    }

    /// Counts the occurrences of each token, overlapping ones too, and says whether there are any.
    fn count(&self, text: &str, parse_special: bool, s: &mut CutScratch) -> bool {
        s.counts.clear();
        s.counts.resize(self.list.len(), 0);
        let mut any = false;
        for (special, _) in self.hits(text) {
            if parse_special || !self.list[special].hidden {
                s.counts[special] += 1;
                any = true;
            }
        }
        any
    }

    /// Every occurrence of every token: its place in the list, and where it starts.
    fn hits(&self, text: &str) -> impl Iterator<Item = (usize, usize)> {
        self.search.iter().flat_map(move |search| {
            let mut state = Automaton::START;
            text.bytes().enumerate().flat_map(move |(at, byte)| {
                state = search.next(state, byte);
                search.ending(state).map(move |i| (i as usize, at + 1 - search.len_of(i)))
            })
        })
    }

    /// Takes occurrences, longest token first and from left to right, where they touch nothing taken before.
    fn choose(&self, text: &str, s: &mut CutScratch) {
        s.hits.clear();
        let rare = |count: u32| count > 0 && count as usize * RARE <= text.len() + 8 * RARE;
        for (special, start) in self.hits(text) {
            if rare(s.counts[special]) {
                s.hits.push((special as u32, start));
            }
        }
        s.hits.sort_unstable();
        s.covered.clear();
        s.covered.resize(text.len(), false);
        let mut hits = 0;
        for (i, special) in self.list.iter().enumerate() {
            if rare(s.counts[i]) {
                while let Some(&(_, start)) = s.hits.get(hits).filter(|hit| hit.0 as usize == i) {
                    hits += 1;
                    take(special, text, start, s);
                }
            } else if s.counts[i] > 0 {
                self.choose_frequent(i, text, s);
            }
        }
    }

    fn choose_frequent(&self, i: usize, text: &str, s: &mut CutScratch) {
        let special = &self.list[i];
        let mut from = 0;
        while let Some(at) = text.get(from..).and_then(|rest| rest.find(&self.texts[i])) {
            let start = from + at;
            let end = start + special.len;
            let last = if s.covered[end - 1] { end - 1 } else { start };
            if take(special, text, start, s) {
                from = end;
                continue;
            }
            let free = s.covered[last..].iter().position(|covered| !covered);
            from = last + free.unwrap_or(text.len() - last);
            while !text.is_char_boundary(from) {
                from += 1;
            }
        }
    }
}

/// Takes the occurrence at `start` unless it touches one that was taken; says whether it did.
///
/// Those are at least as long, so one that touches it covers its first byte or its last.
fn take(special: &Special, text: &str, start: usize, s: &mut CutScratch) -> bool {
    let end = start + special.len;
    if s.covered[start] || s.covered[end - 1] {
        return false;
    }
    let blank = |at: usize| matches!(text.as_bytes()[at], b' ' | 0x09..=0x0D);
    let (mut from, mut to) = (start, end);
    while special.strip.left && from > 0 && !s.covered[from - 1] && blank(from - 1) {
        from -= 1;
    }
    while special.strip.right && to < text.len() && !s.covered[to] && blank(to) {
        to += 1;
    }
    s.covered[from..to].fill(true);
    s.found.push((from, to, special.id));
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::TokenType;

    fn specials(texts: &[(&str, TokenType)], strip: Strip) -> Specials {
        let mut tokens = Tokens::default();
        for (text, kind) in texts {
            tokens.push(text.as_bytes(), *kind, 0.0).unwrap();
        }
        Specials::new(&tokens, |_| strip).unwrap()
    }

    /// The published rule, as it reads: every token, longest first, in every fragment that is still text.
    fn plain(specials: &Specials, text: &str, parse_special: bool) -> Vec<Fragment> {
        let mut fragments = if text.is_empty() { vec![] } else { vec![Fragment::Text(0, text.len())] };
        for (special, needle) in specials.list.iter().zip(&specials.texts) {
            if special.hidden && !parse_special {
                continue;
            }
            let mut next = Vec::new();
            for fragment in fragments {
                let Fragment::Text(mut start, end) = fragment else {
                    next.push(fragment);
                    continue;
                };
                while let Some(at) = text[start..end].find(needle.as_str()).map(|at| start + at) {
                    let left = text[start..at].len();
                    if left > 0 {
                        next.push(Fragment::Text(start, at));
                    }
                    next.push(Fragment::Token(special.id));
                    start = at + needle.len();
                }
                if start < end {
                    next.push(Fragment::Text(start, end));
                }
            }
            fragments = next;
        }
        fragments
    }

    fn cut(specials: &Specials, text: &str, parse_special: bool) -> Vec<Fragment> {
        let mut scratch = CutScratch::default();
        specials.cut(text, parse_special, &mut scratch);
        scratch.fragments
    }

    #[test]
    fn longest_token_wins_over_an_earlier_one() {
        use TokenType::{Control, UserDefined};
        let s = specials(&[("<ab", UserDefined), ("b>cd", UserDefined), ("<s>", Control)], Strip::default());
        let expected = [Fragment::Text(0, 2), Fragment::Token(1), Fragment::Token(2)];
        assert_eq!(cut(&s, "<ab>cd<s>", true), expected);
        assert_eq!(cut(&s, "<s>", false), [Fragment::Text(0, 3)]);
        assert_eq!(cut(&s, "", true), []);
    }

    #[test]
    fn strip_takes_white_space() {
        let strip = Strip { left: true, right: true };
        let s = specials(&[("<m>", TokenType::Control)], strip);
        assert_eq!(
            cut(&s, "a \n<m>\t <m>", true),
            [Fragment::Text(0, 1), Fragment::Token(0), Fragment::Token(0),]
        );
    }

    #[test]
    fn agrees_with_the_plain_rule() {
        let kinds = [TokenType::UserDefined, TokenType::Control];
        let texts = ["a", "aa", "aaa", "ab", "bab", "ba", "é", "éa", "b\n", "\n\n"];
        let list = texts.iter().enumerate().map(|(i, t)| (*t, kinds[i % 2])).collect::<Vec<_>>();
        let s = specials(&list, Strip::default());
        let mut seed = 1u32;
        for round in 0..2000 {
            let len = round % 40;
            let mut next = || {
                seed = seed.wrapping_mul(1664525).wrapping_add(1013904223);
                ['a', 'a', 'b', 'é', '\n', 'c'][(seed >> 16) as usize % 6]
            };
            let mut text = (0..len).map(|_| next()).collect::<String>();
            if round % 100 == 99 {
                text = text.repeat(100);
            }
            for parse_special in [false, true] {
                assert_eq!(cut(&s, &text, parse_special), plain(&s, &text, parse_special), "{text:?}");
            }
        }
    }
}
