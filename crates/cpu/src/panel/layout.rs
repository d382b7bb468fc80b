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

/// Moves one block of output `l` into its panel block.
pub(crate) fn pack_block(kind: Kind, src: &[u8], dst: &mut [u8], l: usize) {
    for p in kind.pieces() {
        match p.unit {
            1 => spread::<1>(p, src, dst, l),
            2 => spread::<2>(p, src, dst, l),
            _ => spread::<4>(p, src, dst, l),
        }
    }
    pack_special(kind, src, dst, l);
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

#[inline]
fn spread<const U: usize>(p: &Piece, src: &[u8], dst: &mut [u8], l: usize) {
    let units = src[p.from..][..p.count * U].as_chunks::<U>().0;
    let places = dst[p.to..][..p.count * PANEL * U].as_chunks_mut::<U>().0;
    for (unit, row) in units.iter().zip(places.chunks_exact_mut(PANEL)) {
        row[l] = *unit;
    }
}

fn pack_special(kind: Kind, src: &[u8], dst: &mut [u8], l: usize) {
    match kind {
        Kind::Q8_0 => {
            for g in 0..8 {
                flip_signs(&mut dst[64 + (g * PANEL + l) * 4..][..4]);
            }
        }
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

/// Scale and minimum of sub-block `j` from the twelve packed bytes of Q4_K and Q5_K.
pub(crate) fn scale_min(s: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (s[j] & 63, s[j + 4] & 63)
    } else {
        ((s[j + 4] & 15) | (s[j - 4] >> 6) << 4, (s[j + 4] >> 4) | (s[j] >> 6) << 4)
    }
}

fn put_scales(src: &[u8], dst: &mut [u8], l: usize, chunks: usize) {
    for j in 0..8 {
        let (scale, min) = scale_min(&src[4..16], j);
        dst[128 + (j / 2) * 64 + 2 * l + j % 2] = min;
        dst[chunks + 1088 * (j / 2) + 32 * (j % 2) + l] = scale;
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
