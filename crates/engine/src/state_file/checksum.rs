//! The checksum of a state file.

/// A running sum over bytes, in words of eight. For a given word each step maps sums one to one, so damage to a single
/// word always shows; other damage escapes once in 2^64.
pub struct Checksum {
    sum: u64,
    len: u64,
    /// Bytes that do not make a word yet.
    part: [u8; 8],
}

impl Checksum {
    pub fn new() -> Checksum {
        Checksum { sum: 0x2545_f491_4f6c_dd1d, len: 0, part: [0; 8] }
    }

    pub fn update(&mut self, mut bytes: &[u8]) {
        let held = (self.len % 8) as usize;
        self.len += bytes.len() as u64;
        if held > 0 {
            let n = bytes.len().min(8 - held);
            self.part[held..held + n].copy_from_slice(&bytes[..n]);
            if held + n < 8 {
                return;
            }
            bytes = &bytes[n..];
            self.mix(u64::from_le_bytes(self.part));
        }
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|w| self.mix(u64::from_le_bytes(*w)));
        self.part[..rest.len()].copy_from_slice(rest);
    }

    /// The sum over all bytes and their number.
    pub fn value(&self) -> u64 {
        let mut last = [0; 8];
        let held = (self.len % 8) as usize;
        last[..held].copy_from_slice(&self.part[..held]);
        let mut end = Checksum { sum: self.sum, ..*self };
        end.mix(u64::from_le_bytes(last));
        end.mix(self.len);
        end.sum
    }

    fn mix(&mut self, word: u64) {
        let h = (self.sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.sum = h ^ h >> 29;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(pieces: &[&[u8]]) -> u64 {
        let mut c = Checksum::new();
        pieces.iter().for_each(|p| c.update(p));
        c.value()
    }

    #[test]
    fn pieces_do_not_matter_and_every_bit_does() {
        let bytes: Vec<u8> = (0..61u8).map(|i| i.wrapping_mul(37)).collect();
        let whole = sum(&[&bytes]);
        for cut in 0..bytes.len() {
            let (a, b) = bytes.split_at(cut);
            assert_eq!(sum(&[a, b]), whole, "cut at {cut}");
            assert_eq!(sum(&[a, &b[..b.len() / 2], &[], &b[b.len() / 2..]]), whole, "cut at {cut} and again");
            assert_ne!(sum(&[a]), whole, "{cut} bytes");
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[cut] ^= 1 << bit;
                assert_ne!(sum(&[&damaged]), whole, "bit {bit} of byte {cut}");
            }
        }
        assert_ne!(sum(&[&bytes, &[0]]), whole);
    }
}
