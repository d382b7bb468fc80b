//! How file blocks become panels: tables of pieces that are moved whole, and the few that are not.
//!
//! A panel is 32 outputs wide. A piece of a block is `count` units of 1, 2 or 4 bytes; unit `e` of
//! output `l` goes to `to + (e * 32 + l) * unit`, so a panel block is the transpose of 32 file blocks
//! and takes the same bytes. Everything of a block lies in the order in which kernels read it.

use firth_quant::Dtype;

use crate::act::Form;

/// Outputs of a panel.
pub const PANEL: usize = 32;

/// A type of panel.
#[allow(non_camel_case_types, reason = "the names that everyone knows")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `[k][32]` f32.
    F32,
    /// `[k][32]` f16.
    F16,
    /// `[k][32]` bf16.
    BF16,
    /// d f16; bytes of value + 128.
    Q8_0,
    /// d f16; nibbles.
    Q4_0,
    /// d, m f16; nibbles.
    Q4_1,
    /// d f16; fifth bits; nibbles.
    Q5_0,
    /// d, m f16; fifth bits; nibbles.
    Q5_1,
    /// d f16; nibbles that index a table.
    IQ4_NL,
    /// d as an exponent byte; nibbles that index a table.
    MXFP4,
    /// d, dmin f16; half by half: scale and minimum nibbles, 2-bit fields.
    Q2_K,
    /// d f16; packed 6-bit scales; third bits; 2-bit fields.
    Q3_K,
    /// d, dmin f16; minima in pairs; per 64: two scales, nibbles.
    Q4_K,
    /// d, dmin f16; minima in pairs; fifth bits; per 64: two scales, nibbles.
    Q5_K,
    /// d f16; per quarter: four scales, low nibbles, high bit pairs.
    Q6_K,
    /// d f16; per 32: scale, nibbles that index a table.
    IQ4_XS,
    /// File rows as they are, made integers and scales where they are used.
    Integers,
    /// File rows as they are, decoded to f32 where they are used.
    Decoded,
}

impl Kind {
    /// The panels of a type of weight.
    pub fn of(dtype: Dtype) -> Self {
        match dtype.name() {
            "F32" => Self::F32,
            "F16" => Self::F16,
            "BF16" => Self::BF16,
            "Q8_0" => Self::Q8_0,
            "Q4_0" => Self::Q4_0,
            "Q4_1" => Self::Q4_1,
            "Q5_0" => Self::Q5_0,
            "Q5_1" => Self::Q5_1,
            "IQ4_NL" => Self::IQ4_NL,
            "MXFP4" => Self::MXFP4,
            "Q2_K" => Self::Q2_K,
            "Q3_K" => Self::Q3_K,
            "Q4_K" => Self::Q4_K,
            "Q5_K" => Self::Q5_K,
            "Q6_K" => Self::Q6_K,
            "IQ4_XS" => Self::IQ4_XS,
            _ if firth_quant::integers(dtype).is_some() => Self::Integers,
            _ => Self::Decoded,
        }
    }

    /// The activations such panels meet.
    pub fn form(self) -> Form {
        match self {
            Self::F32 | Self::F16 | Self::BF16 | Self::Decoded => Form::F32,
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::IQ4_NL | Self::MXFP4 => {
                Form::Q32
            }
            Self::Q2_K
            | Self::Q3_K
            | Self::Q4_K
            | Self::Q5_K
            | Self::Q6_K
            | Self::IQ4_XS
            | Self::Integers => Form::Q256,
        }
    }

    /// Whether a panel is the bytes of its file rows, one after the other.
    pub(crate) fn keeps_rows(self) -> bool {
        matches!(self, Self::Integers | Self::Decoded)
    }

    /// Bytes of a panel block, all 32 outputs.
    pub(crate) fn block_bytes(self, dtype: Dtype) -> usize {
        // 6-bit scales become bytes.
        let grown = match self {
            Self::Q4_K | Self::Q5_K => 4,
            Self::IQ4_XS => 2,
            _ => 0,
        };
        (dtype.block_bytes() + grown) * PANEL
    }

