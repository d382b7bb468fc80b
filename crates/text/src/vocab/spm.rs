//! SentencePiece's BPE: neighbours merge while their joint text is a token, best score first.

use super::encode::{EncodeError, EncodeScratch};
use crate::merge::Symbol;
use crate::tokens::Tokens;

/// Turns a score into a key that ascends as the score falls; below `u32::MAX` for every score.
fn key(score: f32) -> u32 {
    // Adding zero makes one of both zeros. What is no number comes last.
    let score = if score.is_nan() { f32::NEG_INFINITY } else { score + 0.0 };
    let bits = score.to_bits();
    let ascending = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    !ascending
}

/// Appends the ids of an escaped text.
pub(super) fn encode(
    tokens: &Tokens,
    text: &str,
    s: &mut EncodeScratch,
    out: &mut Vec<u32>,
) -> Result<(), EncodeError> {
    s.merger.clear();
    for (at, c) in text.char_indices() {
        s.merger.push(at, at + c.len_utf8(), 0);
    }
    let bytes = text.as_bytes();
    s.merger.merge(|a: Symbol, b: Symbol| {
        let id = tokens.id(&bytes[a.start..b.end])?;
        Some((key(tokens.score(id)), id))
    });
    for symbol in s.merger.symbols() {
        let text = &bytes[symbol.start..symbol.end];
        match tokens.id(text) {
            Some(id) => out.push(id),
            None => text.iter().try_for_each(|&byte| {
                out.push(byte_token(tokens, byte).ok_or(EncodeError::Byte { byte })?);
                Ok(())
            })?,
        }
    }
    Ok(())
}

/// The token of a byte: `<0xHH>`, else the token whose text is the byte.
fn byte_token(tokens: &Tokens, byte: u8) -> Option<u32> {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let (high, low) = (HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]);
    tokens.id(&[b'<', b'0', b'x', high, low, b'>']).or_else(|| tokens.id(&[byte]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_scores_downwards() {
        let scores = [f32::INFINITY, 2.0, 1.0, 0.0, -1.0, -2.5, f32::NEG_INFINITY];
        assert!(scores.windows(2).all(|w| key(w[0]) < key(w[1])));
        assert_eq!((key(0.0), key(f32::NAN)), (key(-0.0), key(f32::NEG_INFINITY)));
        assert!(key(f32::NEG_INFINITY) < u32::MAX);
    }
}
