//! Stretches of DNA in a text: between their tags letters go six by six, whatever the merges say.

use crate::tokens::Tokens;

const OPEN: &str = "<dna>";
const CLOSE: &str = "</dna>";
/// Marks six letters in the file, so that they are no ordinary text.
const MARK: char = '\u{E000}';
const LETTERS: usize = 6;

/// The tokens around and in place of letters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dna {
    open: u32,
    close: u32,
    unknown: u32,
}

impl Dna {
    /// `None` where the vocabulary lacks one of the three tokens.
    pub(super) fn new(tokens: &Tokens) -> Option<Dna> {
        let id = |text: &str| tokens.id(text.as_bytes());
        Some(Dna { open: id(OPEN)?, close: id(CLOSE)?, unknown: id("<oov>")? })
    }

    /// Appends the ids of a fragment; `plain` encodes what lies outside of tags. A stretch that is not closed goes to
    /// the end.
    pub(super) fn encode(
        &self,
        tokens: &Tokens,
        text: &str,
        out: &mut Vec<u32>,
        mut plain: impl FnMut(&str, &mut Vec<u32>),
    ) {
        let mut rest = text;
        while let Some((before, inside)) = rest.split_once(OPEN) {
            plain(before, out);
            out.push(self.open);
            let (letters, after) = inside.split_once(CLOSE).map_or((inside, None), |(l, a)| (l, Some(a)));
            self.letters(tokens, letters, out);
            let Some(after) = after else { return };
            out.push(self.close);
            rest = after;
        }
        plain(rest, out);
    }

    /// Six letters at a time, upper case, the last filled up with `A`.
    fn letters(&self, tokens: &Tokens, text: &str, out: &mut Vec<u32>) {
        let mut word = String::new();
        let mut letters = text.chars().map(|c| c.to_ascii_uppercase()).peekable();
        while letters.peek().is_some() {
            word.clear();
            word.extend(letters.by_ref().chain(std::iter::repeat('A')).take(LETTERS));
            word.push(MARK);
            out.push(tokens.id(word.as_bytes()).unwrap_or(self.unknown));
        }
    }

    /// What a token prints: without the mark of six letters.
    pub(super) fn printed<'a>(&self, id: u32, text: &'a [u8]) -> &'a [u8] {
        let mark = MARK.encode_utf8(&mut [0; 4]).len();
        let marked = id > self.unknown && text.ends_with("\u{E000}".as_bytes());
        if marked { &text[..text.len() - mark] } else { text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::TokenType;

    #[test]
    fn six_by_six() {
        let mut tokens = Tokens::default();
        for text in ["<dna>", "</dna>", "<oov>", "ACGTAC\u{E000}", "GTAAAA\u{E000}"] {
            tokens.push(text.as_bytes(), TokenType::Normal, 0.0).unwrap();
        }
        let dna = Dna::new(&tokens).unwrap();
        let ids = |text: &str| {
            let mut out = Vec::new();
            dna.encode(&tokens, text, &mut out, |plain, out| out.extend(plain.bytes().map(u32::from)));
            out
        };
        assert_eq!(ids("x<dna>acgtacGT</dna>y"), [120, 0, 3, 4, 1, 121]);
        assert_eq!(ids("<dna>ACGTACN"), [0, 3, 2]);
        assert_eq!(ids("ab"), [97, 98]);
        assert_eq!(dna.printed(3, tokens.text(3)), b"ACGTAC");
    }
}
