//! From ids back to text.

use super::rwkv::unescape;
use super::{Vocab, VocabKind};
use crate::bytes;
use crate::tokens::TokenType;

impl Vocab {
    /// Appends what the token prints to the table; called once for each id in order.
    pub(super) fn print(&mut self, id: u32) {
        let (text, out) = (self.tokens.text(id), &mut self.printed);
        let text = self.dna.as_ref().map_or(text, |dna| dna.printed(id, text));
        let spelt = self.bpe.as_ref().map(|bpe| bpe.pre);
        match self.tokens.kind(id) {
            _ if self.kind == VocabKind::Test => out.extend_from_slice(format!("{id:x}").as_bytes()),
            _ if self.kind == VocabKind::Rwkv => out.extend(unescape(text)),
            _ if self.tokens.is_special(id) => out.extend_from_slice(text),
            TokenType::Normal if self.kind == VocabKind::Plamo2 => out.extend_from_slice(text),
            TokenType::Normal if spelt.is_some_and(|pre| !pre.escaped && !pre.raw) => {
                print_letters(text, out)
            }
            TokenType::Normal if spelt.is_some_and(|pre| !pre.escaped) => out.extend_from_slice(text),
            TokenType::Normal => print_escaped(text, out),
            TokenType::Byte => match bytes::hex_byte(text) {
                Some(byte) => out.push(byte),
                None => out.extend_from_slice(text),
            },
            _ => {}
        }
    }

    /// The bytes a token prints, which need not be whole characters.
    ///
    /// Without `special`, control and unknown tokens print nothing. An id outside the vocabulary prints nothing.
    pub fn piece(&self, id: u32, special: bool) -> &[u8] {
        if !special && self.tokens.is_hidden(id) {
            return &[];
        }
        let bounds = self.bounds.get(id as usize).zip(self.bounds.get(id as usize + 1));
        bounds.map_or(&[], |(&start, &end)| &self.printed[start..end])
    }

    /// The bytes of a sequence: its pieces, less the space that encoding put in front of the text.
    ///
    /// So `decode(encode(x))` is `x` for byte-level vocabularies, and for SentencePiece where `x` holds no U+2581.
    pub fn decode(&self, ids: &[u32], special: bool) -> Vec<u8> {
        let mut out = Vec::new();
        for &id in ids {
            out.extend_from_slice(self.piece(id, special));
        }
        let spaced = matches!(self.kind, VocabKind::Spm | VocabKind::Wpm | VocabKind::Ugm);
        if spaced && self.add_space_prefix && out.first() == Some(&b' ') {
            out.remove(0);
        }
        out
    }

    /// [`decode`](Vocab::decode) as text; bytes that are no UTF-8 become U+FFFD.
    pub fn decode_text(&self, ids: &[u32], special: bool) -> String {
        let bytes = self.decode(ids, special);
        String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
    }

    /// Whether the vocabulary's own tokeniser tidies the spaces of a decoded sequence.
    ///
    /// Neither [`decode`](Vocab::decode) nor a stream does it: it loses spaces that were in the text.
    pub fn clean_spaces(&self) -> bool {
        self.clean_spaces
    }
}

/// Tidies spaces as [`Vocab::clean_spaces`] speaks of: none before `?` `!` `.` `,` or around a lone `'`, and
/// none before `'s` `'m` `'re` `'ve`.
pub fn tidy_spaces(text: &str) -> String {
    let mut text = text.to_owned();
    for (from, to) in [
        (" ?", "?"),
        (" !", "!"),
        (" .", "."),
        (" ,", ","),
        (" ' ", "'"),
        (" 's", "'s"),
        (" 'm", "'m"),
        (" 're", "'re"),
        (" 've", "'ve"),
    ] {
        if text.contains(from) {
            text = text.replace(from, to);
        }
    }
    text
}

/// Back from the byte alphabet. A character outside it stands for itself.
fn print_letters(text: &[u8], out: &mut Vec<u8>) {
    let Ok(text) = std::str::from_utf8(text) else { return out.extend_from_slice(text) };
    for c in text.chars() {
        match bytes::byte(c) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

/// U+2581 becomes a space.
fn print_escaped(text: &[u8], out: &mut Vec<u8>) {
    const BLOCK: &[u8] = "\u{2581}".as_bytes();
    let mut rest = text;
    while let Some(&first) = rest.first() {
        match rest.strip_prefix(BLOCK) {
            Some(after) => {
                out.push(b' ');
                rest = after;
            }
            None => {
                out.push(first);
                rest = &rest[1..];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_are_tidied() {
        assert_eq!(tidy_spaces("a , b ' c 's d 't e ."), "a, b'c's d 't e.");
    }

    #[test]
    fn escapes() {
        let mut out = Vec::new();
        print_escaped("▁a▁▁b".as_bytes(), &mut out);
        print_escaped(b"\xE2\x96", &mut out);
        assert_eq!(out, b" a  b\xE2\x96");
        out.clear();
        print_letters("Ġaé漢".as_bytes(), &mut out);
        assert_eq!(out, b" a\xE9\xE6\xBC\xA2");
    }
}
