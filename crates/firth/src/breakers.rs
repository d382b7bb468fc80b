//! Sequence breakers of DRY: from strings to tokens.

use firth_sampling::Breakers;
use firth_text::{Encode, Vocab};

/// What ends a repetition unless a request says otherwise.
pub const DRY_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];
/// Bytes of a string that count.
const MAX_BYTES: usize = 40;
/// Tokens behind the first at most.
const MAX_TAIL: usize = 20;

/// The breakers that these strings are in a vocabulary: every token that contains one, and every token that ends in
/// the beginning of one together with the tokens of the rest.
///
/// Walks the vocabulary once, so it is to be made once for a model and a list of strings.
pub fn dry_breakers<S: AsRef<str>>(vocab: &Vocab, texts: &[S]) -> Breakers {
    let mut breakers = Breakers::default();
    for text in texts {
        let text = text.as_ref();
        let text = &text[..text.floor_char_boundary(MAX_BYTES)];
        if text.is_empty() {
            continue;
        }
        // The rest behind each beginning is encoded once, not once a token.
        let tails: Vec<Vec<u32>> = (0..text.len()).map(|at| tail(vocab, text, at)).collect();
        for id in vocab.ids() {
            add(&mut breakers, id, vocab.piece(id, true), text.as_bytes(), &tails);
        }
    }
    breakers
}

/// Tokens of `text` from byte `at` on; none where that is no text or the text cannot be encoded.
fn tail(vocab: &Vocab, text: &str, at: usize) -> Vec<u32> {
    let rest = text.get(at..).filter(|_| at > 0);
    let mut ids = rest.and_then(|r| vocab.encode(r, Encode::default()).ok()).unwrap_or_default();
    ids.truncate(MAX_TAIL);
    ids
}

fn add(breakers: &mut Breakers, id: u32, piece: &[u8], text: &[u8], tails: &[Vec<u32>]) {
    if piece.windows(text.len()).any(|w| w == text) {
        return breakers.add(id, Vec::new());
    }
    for at in 1..text.len().min(piece.len() + 1) {
        if piece.ends_with(&text[..at]) && !tails[at].is_empty() {
            breakers.add(id, tails[at].clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_that_hold_or_begin_a_breaker() {
        let mut b = Breakers::default();
        let tails = [vec![], vec![7], vec![8]];
        add(&mut b, 1, b"ends ab", b"abc", &tails);
        add(&mut b, 2, b"xabcx", b"abc", &tails);
        add(&mut b, 3, b"bc", b"abc", &tails);
        let mut want = Breakers::default();
        want.add(1, vec![8]);
        want.add(2, vec![]);
        assert_eq!(b, want);
    }
}