    fn pieces(self) -> &'static [Piece] {
        match self {
            Self::F32 => const { &[piece(0, 0, 4, 1)] },
            Self::Integers | Self::Decoded => unreachable!("{self:?} panels are file rows"),
            Self::F16 | Self::BF16 => const { &[piece(0, 0, 2, 1)] },
            Self::Q8_0 => const { &[piece(0, 0, 2, 1), piece(2, 64, 4, 8)] },
            Self::Q4_0 | Self::IQ4_NL => const { &[piece(0, 0, 2, 1), piece(2, 64, 4, 4)] },
            Self::Q4_1 => const { &[piece(0, 0, 2, 2), piece(4, 128, 4, 4)] },
            Self::Q5_0 => const { &[piece(0, 0, 2, 1), piece(6, 192, 4, 4)] },
            Self::Q5_1 => const { &[piece(0, 0, 2, 2), piece(8, 256, 4, 4)] },
            Self::MXFP4 => const { &[piece(0, 0, 1, 1), piece(1, 32, 4, 4)] },
            Self::Q2_K => {
                const {
                    &[
                        piece(80, 0, 2, 2),
                        piece(0, 128, 1, 8),
                        piece(16, 384, 4, 8),
                        piece(8, 1408, 1, 8),
                        piece(48, 1664, 4, 8),
                    ]
                }
            }
            Self::Q3_K => {
                const { &[piece(108, 0, 2, 1), piece(96, 64, 1, 12), piece(0, 448, 4, 8), piece(32, 1472, 4, 16)] }
            }
            Self::Q4_K => const { &k_pieces::<5>(0) },
            Self::Q5_K => const { &k_pieces::<6>(1024) },
            Self::Q6_K => const { &q6_pieces() },
            Self::IQ4_XS => const { &iq4_xs_pieces() },
        }
    }
}

/// Units that keep their bytes on the way from a file block to a panel block.
#[derive(Clone, Copy)]
struct Piece {
    from: usize,
    to: usize,
    unit: usize,
    count: usize,
}

const fn piece(from: usize, to: usize, unit: usize, count: usize) -> Piece {
    Piece { from, to, unit, count }
}

const fn k_pieces<const N: usize>(high: usize) -> [Piece; N] {
    let mut all = [piece(0, 0, 2, 2); N];
    let qs = if high > 0 { 48 } else { 16 };
    let mut c = 0;
    while c < 4 {
        all[1 + c] = piece(qs + 32 * c, 384 + high + 1088 * c + 64, 4, 8);
        c += 1;
    }
    if high > 0 {
        all[5] = piece(16, 384, 4, 8);
    }
    all
}

const fn q6_pieces() -> [Piece; 29] {
    let mut all = [piece(208, 0, 2, 1); 29];
    let mut c = 0;
    while c < 4 {
        let (half, t, to) = (c / 2, c % 2, 64 + 1664 * c);
        let mut x = 0;
        while x < 4 {
            all[1 + 7 * c + x] = piece(192 + 8 * half + t + 2 * x, to + 32 * x, 1, 1);
            x += 1;
        }
        all[1 + 7 * c + 4] = piece(64 * half + 16 * t, to + 128, 4, 4);
        all[1 + 7 * c + 5] = piece(64 * half + 32 + 16 * t, to + 640, 4, 4);
        all[1 + 7 * c + 6] = piece(128 + 32 * half + 16 * t, to + 1152, 4, 4);
        c += 1;
    }
    all
}

const fn iq4_xs_pieces() -> [Piece; 9] {
    let mut all = [piece(0, 0, 2, 1); 9];
    let mut c = 0;
    while c < 8 {
        all[1 + c] = piece(8 + 16 * c, 64 + 544 * c + 32, 4, 4);
        c += 1;
    }
    all
}

/// The same block of up to 32 rows of a file.
#[derive(Clone, Copy)]
pub(crate) struct Column<'a> {
    /// The rows' bytes, from the block of the first row on.
    pub bytes: &'a [u8],
    /// Bytes from one row to the next.
    pub stride: usize,
    /// Bytes of the block.
    pub len: usize,
    /// Rows.
    pub n: usize,
}

impl<'a> Column<'a> {
    /// The block of output `l`.
    fn block(&self, l: usize) -> &'a [u8] {
        &self.bytes[l * self.stride..][..self.len]
    }
}

