//! Vocabularies as GGUF files carry them: text to ids and back.
//!
//! Source of every rule: the behaviour of llama.cpp build b11434, with orders fixed where it leaves them to chance.

mod bpe;
mod charsmap;
mod decode;
mod dna;
mod encode;
mod ids;
mod load;
mod longest;
mod plamo2;
mod rwkv;
mod spm;
mod ugm;
mod wpm;

use std::ops::Range;

use firth_gguf::KeyError;

use crate::automaton::MAX_NESTED;
use crate::special::Specials;
use crate::tokens::{TokenType, Tokens};
pub use decode::tidy_spaces;
pub use encode::{Encode, EncodeError, EncodeScratch};
pub use ids::SpecialIds;

/// Why a file's vocabulary cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VocabError {
    /// A key is missing or has another type.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A tokeniser nobody knows, or one firth does not run.
    #[error("key `tokenizer.ggml.model` is `{found}`, expected one of {SUPPORTED}")]
    Model {
        /// The name in the file.
        found: String,
    },
    /// A map of characters that is cut off or ends amid a text.
    #[error("key `tokenizer.ggml.precompiled_charsmap` has {bytes} bytes that are no map of characters")]
    CharsMap {
        /// Its bytes.
        bytes: usize,
    },
    /// A list that is shorter than the list of tokens.
    #[error("key `{key}` has {found} entries, expected {expected}, one for each token")]
    Short {
        /// The key.
        key: &'static str,
        /// Its entries.
        found: usize,
        /// The tokens.
        expected: usize,
    },
    /// Two tokens of one text.
    #[error("tokens {first} and {second} are both `{text}`, expected different texts")]
    Duplicate {
        /// The first one.
        first: u32,
        /// The second one.
        second: u32,
        /// Their text.
        text: String,
    },
    /// More tokens than ids.
    #[error("the vocabulary has {found} tokens, expected at most {MAX_TOKENS}")]
    TooMany {
        /// The tokens.
        found: usize,
    },
    /// Tokens of more bytes than a search can hold.
    #[error("the vocabulary's tokens have {found} bytes, expected at most 2^30")]
    Bytes {
        /// Bytes of all tokens.
        found: usize,
    },
    /// Tokens made to cost time: each is the end, or the beginning, of the next.
    #[error(
        "{found} tokens of the vocabulary {how} one another, expected at most {MAX_NESTED}: the time to cut a text would \
         grow with both"
    )]
    Nested {
        /// How many.
        found: usize,
        /// `end in` or `begin with`.
        how: &'static str,
    },
}

const SUPPORTED: &str = "`llama`, `gpt2`, `hybriddna`, `whitespace`, `gemma4`, `bert`, `t5`, `rwkv`, `plamo2`, `test`, \
     `none`, `no_vocab`";
/// Ids are 31 bits wide so that files can name them in signed integers.
const MAX_TOKENS: usize = 1 << 31;

/// How a vocabulary makes ids of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VocabKind {
    /// SentencePiece: merges by score.
    Spm,
    /// Byte-pair encoding: merges by rank inside words.
    Bpe,
    /// WordPiece: the longest tokens of each word of a normalised text.
    Wpm,
    /// Unigram: the cut into tokens with the highest sum of scores.
    Ugm,
    /// RWKV: the longest token at each position.
    Rwkv,
    /// PLaMo-2: the cut of least cost, in whole numbers.
    Plamo2,
    /// A hash of five bytes, for tests.
    Test,
    /// No text at all.
    None,
}

/// A model's vocabulary.
#[derive(Debug)]
pub struct Vocab {
    kind: VocabKind,
    tokens: Tokens,
    bpe: Option<bpe::Bpe>,
    dna: Option<dna::Dna>,
    wpm: Option<wpm::Wpm>,
    ugm: Option<ugm::Ugm>,
    rwkv: Option<rwkv::Rwkv>,
    plamo2: Option<plamo2::Plamo2>,
    specials: Specials,
    ids: SpecialIds,
    ends: Vec<u32>,
    suppressed: Vec<u32>,
    /// What each token prints: bytes and their bounds.
    printed: Vec<u8>,
    bounds: Vec<usize>,
    /// Number of ids. A file without tokens has ids all the same.
    n_ids: usize,
    add_bos: bool,
    add_eos: bool,
    add_sep: bool,
    add_space_prefix: bool,
    clean_spaces: bool,
    warnings: Vec<String>,
}

impl Vocab {
    /// Number of ids.
    pub fn len(&self) -> usize {
        self.n_ids
    }

    /// Whether there are no ids.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every id.
    pub fn ids(&self) -> Range<u32> {
        0..self.len() as u32
    }

    /// How text becomes ids.
    pub fn kind(&self) -> VocabKind {
        self.kind
    }

    /// Whether text can be encoded: not so with [`VocabKind::None`].
    pub fn has_text(&self) -> bool {
        self.kind != VocabKind::None
    }

    /// The token's text as the file spells it; empty for an id outside the vocabulary.
    pub fn token_text(&self, id: u32) -> &[u8] {
        self.tokens.text(id)
    }

    /// The token's type; [`TokenType::Undefined`] for an id outside the vocabulary.
    pub fn token_type(&self, id: u32) -> TokenType {
        self.tokens.kind(id)
    }

    /// The token's score, 0 where the file has none.
    pub fn score(&self, id: u32) -> f32 {
        self.tokens.score(id)
    }

    /// Whether the token is a mark rather than text: control tokens and those found as ends by name.
    pub fn is_control(&self, id: u32) -> bool {
        self.tokens.is_control(id)
    }

    /// The id of a text as the file spells it.
    pub fn id_of(&self, text: &[u8]) -> Option<u32> {
        self.tokens.id(text)
    }

    /// Ids of tokens with a role.
    pub fn special_ids(&self) -> &SpecialIds {
        &self.ids
    }

    /// Start of text.
    pub fn bos(&self) -> Option<u32> {
        self.ids.bos
    }

    /// End of text.
    pub fn eos(&self) -> Option<u32> {
        self.ids.eos
    }

    /// End of turn.
    pub fn eot(&self) -> Option<u32> {
        self.ids.eot
    }

    /// Whether a generation ends at this token.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.binary_search(&id).is_ok()
    }

    /// The tokens at which a generation ends, ascending.
    pub fn end_tokens(&self) -> &[u32] {
        &self.ends
    }

    /// Tokens that must never be drawn.
    pub fn suppressed(&self) -> &[u32] {
        &self.suppressed
    }

    /// Whether encoding with `add_special` starts with the start token.
    pub fn add_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether encoding with `add_special` closes with the end token.
    pub fn add_eos(&self) -> bool {
        self.add_eos
    }

    /// Whether a pair of texts is joined by a separator.
    pub fn add_sep(&self) -> bool {
        self.add_sep
    }

    /// What was odd about the file, in sentences for the user.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}
