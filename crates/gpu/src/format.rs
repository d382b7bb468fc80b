//! How weights lie on the device: the file's blocks in units of whole 32-bit words, at the file's bits per value.
//!
//! A unit holds as many blocks as make whole words with every run of integers aligned to a word. Where a block
//! ends in the middle of a word, two or four of them share a unit, their scales first.

use firth_quant::Dtype;

/// A layout that kernels decode. Types without one are widened to [`Format::F32`] when they are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Words are f32.
    F32,
    /// Two values a word.
    F16,
    /// Two values a word.
    Bf16,
    /// Two blocks: scales, then 8 words each.
    Q8_0,
    /// Two blocks: scales, then 4 words each.
    Q4_0,
    /// One block as in the file.
    Q4_1,
    /// Two blocks: scales, fifth bits, then 4 words each.
    Q5_0,
    /// One block as in the file.
    Q5_1,
    /// One block as in the file.
    Q2K,
    /// Two blocks: scales, then 27 words each.
    Q3K,
    /// One block as in the file.
    Q4K,
    /// One block as in the file.
    Q5K,
    /// Two blocks: scales, then 52 words each.
    Q6K,
    /// As [`Format::Q4_0`], with a table of values.
    Iq4Nl,
    /// One block as in the file.
    Iq4Xs,
    /// Four blocks: exponents, then 4 words each.
    Mxfp4,
}

/// Values that a kernel decodes at once.
pub const CHUNK: usize = 16;

impl Format {
    /// The layout for a type.
    pub fn of(dtype: Dtype) -> Format {
        match dtype {
            Dtype::F16 => Format::F16,
            Dtype::BF16 => Format::Bf16,
            Dtype::Q8_0 => Format::Q8_0,
            Dtype::Q4_0 => Format::Q4_0,
            Dtype::Q4_1 => Format::Q4_1,
            Dtype::Q5_0 => Format::Q5_0,
            Dtype::Q5_1 => Format::Q5_1,
            Dtype::Q2_K => Format::Q2K,
            Dtype::Q3_K => Format::Q3K,
            Dtype::Q4_K => Format::Q4K,
            Dtype::Q5_K => Format::Q5K,
            Dtype::Q6_K => Format::Q6K,
            Dtype::IQ4_NL => Format::Iq4Nl,
            Dtype::IQ4_XS => Format::Iq4Xs,
            Dtype::MXFP4 => Format::Mxfp4,
            _ => Format::F32,
        }
    }

    /// Values and words of a unit.
    pub fn unit(self) -> (usize, usize) {
        match self {
            Format::F32 => (16, 16),
            Format::F16 | Format::Bf16 => (16, 8),
            Format::Q8_0 => (64, 17),
            Format::Q4_0 | Format::Iq4Nl => (64, 9),
            Format::Q4_1 => (32, 5),
            Format::Q5_0 => (64, 11),
            Format::Q5_1 => (32, 6),
            Format::Q2K => (256, 21),
            Format::Q3K => (512, 55),
            Format::Q4K => (256, 36),
            Format::Q5K => (256, 44),
            Format::Q6K => (512, 105),
            Format::Iq4Xs => (256, 34),
            Format::Mxfp4 => (128, 17),
        }
    }

    /// Values of activations that share a scale where they meet this layout as integers of 8 bits; `None` where they meet it
    /// as f32.
    pub fn act_block(self) -> Option<usize> {
        match self {
            Format::F32 | Format::F16 | Format::Bf16 => None,
            Format::Q8_0
            | Format::Q4_0
            | Format::Q4_1
            | Format::Q5_0
            | Format::Q5_1
            | Format::Iq4Nl
            | Format::Mxfp4 => Some(32),
            Format::Q2K | Format::Q3K | Format::Q4K | Format::Q5K | Format::Q6K | Format::Iq4Xs => Some(256),
        }
    }

    /// Whether its blocks have a minimum besides their scale.
    pub fn has_minimum(self) -> bool {
        matches!(self, Format::Q4_1 | Format::Q5_1 | Format::Q2K | Format::Q4K | Format::Q5K)
    }