/// Moves a block of each output into the panel block.
pub(crate) fn pack_block(kind: Kind, src: Column, dst: &mut [u8]) {
    for p in kind.pieces() {
        match (p.unit, p.count % 4) {
            (4, 0) => transpose(p, src, dst),
            (4, _) => spread::<4>(p, src, 0, dst),
            (2, _) => spread::<2>(p, src, 0, dst),
            _ => spread::<1>(p, src, 0, dst),
        }
    }
    if kind == Kind::Q8_0 {
        flip_signs(&mut dst[64..]);
    }
    for l in 0..src.n {
        pack_special(kind, src.block(l), dst, l);
    }
}

/// The file block of output `l`, from its panel block.
pub(crate) fn unpack_block(kind: Kind, src: &[u8], dst: &mut [u8], l: usize) {
    dst.fill(0);
    for p in kind.pieces() {
        for e in 0..p.count {
            let at = p.to + (e * PANEL + l) * p.unit;
            dst[p.from + e * p.unit..][..p.unit].copy_from_slice(&src[at..at + p.unit]);
        }
    }
    unpack_special(kind, src, dst, l);
}

/// Moves a piece of every output from `first` on unit by unit.
#[inline]
fn spread<const U: usize>(p: &Piece, src: Column, first: usize, dst: &mut [u8]) {
    let places = dst[p.to..][..p.count * PANEL * U].as_chunks_mut::<U>().0;
    for l in first..src.n {
        let units = src.block(l)[p.from..][..p.count * U].as_chunks::<U>().0;
        for (unit, row) in units.iter().zip(places.chunks_exact_mut(PANEL)) {
            row[l] = *unit;
        }
    }
}

/// Moves a piece of words, four words of four outputs at a time: whole registers, which is what a load's time depends on.
fn transpose(p: &Piece, src: Column, dst: &mut [u8]) {
    let whole = src.n / 4 * 4;
    let lines = dst[p.to..][..p.count * LINE].as_chunks_mut::<{ 4 * LINE }>().0;
    for (words, lines) in lines.iter_mut().enumerate() {
        for l in (0..whole).step_by(4) {
            let four = |i: usize| {
                *src.bytes[(l + i) * src.stride + p.from + 16 * words..]
                    .first_chunk()
                    .expect("a piece lies in its block")
            };
            let turned = turn([four(0), four(1), four(2), four(3)]);
            for (j, quad) in turned.iter().enumerate() {
                lines[j * LINE + 4 * l..][..16].copy_from_slice(quad);
            }
        }
    }
    spread::<4>(p, src, whole, dst);
}

/// Word `j` of each row, for all four.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn turn(rows: [[u8; 16]; 4]) -> [[u8; 16]; 4] {
    use std::arch::x86_64::{_mm_unpackhi_epi32, _mm_unpackhi_epi64, _mm_unpacklo_epi32, _mm_unpacklo_epi64};
    let [a, b, c, d] = rows.map(bytemuck::cast);
    // SAFETY: every x86-64 processor has SSE2.
    let turned = unsafe {
        let (low_ab, low_cd) = (_mm_unpacklo_epi32(a, b), _mm_unpacklo_epi32(c, d));
        let (high_ab, high_cd) = (_mm_unpackhi_epi32(a, b), _mm_unpackhi_epi32(c, d));
        [
            _mm_unpacklo_epi64(low_ab, low_cd),
            _mm_unpackhi_epi64(low_ab, low_cd),
            _mm_unpacklo_epi64(high_ab, high_cd),
            _mm_unpackhi_epi64(high_ab, high_cd),
        ]
    };
    turned.map(bytemuck::cast)
}

/// Word `j` of each row, for all four.
#[cfg(not(target_arch = "x86_64"))]
fn turn(rows: [[u8; 16]; 4]) -> [[u8; 16]; 4] {
    let words = rows.map(bytemuck::cast::<[u8; 16], [[u8; 4]; 4]>);
    std::array::from_fn(|j| bytemuck::cast(std::array::from_fn::<_, 4, _>(|i| words[i][j])))
}

/// Bytes of one word of all outputs.
const LINE: usize = 4 * PANEL;

