//! SentencePiece's precompiled map of characters: a double array of the texts to replace, and what replaces them.

use firth_gguf::Metadata;

use super::VocabError;

const KEY: &str = "tokenizer.ggml.precompiled_charsmap";

/// The map; without entries it replaces nothing.
#[derive(Debug, Default)]
pub(super) struct CharsMap {
    /// Units of the double array.
    units: Vec<u32>,
    /// Texts, each ended by a zero byte.
    texts: Vec<u8>,
}

impl CharsMap {
    /// Reads the map of a file: a little-endian number of bytes, so many bytes of units, and texts.
    pub(super) fn new(m: &Metadata) -> Result<CharsMap, VocabError> {
        let Some(bytes) = m.i32s(KEY)? else { return Ok(CharsMap::default()) };
        let bytes: Vec<u8> = bytes.into_iter().map(|b| b as u8).collect();
        CharsMap::read(&bytes).ok_or(VocabError::CharsMap { bytes: bytes.len() })
    }

    fn read(bytes: &[u8]) -> Option<CharsMap> {
        let (head, rest) = bytes.split_first_chunk::<4>()?;
        let n = u32::from_le_bytes(*head) as usize;
        let (units, texts) = rest.split_at_checked(n).filter(|_| n.is_multiple_of(4))?;
        let units = units.as_chunks::<4>().0.iter().map(|u| u32::from_le_bytes(*u)).collect();
        // So that every text ends, wherever it starts.
        (texts.last() == Some(&0)).then(|| CharsMap { units, texts: texts.to_vec() })
    }

    /// The longest start of `text` that is replaced: its length and its replacement.
    pub(super) fn longest(&self, text: &[u8]) -> Option<(usize, &[u8])> {
        let base = |unit: u32| (unit >> 10) << ((unit & 0x200) >> 6);
        let mut node = base(*self.units.first()?) as usize;
        let mut found = None;
        for (i, &c) in text.iter().enumerate().take_while(|(_, c)| **c != 0) {
            node ^= usize::from(c);
            let Some(&unit) = self.units.get(node) else { break };
            if unit & 0x8000_00FF != u32::from(c) {
                break;
            }
            node ^= base(unit) as usize;
            if unit >> 8 & 1 == 1 {
                let value = self.units.get(node).map(|leaf| (leaf & 0x7FFF_FFFF) as usize);
                let text = value.and_then(|at| self.texts.get(at..));
                found = text.map(|text| (i + 1, text)).or(found);
            }
        }
        let (len, text) = found?;
        let end = text.iter().position(|b| *b == 0).unwrap_or(text.len());
        Some((len, &text[..end]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A map of `a` to `xy`: the root's base is 256, the node of `a` at 256 ^ 97, its leaf at 512.
    fn bytes() -> Vec<u8> {
        let mut units = vec![0u32; 600];
        let at = |base: u32| base << 10;
        units[0] = at(256);
        units[256 ^ 97] = at(512 ^ 256 ^ 97) | 1 << 8 | 97;
        units[512] = 1;
        let mut out = (units.len() as u32 * 4).to_le_bytes().to_vec();
        units.iter().for_each(|u| out.extend(u.to_le_bytes()));
        out.extend(b"\0xy\0");
        out
    }

    #[test]
    fn what_is_in_the_map_is_replaced() {
        let map = CharsMap::read(&bytes()).unwrap();
        assert_eq!(map.longest(b"ab"), Some((1, &b"xy"[..])));
        assert_eq!(map.longest(b"b"), None);
        assert_eq!(map.longest(b""), None);
        assert_eq!(CharsMap::default().longest(b"a"), None);
    }

    #[test]
    fn broken_maps_are_refused_or_replace_nothing() {
        let good = bytes();
        for n in 0..good.len() {
            let cut = CharsMap::read(&good[..n]);
            assert!(cut.is_none_or(|m| m.texts.last() == Some(&0)));
        }
        let mut state = 1u32;
        for _ in 0..300 {
            let mut bad = good.clone();
            for _ in 0..20 {
                state = state.wrapping_mul(1664525).wrapping_add(1013904223);
                let at = 4 + state as usize % (bad.len() - 5);
                bad[at] = (state >> 24) as u8;
            }
            let map = CharsMap::read(&bad).unwrap();
            for c in 1..=255u8 {
                map.longest(&[c, 97, c]);
            }
        }
    }
}