    /// Bytes of the scale of a block and where it stands, for formats whose blocks share a unit.
    fn scale(self) -> Option<(usize, usize)> {
        match self {
            Format::Q8_0 | Format::Q4_0 | Format::Iq4Nl | Format::Q5_0 => Some((2, 0)),
            Format::Q3K => Some((2, 108)),
            Format::Q6K => Some((2, 208)),
            Format::Mxfp4 => Some((1, 0)),
            _ => None,
        }
    }

    /// Lays a row of file bytes out: whole units, the last one filled up with zeros. `widened` is scratch for
    /// types that have no layout of their own.
    pub fn pack_row(self, dtype: Dtype, row: &[u8], widened: &mut Vec<f32>, out: &mut Vec<u32>) {
        let bytes: &[u8] = match (self, dtype) {
            (Format::F32, Dtype::F32) => row,
            (Format::F32, _) => {
                widened.clear();
                widened.resize(row.len() / dtype.block_bytes() * dtype.block_len(), 0.0);
                firth_quant::decode(dtype, row, widened);
                bytemuck::cast_slice(widened)
            }
            _ => row,
        };
        let (values, words) = self.unit();
        out.clear();
        match self.scale() {
            Some(scale) => {
                let blocks = values / dtype.block_len();
                for unit in bytes.chunks(blocks * dtype.block_bytes()) {
                    self.pack_unit(dtype, scale, unit, out);
                }
            }
            None => bytes.chunks(4 * words).for_each(|unit| {
                out.extend(unit.chunks(4).map(word));
                out.resize(out.len().next_multiple_of(words), 0);
            }),
        }
    }

    /// Scales of the blocks in the first word, then (of Q5_0) their fifth bits, then what is left of each block.
    fn pack_unit(self, dtype: Dtype, (len, at): (usize, usize), unit: &[u8], out: &mut Vec<u32>) {
        let words = self.unit().1;
        let mut bytes = vec![0u8; 4 * words];
        let block_bytes = dtype.block_bytes();
        let fifth = if self == Format::Q5_0 { 4 } else { 0 };
        let rest = block_bytes - len - fifth;
        for (b, block) in unit.chunks(block_bytes).enumerate() {
            bytes[b * len..(b + 1) * len].copy_from_slice(&block[at..at + len]);
            let body: &[u8] = if at == 0 { &block[len + fifth..] } else { &block[..at] };
            if fifth > 0 {
                bytes[4 + 4 * b..8 + 4 * b].copy_from_slice(&block[2..6]);
            }
            let to = 4 + 2 * fifth + b * rest;
            bytes[to..to + rest].copy_from_slice(body);
        }
        out.extend(bytes.chunks_exact(4).map(word));
    }
}

fn word(b: &[u8]) -> u32 {
    let mut w = [0; 4];
    w[..b.len()].copy_from_slice(b);
    u32::from_le_bytes(w)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two blocks that share a unit: scales together, integers aligned.
    #[test]
    fn blocks_share_units() {
        let row: Vec<u8> = (0..18 * 3).collect();
        let mut out = Vec::new();
        Format::Q4_0.pack_row(Dtype::Q4_0, &row, &mut Vec::new(), &mut out);
        assert_eq!(out.len(), 18, "three blocks fill two units");
        assert_eq!(out[0], u32::from_le_bytes([0, 1, 18, 19]));
        assert_eq!(out[1], u32::from_le_bytes([2, 3, 4, 5]));
        assert_eq!(out[5], u32::from_le_bytes([20, 21, 22, 23]));
        assert_eq!(out[9], u32::from_le_bytes([36, 37, 0, 0]));
        assert_eq!(out[14..], [0; 4], "no fourth block");
    }

    #[test]
    fn units_hold_the_bits_of_the_file() {
        for &d in Dtype::ALL {
            let (values, words) = Format::of(d).unit();
            assert!(values.is_multiple_of(CHUNK));
            if Format::of(d) != Format::F32 {
                assert_eq!(d.row_bytes(values), Some(4 * words), "{}", d.name());
            }
        }
    }

    #[test]
    fn types_without_a_layout_are_widened() {
        let row: Vec<u8> = [1i16, -2, 300].iter().flat_map(|v| v.to_le_bytes()).collect();
        let mut out = Vec::new();
        Format::F32.pack_row(Dtype::I16, &row, &mut Vec::new(), &mut out);
        assert_eq!(out[..3], [1f32, -2.0, 300.0].map(f32::to_bits));
        assert_eq!(out.len(), 16);
    }
}
