//! RWKV's world tokeniser: the longest token at each position.

use super::VocabError;
use super::longest::Longest;

/// What an RWKV vocabulary has besides its tokens: their bytes, whose spelling in the file has escapes.
#[derive(Debug)]
pub(super) struct Rwkv {
    longest: Longest,
}

/// The bytes of a text with the escapes `\t` `\n` `\r` and `\xHH` (lower-case digits); `\` before another byte
/// stands for that byte.
pub(super) fn unescape(text: &[u8]) -> Vec<u8> {
    let digit = |b: Option<&u8>| match b {
        Some(b @ b'0'..=b'9') => Some(b - b'0'),
        Some(b @ b'a'..=b'f') => Some(b - b'a' + 10),
        _ => None,
    };
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        let escape = (text[at] == b'\\').then(|| text.get(at + 1)).flatten();
        let (byte, len) = match escape {
            None => (text[at], 1),
            Some(b't') => (b'\t', 2),
            Some(b'n') => (b'\n', 2),
            Some(b'r') => (b'\r', 2),
            Some(b'x') => match (digit(text.get(at + 2)), digit(text.get(at + 3))) {
                (Some(high), Some(low)) => (high << 4 | low, 4),
                _ => (b'x', 2),
            },
            Some(other) => (*other, 2),
        };
        out.push(byte);
        at += len;
    }
    out
}

impl Rwkv {
    /// From the bytes of every token, by id. An empty token is never found.
    pub(super) fn new(tokens: impl Iterator<Item = Vec<u8>>) -> Result<Rwkv, VocabError> {
        Ok(Rwkv { longest: Longest::new(tokens)? })
    }

    /// Appends the ids of a fragment. A byte that starts no token is `unk`, and vanishes where there is no such token.
    pub(super) fn encode(&self, text: &str, unk: Option<u32>, out: &mut Vec<u32>) {
        let longest = self.longest.at_each_byte(text.as_bytes());
        let mut at = 0;
        while at < text.len() {
            match longest[at] {
                Some((id, len)) => {
                    out.push(id);
                    at += len;
                }
                None => {
                    out.extend(unk);
                    at += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes() {
        assert_eq!(unescape(br"a\t\n\r\\\x0a\xff\'\x"), b"a\t\n\r\\\x0a\xff'x");
        assert_eq!(unescape(br"\"), br"\");
        assert_eq!(unescape(br"\xA0"), b"xA0");
    }

    #[test]
    fn the_longest_token_is_taken() {
        let texts: [&[u8]; 5] = [b"", b"a", b"ab", b"\xc3", b"abcd"];
        let rwkv = Rwkv::new(texts.iter().map(|t| t.to_vec())).unwrap();
        let ids = |text: &str, unk| {
            let mut out = Vec::new();
            rwkv.encode(text, unk, &mut out);
            out
        };
        assert_eq!(ids("ababcdaé", Some(0)), [2, 4, 1, 3, 0]);
        assert_eq!(ids("xa", None), [1]);
    }
}
