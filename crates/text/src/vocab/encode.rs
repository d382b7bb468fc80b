//! From text to ids: the frame around every kind of vocabulary.

use super::{Vocab, VocabKind, plamo2, spm, ugm};
use crate::merge::Merger;
use crate::pre::Pieces;
use crate::special::{CutScratch, Fragment};

/// How to encode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Encode {
    /// Add the start and end tokens that the vocabulary asks for.
    pub add_special: bool,
    /// Read control tokens in the text. Without it their texts are text; user-defined tokens are always read.
    pub parse_special: bool,
}

/// Why a text has no ids.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The file carries no vocabulary.
    #[error("the model's file has no vocabulary, expected one to encode text")]
    NoVocabulary,
    /// The vocabulary cannot spell the text.
    #[error("the text holds the byte 0x{byte:02X}, for which the vocabulary has no token")]
    Byte {
        /// The byte.
        byte: u8,
    },
    /// The text is too long.
    #[error("the text has {found} bytes, expected at most {MAX_BYTES}")]
    TooLong {
        /// Its bytes.
        found: usize,
    },
}

/// Positions are 32 bits wide, and an escaped text is up to three times as long.
const MAX_BYTES: usize = 1 << 30;

/// Working memory of encoding. Once warm, encoding texts of the same size allocates nothing.
#[derive(Debug, Default)]
pub struct EncodeScratch {
    cut: CutScratch,
    pub(super) pieces: Pieces,
    pub(super) merger: Merger,
    /// The fragment as the vocabulary spells it.
    spelt: String,
    /// A word in the vocabulary's letters.
    pub(super) word: String,
    ugm: ugm::UgmScratch,
    plamo2: Vec<plamo2::Step>,
}

impl Vocab {
    /// The ids of a text.
    ///
    /// # Errors
    /// A file without vocabulary, a text of more than a GiB, a byte that a SentencePiece vocabulary cannot spell.
    pub fn encode(&self, text: &str, opts: Encode) -> Result<Vec<u32>, EncodeError> {
        let mut out = Vec::new();
        self.encode_into(text, opts, &mut EncodeScratch::default(), &mut out)?;
        Ok(out)
    }

    /// Appends the ids of a text to `out`, with working memory that is kept.
    ///
    /// # Errors
    /// As [`encode`](Vocab::encode).
    pub fn encode_into(
        &self,
        text: &str,
        opts: Encode,
        scratch: &mut EncodeScratch,
        out: &mut Vec<u32>,
    ) -> Result<(), EncodeError> {
        if text.len() > MAX_BYTES {
            return Err(EncodeError::TooLong { found: text.len() });
        }
        let (first, last) = self.frame();
        out.extend(first.filter(|_| opts.add_special));
        self.specials.cut(text, opts.parse_special, &mut scratch.cut);
        let fragments = std::mem::take(&mut scratch.cut.fragments);
        let result = self.encode_fragments(text, &fragments, scratch, out);
        scratch.cut.fragments = fragments;
        result?;
        out.extend(last.filter(|_| opts.add_special));
        Ok(())
    }

    /// The tokens around a text. WordPiece frames every text, whatever the file's switches say.
    fn frame(&self) -> (Option<u32>, Option<u32>) {
        match self.kind {
            VocabKind::Spm | VocabKind::Bpe | VocabKind::Ugm => {
                (self.ids.bos.filter(|_| self.add_bos), self.ids.eos.filter(|_| self.add_eos))
            }
            VocabKind::Wpm => (self.ids.bos, self.ids.sep),
            VocabKind::Plamo2 => (self.ids.bos.filter(|_| self.add_bos), None),
            VocabKind::Rwkv | VocabKind::Test | VocabKind::None => (None, None),
        }
    }

    fn encode_fragments(
        &self,
        text: &str,
        fragments: &[Fragment],
        s: &mut EncodeScratch,
        out: &mut Vec<u32>,
    ) -> Result<(), EncodeError> {
        let mut after_special = true;
        for fragment in fragments {
            match *fragment {
                Fragment::Token(id) => out.push(id),
                Fragment::Text(start, end) => self.encode_text(&text[start..end], after_special, s, out)?,
            }
            after_special = matches!(fragment, Fragment::Token(_));
        }
        Ok(())
    }

    fn encode_text(
        &self,
        text: &str,
        after_special: bool,
        s: &mut EncodeScratch,
        out: &mut Vec<u32>,
    ) -> Result<(), EncodeError> {
        let mut spelt = std::mem::take(&mut s.spelt);
        spelt.clear();
        let result = match (self.kind, &self.bpe) {
            (VocabKind::Spm, _) => {
                if self.add_space_prefix && after_special {
                    spelt.push('\u{2581}');
                }
                escape(text, &mut spelt);
                spm::encode(&self.tokens, &spelt, s, out)
            }
            (_, Some(bpe)) => {
                let text = if bpe.pre.escaped {
                    escape(text, &mut spelt);
                    &spelt
                } else {
                    text
                };
                match &self.dna {
                    Some(dna) => dna.encode(&self.tokens, text, out, |plain, out| {
                        bpe.encode(&self.tokens, plain, s, out);
                    }),
                    None => bpe.encode(&self.tokens, text, s, out),
                }
                Ok(())
            }
            (VocabKind::Wpm, _) => {
                let wpm = self.wpm.as_ref().expect("a vocabulary of this kind is loaded with it");
                wpm.encode(text, self.ids.unk, &mut s.word, out);
                Ok(())
            }
            (VocabKind::Ugm, _) => {
                let ugm = self.ugm.as_ref().expect("a vocabulary of this kind is loaded with it");
                ugm.encode(&self.tokens, text, self.ids.unk, &mut s.ugm, out);
                Ok(())
            }
            (VocabKind::Rwkv, _) => {
                let rwkv = self.rwkv.as_ref().expect("a vocabulary of this kind is loaded with it");
                rwkv.encode(text, self.ids.unk, out);
                Ok(())
            }
            (VocabKind::Plamo2, _) => {
                let plamo2 = self.plamo2.as_ref().expect("a vocabulary of this kind is loaded with it");
                plamo2.encode(text, &mut s.plamo2, out)
            }
            (VocabKind::Test, _) => {
                hash(text, self.len(), out);
                Ok(())
            }
            _ => Err(EncodeError::NoVocabulary),
        };
        s.spelt = spelt;
        result
    }
}

fn escape(text: &str, out: &mut String) {
    out.extend(text.chars().map(|c| if c == ' ' { '\u{2581}' } else { c }));
}

/// The test vocabulary: five bytes make an id.
fn hash(text: &str, n_ids: usize, out: &mut Vec<u32>) {
    if n_ids == 0 {
        return;
    }
    for chunk in text.as_bytes().chunks(5) {
        let hash = chunk.iter().fold(0u64, |h, &byte| h.wrapping_mul(31).wrapping_add(byte.into()));
        out.push((hash % n_ids as u64) as u32);
    }
}
