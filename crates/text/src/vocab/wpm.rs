//! WordPiece: words of a normalised text, each cut into the longest tokens from its start.

use firth_gguf::Metadata;
use unicode_normalization::char::decompose_canonical;
use unicode_properties::{GeneralCategory, GeneralCategoryGroup, UnicodeGeneralCategory};

use super::VocabError;
use super::longest::Longest;
use crate::pre::is_space;
use crate::tokens::Tokens;

/// Marks the start of a word in token texts.
const BLOCK: char = '\u{2581}';

/// What a WordPiece vocabulary has besides its tokens.
#[derive(Debug)]
pub(super) struct Wpm {
    /// Finds the longest token at a position, in time linear in its length. Pattern numbers are ids.
    longest: Longest,
    lower_case: bool,
    strip_accents: bool,
}

impl Wpm {
    /// Reads the switches of the normaliser. Accents are stripped where case is, unless a key says otherwise.
    pub(super) fn new(m: &Metadata, tokens: &Tokens) -> Result<Wpm, VocabError> {
        let lower_case = m.bool("tokenizer.ggml.normalizer.lowercase")?.unwrap_or(true);
        let strip_accents = m.bool("tokenizer.ggml.normalizer.strip_accents")?.unwrap_or(lower_case);
        let longest = Longest::new(tokens.ids().map(|id| tokens.text(id)))?;
        Ok(Wpm { longest, lower_case, strip_accents })
    }

    /// Appends the ids of a fragment. A word that tokens cannot spell is `unk` as a whole, and vanishes where
    /// there is no such token.
    pub(super) fn encode(&self, text: &str, unk: Option<u32>, word: &mut String, out: &mut Vec<u32>) {
        word.clear();
        for c in text.chars() {
            let c = if self.strip_accents { base(c) } else { c };
            if is_space(c) {
                self.end_word(unk, word, out);
                continue;
            }
            if self.is_dropped(c) {
                continue;
            }
            if stands_alone(c) {
                self.end_word(unk, word, out);
                word.push(c);
                self.end_word(unk, word, out);
            } else {
                word.push(if self.lower_case { lower(c) } else { c });
            }
        }
        self.end_word(unk, word, out);
    }

    fn is_dropped(&self, c: char) -> bool {
        use GeneralCategory::{Control, Format, PrivateUse};
        let accent = self.strip_accents && c.general_category_group() == GeneralCategoryGroup::Mark;
        accent || c == '\u{FFFD}' || matches!(c.general_category(), Control | Format | PrivateUse)
    }

    fn end_word(&self, unk: Option<u32>, word: &mut String, out: &mut Vec<u32>) {
        if word.is_empty() {
            return;
        }
        word.insert(0, BLOCK);
        let longest = self.longest.at_each_byte(word.as_bytes());
        let start = out.len();
        let mut at = 0;
        while at < word.len() {
            let Some((id, len)) = longest[at] else {
                out.truncate(start);
                out.extend(unk);
                break;
            };
            out.push(id);
            at += len;
        }
        word.clear();
    }
}

/// The first character of the canonical decomposition. Of a Hangul syllable only the leading consonant is left,
/// as the source has it.
fn base(c: char) -> char {
    let mut first = None;
    decompose_canonical(c, |part| {
        first.get_or_insert(part);
    });
    first.unwrap_or(c)
}

/// The simple lower-case map: one character to one.
fn lower(c: char) -> char {
    c.to_lowercase().next().unwrap_or(c)
}

/// Whether a character is a word of its own: punctuation, marks of ASCII, ideographs.
fn stands_alone(c: char) -> bool {
    let ideograph = matches!(
        c as u32,
        0x4E00..=0x9FFF
            | 0x3400..=0x4DBF
            | 0x20000..=0x2A6DF
            | 0x2A700..=0x2B73F
            | 0x2B740..=0x2B81F
            | 0x2B920..=0x2CEAF
            | 0xF900..=0xFAFF
            | 0x2F800..=0x2FA1F
    );
    ideograph || c.is_ascii_punctuation() || c.general_category_group() == GeneralCategoryGroup::Punctuation
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::TokenType;

    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        let mut tokens = Tokens::default();
        for text in ["[UNK]", "▁a", "▁ab", "bc", "c", "▁cafe", "▁漢", "▁!", "▁$", "▁i", "▁가"]
        {
            tokens.push(text.as_bytes(), TokenType::Normal, 0.0).unwrap();
        }
        let longest = Longest::new(tokens.ids().map(|id| tokens.text(id))).unwrap();
        let wpm = Wpm { longest, lower_case: true, strip_accents: true };
        let mut found = Vec::new();
        wpm.encode(text, Some(0), &mut String::new(), &mut found);
        let found = found.iter().map(|&id| std::str::from_utf8(tokens.text(id)).unwrap()).collect::<Vec<_>>();
        assert_eq!(found, expected, "{text:?}");
    }

    #[test]
    fn longest_token_first() {
        check("abc abbc", &["▁ab", "c", "▁ab", "bc"]);
        check("abx  a\u{200b}b", &["[UNK]", "▁ab"]);
    }

    #[test]
    fn text_is_normalised() {
        check("CAFÉ\tCafe\u{301}İ I", &["▁cafe", "[UNK]", "▁i"]);
        check("a漢!a$", &["▁a", "▁漢", "▁!", "▁a", "▁$"]);
        check("가", &["[UNK]"]);
        check("\u{fffd}\u{0}\u{301} ", &[]);
    }
}