fn pack_special(kind: Kind, src: &[u8], dst: &mut [u8], l: usize) {
    match kind {
        Kind::Q5_0 => put_bits(&src[2..6], &mut dst[64 + 4 * l..][..4]),
        Kind::Q5_1 => put_bits(&src[4..8], &mut dst[128 + 4 * l..][..4]),
        Kind::Q4_K => put_scales(src, dst, l, 384),
        Kind::Q5_K => put_scales(src, dst, l, 1408),
        Kind::IQ4_XS => {
            let high = u16::from_le_bytes([src[2], src[3]]);
            for ib in 0..8 {
                let low = (src[4 + ib / 2] >> (4 * (ib % 2))) & 15;
                let scale = (low | (((high >> (2 * ib)) & 3) as u8) << 4) as i8 - 32;
                dst[64 + 544 * ib + l] = scale as u8;
            }
        }
        _ => {}
    }
}

fn unpack_special(kind: Kind, src: &[u8], dst: &mut [u8], l: usize) {
    match kind {
        Kind::Q8_0 => flip_signs(&mut dst[2..34]),
        Kind::Q5_0 => get_bits(&src[64 + 4 * l..][..4], &mut dst[2..6]),
        Kind::Q5_1 => get_bits(&src[128 + 4 * l..][..4], &mut dst[4..8]),
        Kind::Q4_K => get_scales(src, dst, l, 384),
        Kind::Q5_K => get_scales(src, dst, l, 1408),
        Kind::IQ4_XS => {
            let mut high = 0u16;
            for ib in 0..8 {
                let scale = (src[64 + 544 * ib + l] as i8 + 32) as u8;
                dst[4 + ib / 2] |= (scale & 15) << (4 * (ib % 2));
                high |= u16::from(scale >> 4) << (2 * ib);
            }
            dst[2..4].copy_from_slice(&high.to_le_bytes());
        }
        _ => {}
    }
}

fn flip_signs(bytes: &mut [u8]) {
    for b in bytes {
        *b ^= 0x80;
    }
}

/// Fifth bits: bit `4g + j` of the file goes to bit `g` of byte `j`, so that one shift and one mask
/// give the bits of group `g`.
fn put_bits(src: &[u8], dst: &mut [u8]) {
    let bits = u32::from_le_bytes([src[0], src[1], src[2], src[3]]);
    for (j, byte) in dst.iter_mut().enumerate() {
        *byte = (0..8).map(|g| (((bits >> (4 * g + j)) & 1) as u8) << g).sum();
    }
}

fn get_bits(src: &[u8], dst: &mut [u8]) {
    let mut bits = 0u32;
    for (j, byte) in src.iter().enumerate() {
        for g in 0..8 {
            bits |= u32::from((byte >> g) & 1) << (4 * g + j);
        }
    }
    dst.copy_from_slice(&bits.to_le_bytes());
}

/// Scales and minima of all sub-blocks from the twelve packed bytes of Q4_K and Q5_K, four at a time.
fn put_scales(src: &[u8], dst: &mut [u8], l: usize, chunks: usize) {
    let words: [u32; 3] = std::array::from_fn(|i| {
        u32::from_le_bytes(*src[4 + 4 * i..].first_chunk().expect("twelve bytes of scales"))
    });
    let early = words.map(|w| w & 0x3f3f_3f3f);
    let late = |low: u32, high: u32| (low & 0x0f0f_0f0f) | ((high >> 2) & 0x3030_3030);
    let scales = [early[0], late(words[2], words[0])];
    let minima = [early[1], late(words[2] >> 4, words[1])];
    for (half, (scales, minima)) in scales.into_iter().zip(minima).enumerate() {
        for (j, (scale, min)) in scales.to_le_bytes().into_iter().zip(minima.to_le_bytes()).enumerate() {
            let (pair, of_pair) = (2 * half + j / 2, j % 2);
            dst[128 + 64 * pair + 2 * l + of_pair] = min;
            dst[chunks + 1088 * pair + 32 * of_pair + l] = scale;
        }
    }
}

fn get_scales(src: &[u8], dst: &mut [u8], l: usize, chunks: usize) {
    let packed = &mut dst[4..16];
    for j in 0..8 {
        let min = src[128 + (j / 2) * 64 + 2 * l + j % 2];
        let scale = src[chunks + 1088 * (j / 2) + 32 * (j % 2) + l];
        if j < 4 {
            packed[j] |= scale;
            packed[j + 4] |= min;
        } else {
            packed[j + 4] |= (scale & 15) | (min & 15) << 4;
            packed[j - 4] |= (scale >> 4) << 6;
            packed[j] |= (min >> 4) << 6;
        }
    }
}
