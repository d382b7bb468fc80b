//! Byte-pair encoding: words by a pre-tokeniser, merges by rank.

use std::collections::HashMap;

use firth_gguf::Metadata;
use foldhash::fast::RandomState;

use super::VocabError;
use super::encode::EncodeScratch;
use crate::bytes;
use crate::merge::{Merger, Symbol};
use crate::pre::{PreTokeniser, is_space};
use crate::tokens::Tokens;

/// Stands for "no symbol" and "no token".
const NONE: u32 = u32::MAX;
const BLOCK: char = '\u{2581}';

/// What a byte-pair vocabulary has besides its tokens.
///
/// A symbol is the id of a token, or a number above all ids for a text that only merges know.
#[derive(Debug)]
pub(super) struct Bpe {
    pub pre: &'static PreTokeniser,
    /// Rank of a pair of symbols and the symbol it becomes.
    pairs: HashMap<(u32, u32), (u32, u32), RandomState>,
    /// Texts that are no token.
    others: HashMap<Vec<u8>, u32, RandomState>,
    /// The symbol of each byte, in the byte alphabet.
    letters: Vec<u32>,
    /// The token of each byte, for what is no token as a whole.
    bytes: Vec<u32>,
    lower_case: bool,
}

impl Bpe {
    /// Reads the merges. A repeated pair keeps its first rank.
    pub(super) fn new(m: &Metadata, pre: &'static PreTokeniser, tokens: &Tokens) -> Result<Bpe, VocabError> {
        let lower_case = pre.drop_spaces && m.bool("tokenizer.ggml.normalizer.lowercase")?.unwrap_or(false);
        let mut bpe = Bpe {
            pre,
            pairs: HashMap::default(),
            others: HashMap::default(),
            letters: Vec::new(),
            bytes: Vec::new(),
            lower_case,
        };
        for byte in 0..=255 {
            let mut spelt = [0; 4];
            let letter = bytes::letter(byte).encode_utf8(&mut spelt).as_bytes();
            let symbol = bpe.intern(tokens, letter);
            bpe.letters.push(symbol);
            let hex = format!("<0x{byte:02X}>");
            let token = tokens.id(if pre.raw { hex.as_bytes() } else { letter });
            bpe.bytes.push(token.unwrap_or(NONE));
        }
        bpe.read_merges(m, tokens)?;
        Ok(bpe)
    }

    fn read_merges(&mut self, m: &Metadata, tokens: &Tokens) -> Result<(), VocabError> {
        const KEY: &str = "tokenizer.ggml.merges";
        let merges = match m.strings(KEY)? {
            Some(merges) => merges,
            None if m.str("tokenizer.ggml.pre")? == Some("kimi-k2") => return Ok(()),
            None => m.require_strings(KEY)?,
        };
        self.pairs.reserve(merges.len());
        let mut joined = Vec::new();
        // Vocabularies name what merges make in the order of their ranks: the next token is looked at before the table.
        let mut expected = 0;
        for rank in 0..merges.len() {
            let merge = merges.get(rank);
            // The space between the halves; one at the very start belongs to the left half.
            let Some(at) = merge.iter().skip(1).position(|&b| b == b' ') else { continue };
            let (left, right) = (&merge[..=at], &merge[at + 2..]);
            let pair = (self.intern(tokens, left), self.intern(tokens, right));
            joined.clear();
            joined.extend_from_slice(left);
            joined.extend_from_slice(right);
            let is_expected = (expected as usize) < tokens.len() && tokens.text(expected) == joined;
            let joined = if is_expected { expected } else { self.intern(tokens, &joined) };
            expected = joined + 1;
            self.pairs.entry(pair).or_insert((rank as u32, joined));
        }
        Ok(())
    }

    fn intern(&mut self, tokens: &Tokens, text: &[u8]) -> u32 {
        if let Some(symbol) = self.find(tokens, text) {
            return symbol;
        }
        let symbol = (tokens.len() + self.others.len()) as u32;
        self.others.insert(text.to_vec(), symbol);
        symbol
    }

    fn find(&self, tokens: &Tokens, text: &[u8]) -> Option<u32> {
        tokens.id(text).or_else(|| self.others.get(text).copied())
    }

    /// Appends the ids of a fragment. A character that the vocabulary cannot spell vanishes, as the source has it.
    pub(super) fn encode(&self, tokens: &Tokens, text: &str, s: &mut EncodeScratch, out: &mut Vec<u32>) {
        let EncodeScratch { pieces, merger, word: buffer, .. } = s;
        let mut start = 0;
        for &end in pieces.split(self.pre, text) {
            let word = &text[start..end];
            start = end;
            if self.pre.drop_spaces && word.starts_with(is_space) {
                continue;
            }
            if self.pre.spaced_words && !word.starts_with('\n') {
                self.encode_spaced(tokens, word, merger, buffer, out);
            } else if self.lower_case {
                let lower = word.chars().map(lower_case).collect::<String>();
                self.encode_word(tokens, &lower, merger, buffer, out);
            } else {
                self.encode_word(tokens, word, merger, buffer, out);
            }
        }
    }

    /// Puts U+2581 in front of a word that has none, and cuts it before every further one.
    fn encode_spaced(
        &self,
        tokens: &Tokens,
        word: &str,
        merger: &mut Merger,
        buffer: &mut String,
        out: &mut Vec<u32>,
    ) {
        let first = word.strip_prefix(BLOCK).unwrap_or(word);
        for part in first.split(BLOCK) {
            let spaced = format!("{BLOCK}{part}");
            self.encode_word(tokens, &spaced, merger, buffer, out);
        }
    }

    fn encode_word(
        &self,
        tokens: &Tokens,
        word: &str,
        merger: &mut Merger,
        buffer: &mut String,
        out: &mut Vec<u32>,
    ) {
        let only_lines = self.pre.lines_whole && word.bytes().all(|b| b == b'\n');
        if (self.pre.whole_words || only_lines)
            && let Some(id) = self.whole(tokens, word, buffer)
        {
            return out.push(id);
        }
        merger.clear();
        if self.pre.raw {
            for (at, c) in word.char_indices() {
                let end = at + c.len_utf8();
                let symbol = self.find(tokens, &word.as_bytes()[at..end]);
                merger.push(at, end, symbol.unwrap_or(NONE));
            }
        } else {
            for (at, byte) in word.bytes().enumerate() {
                merger.push(at, at + 1, self.letters[usize::from(byte)]);
            }
        }
        merger.merge(|a: Symbol, b: Symbol| self.pairs.get(&(a.symbol, b.symbol)).copied());
        for symbol in merger.symbols() {
            if (symbol.symbol as usize) < tokens.len() {
                out.push(symbol.symbol);
                continue;
            }
            let bytes = &word.as_bytes()[symbol.start..symbol.end];
            out.extend(bytes.iter().map(|&b| self.bytes[usize::from(b)]).filter(|&id| id != NONE));
        }
    }

    /// The token that is the whole word.
    fn whole(&self, tokens: &Tokens, word: &str, buffer: &mut String) -> Option<u32> {
        if self.pre.raw {
            return tokens.id(word.as_bytes());
        }
        buffer.clear();
        buffer.extend(word.bytes().map(bytes::letter));
        tokens.id(buffer.as_bytes())
    }
}

/// The simple lower-case map: one character to one.
fn lower_case(c: char) -> char {
    let mut lower = c.to_lowercase();
    match (lower.next(), lower.next()) {
        (Some(lower), None) => lower,
        _ => c,
    }
}
