//! The token table: texts, types, scores, and the way from a text to its id.

use std::hash::BuildHasher;
use std::ops::Range;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

/// What a token is, by `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenType {
    /// 0, or a number nobody knows.
    Undefined,
    /// 1: a piece of text.
    Normal,
    /// 2: stands for what the vocabulary lacks.
    Unknown,
    /// 3: a mark of the chat format, the start or the end.
    Control,
    /// 4: a text that is always cut out whole.
    UserDefined,
    /// 5: has no use.
    Unused,
    /// 6: one byte, spelt `<0xHH>`.
    Byte,
}

impl TokenType {
    /// The type of a file's number.
    pub fn from_number(number: i32) -> TokenType {
        match number {
            1 => TokenType::Normal,
            2 => TokenType::Unknown,
            3 => TokenType::Control,
            4 => TokenType::UserDefined,
            5 => TokenType::Unused,
            6 => TokenType::Byte,
            _ => TokenType::Undefined,
        }
    }
}

/// One token.
#[derive(Clone, Copy, Debug)]
struct Token {
    start: usize,
    end: usize,
    score: f32,
    kind: TokenType,
    /// The file or the format calls it a control token. A token can be this besides its type.
    control: bool,
}

impl Token {
    fn range(&self) -> Range<usize> {
        self.start..self.end
    }
}

/// Every token by id, and ids by text.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    bytes: Vec<u8>,
    tokens: Vec<Token>,
    /// Ids by their texts' hashes: a text stands in `bytes` alone.
    ids: HashTable<u32>,
    hash: RandomState,
    /// Length in bytes of the longest text.
    longest: usize,
}

impl Tokens {
    /// Adds the next token; an id that already has this text is returned as an error.
    pub(crate) fn push(&mut self, text: &[u8], kind: TokenType, score: f32) -> Result<(), u32> {
        let hash = self.hash.hash_one(text);
        if let Some(other) = self.find(hash, text) {
            return Err(other);
        }
        let id = self.tokens.len() as u32;
        let Tokens { bytes, tokens, ids, hash: state, .. } = self;
        let rehash = |&id: &u32| state.hash_one(&bytes[tokens[id as usize].range()]);
        ids.insert_unique(hash, id, rehash);
        let start = self.bytes.len();
        self.bytes.extend_from_slice(text);
        let control = kind == TokenType::Control;
        self.tokens.push(Token { start, end: self.bytes.len(), score, kind, control });
        self.longest = self.longest.max(text.len());
        Ok(())
    }

    /// Makes room for `n` tokens of `n_bytes` together.
    pub(crate) fn reserve(&mut self, n: usize, n_bytes: usize) {
        self.bytes.reserve(n_bytes);
        self.tokens.reserve(n);
        let Tokens { bytes, tokens, ids, hash, .. } = self;
        ids.reserve(n, |&id| hash.hash_one(&bytes[tokens[id as usize].range()]));
    }

    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(crate) fn id(&self, text: &[u8]) -> Option<u32> {
        if text.len() > self.longest { None } else { self.find(self.hash.hash_one(text), text) }
    }

    fn find(&self, hash: u64, text: &[u8]) -> Option<u32> {
        self.ids.find(hash, |&id| self.text(id) == text).copied()
    }

    /// The text as the file spells it; empty for an id that is not there.
    pub(crate) fn text(&self, id: u32) -> &[u8] {
        self.tokens.get(id as usize).map_or(&[], |t| &self.bytes[t.range()])
    }

    pub(crate) fn kind(&self, id: u32) -> TokenType {
        self.tokens.get(id as usize).map_or(TokenType::Undefined, |t| t.kind)
    }

    pub(crate) fn score(&self, id: u32) -> f32 {
        self.tokens.get(id as usize).map_or(0.0, |t| t.score)
    }

    pub(crate) fn is_control(&self, id: u32) -> bool {
        self.tokens.get(id as usize).is_some_and(|t| t.control)
    }

    pub(crate) fn add_control(&mut self, id: u32) {
        if let Some(token) = self.tokens.get_mut(id as usize) {
            token.control = true;
        }
    }

    /// Replaces the type, and the control mark with it.
    pub(crate) fn set_kind(&mut self, id: u32, kind: TokenType) {
        if let Some(token) = self.tokens.get_mut(id as usize) {
            (token.kind, token.control) = (kind, kind == TokenType::Control);
        }
    }

    /// Whether the token is cut out of a text: control, unknown and user-defined ones.
    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.is_control(id) || matches!(self.kind(id), TokenType::Unknown | TokenType::UserDefined)
    }

    /// Whether the token is cut out only where the caller wants marks in the text read.
    pub(crate) fn is_hidden(&self, id: u32) -> bool {
        self.is_control(id) || self.kind(id) == TokenType::Unknown
    }

    pub(crate) fn ids(&self) -> Range<u32> {
        0..self.tokens.len() as u32
    }
}
