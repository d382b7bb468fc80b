//! Unigram: of all ways to cut a normalised text into tokens the one with the highest sum of scores.
//!
//! Source: Kudo 2018, "Subword regularization"; the form of SentencePiece's normaliser.

use firth_gguf::Metadata;

use super::VocabError;
use super::charsmap::CharsMap;
use crate::automaton::Automaton;
use crate::tokens::{TokenType, Tokens};

/// Marks a space in token texts.
const BLOCK: char = '\u{2581}';
/// How much worse than the worst token an unknown character is.
const UNKNOWN: f64 = 10.0;

/// What a Unigram vocabulary has besides its tokens.
#[derive(Debug)]
pub(super) struct Ugm {
    /// Finds all tokens that end at a position; its texts are places in `ids`.
    search: Automaton,
    ids: Vec<u32>,
    unknown: f64,
    map: CharsMap,
    space_prefix: bool,
    merge_spaces: bool,
}

/// The best way to a position: its score, where its last token starts, and that token; `None` is unknown.
#[derive(Clone, Copy, Debug)]
struct Step {
    score: f64,
    start: u32,
    id: Option<u32>,
}

/// Working memory of encoding.
#[derive(Debug, Default)]
pub(super) struct UgmScratch {
    text: String,
    steps: Vec<Step>,
}

impl Ugm {
    /// Reads the normaliser; `space_prefix` puts a space in front of a text.
    pub(super) fn new(m: &Metadata, tokens: &Tokens, space_prefix: bool) -> Result<Ugm, VocabError> {
        let taken = [TokenType::Normal, TokenType::UserDefined, TokenType::Unused];
        let ids: Vec<u32> = tokens.ids().filter(|id| taken.contains(&tokens.kind(*id))).collect();
        let normal = tokens.ids().filter(|id| tokens.kind(*id) == TokenType::Normal);
        let worst = normal.map(|id| f64::from(tokens.score(id))).fold(f64::INFINITY, f64::min);
        let texts: Vec<&[u8]> = ids.iter().map(|id| tokens.text(*id)).collect();
        let search = Automaton::shallow(&texts, "end in")?;
        let merge_spaces = m.bool("tokenizer.ggml.remove_extra_whitespaces")?.unwrap_or(false);
        let unknown = if worst.is_finite() { worst - UNKNOWN } else { -UNKNOWN };
        Ok(Ugm { search, ids, unknown, map: CharsMap::new(m)?, space_prefix, merge_spaces })
    }

    /// Appends the ids of a fragment. What no token covers is `unk`, once for each run, and vanishes where there is
    /// no such token.
    pub(super) fn encode(
        &self,
        tokens: &Tokens,
        text: &str,
        unk: Option<u32>,
        s: &mut UgmScratch,
        out: &mut Vec<u32>,
    ) {
        s.text.clear();
        self.normalise(text, &mut s.text);
        self.find_best(tokens, s);
        let first = out.len();
        let mut at = s.text.len();
        let mut after_unknown = false;
        while at > 0 {
            let step = s.steps[at];
            match step.id {
                Some(id) => out.push(id),
                None if !after_unknown => out.extend(unk),
                None => {}
            }
            after_unknown = step.id.is_none();
            at = step.start as usize;
        }
        out[first..].reverse();
    }

    /// Fills `steps` by position. A token counts 0 where the user defined it, else its score; of equal sums the one
    /// whose last token starts first stays.
    fn find_best(&self, tokens: &Tokens, s: &mut UgmScratch) {
        let UgmScratch { text, steps } = s;
        steps.clear();
        steps.resize(text.len() + 1, Step { score: f64::NEG_INFINITY, start: 0, id: None });
        steps[0].score = 0.0;
        let (mut state, mut first) = (Automaton::START, 0);
        for (at, byte) in text.bytes().enumerate() {
            state = self.search.next(state, byte);
            let end = at + 1;
            let mut covered = false;
            for found in self.search.ending(state) {
                let (id, start) = (self.ids[found as usize], end - self.search.len_of(found));
                covered |= start == first;
                let own =
                    if tokens.kind(id) == TokenType::UserDefined { 0.0 } else { f64::from(tokens.score(id)) };
                step(steps, start, end, own, Some(id));
            }
            if text.is_char_boundary(end) {
                if !covered {
                    step(steps, first, end, self.unknown, None);
                }
                first = end;
            }
        }
    }

    /// Maps characters as the file says, and writes spaces as tokens have them.
    fn normalise(&self, text: &str, out: &mut String) {
        let (mut in_word, mut prefixed) = (false, false);
        let mut push = |c: char| {
            if c == ' ' {
                in_word = false;
                if !self.merge_spaces {
                    out.push(BLOCK);
                }
                return;
            }
            if !in_word {
                in_word = true;
                if (self.space_prefix && !prefixed) || self.merge_spaces {
                    out.push(BLOCK);
                    prefixed = true;
                }
            }
            out.push(c);
        };
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            // A match may end inside of a character only where the map is broken; then it is none.
            let found = self.map.longest(rest.as_bytes()).filter(|(len, _)| rest.is_char_boundary(*len));
            match found {
                Some((len, replacement)) => {
                    String::from_utf8_lossy(replacement).chars().for_each(&mut push);
                    rest = &rest[len..];
                }
                None => {
                    push(c);
                    rest = &rest[c.len_utf8()..];
                }
            }
        }
    }
}

fn step(steps: &mut [Step], start: usize, end: usize, own: f64, id: Option<u32>) {
    let score = steps[start].score + own;
    if score > steps[end].score {
        steps[end] = Step { score, start: start as u32, id };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        let mut tokens = Tokens::default();
        let all = [
            ("<unk>", TokenType::Unknown, 0.0),
            ("▁", TokenType::Normal, -2.0),
            ("▁a", TokenType::Normal, -3.0),
            ("a", TokenType::Normal, -3.5),
            ("ab", TokenType::Normal, -4.0),
            ("▁ab", TokenType::Normal, -7.5),
            ("b", TokenType::Normal, -5.0),
            ("bc", TokenType::UserDefined, -50.0),
            ("é", TokenType::Normal, -6.0),
        ];
        for (text, kind, score) in all {
            tokens.push(text.as_bytes(), kind, score).unwrap();
        }
        let m = Metadata::new();
        let ugm = Ugm::new(&m, &tokens, true).unwrap();
        let mut found = Vec::new();
        ugm.encode(&tokens, text, Some(0), &mut UgmScratch::default(), &mut found);
        let found = found.iter().map(|&id| std::str::from_utf8(tokens.text(id)).unwrap()).collect::<Vec<_>>();
        assert_eq!(found, expected, "{text:?}");
    }

    #[test]
    fn the_best_sum_wins() {
        check("ab", &["▁", "ab"]);
        check("a b", &["▁a", "▁", "b"]);
        check("abc", &["▁a", "bc"]);
        check("é漢字a", &["▁", "é", "<unk>", "a"]);
        check("", &[]);
        check("  ", &["▁", "▁"]);
    }

    #[test]
    fn tokens_that_end_in_too_many_others_are_refused() {
        let of = |n: usize| {
            let mut tokens = Tokens::default();
            (1..=n).for_each(|k| tokens.push("a".repeat(k).as_bytes(), TokenType::Normal, -1.0).unwrap());
            Ugm::new(&Metadata::new(), &tokens, true).map(|_| ()).map_err(|e| e.to_string())
        };
        assert_eq!(of(256), Ok(()));
        let message = of(300).unwrap_err();
        assert!(
            message.starts_with("300 tokens of the vocabulary end in one another, expected at most 256"),
            "{message}"
        );
    }
}
