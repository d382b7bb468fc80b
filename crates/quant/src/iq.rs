//! The IQ formats: super-blocks of 256 whose values are vectors of a codebook.

use crate::grids;
use crate::integers::{BIAS, Integers};
use crate::simple::half_at;

/// Values of the non-linear 4-bit formats.
pub(crate) const IQ4_VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// Nibble `i` of packed nibbles, low first.
fn nibble(b: &[u8], i: usize) -> u8 {
    b[i / 2] >> (4 * (i % 2)) & 15
}

/// One in each byte.
const ONES: u64 = 0x0101_0101_0101_0101;

/// The bytes whose bit of an index is set: all ones where value `j` is negated by bit `j`.
static NEGATED: [u64; 256] = {
    let mut all = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut j = 0;
        while j < 8 {
            if i >> j & 1 == 1 {
                all[i] |= 0xff << (8 * j);
            }
            j += 1;
        }
        i += 1;
    }
    all
};

/// The sign bits of a 7-bit index: the eighth makes their number even.
static EVEN_SIGNS: [u8; 128] = {
    let mut all = [0; 128];
    let mut i = 0;
    while i < 128 {
        all[i] = i as u8 | ((i.count_ones() & 1) as u8) << 7;
        i += 1;
    }
    all
};

fn signs_of(index: u32) -> u8 {
    EVEN_SIGNS[index as usize & 127]
}

/// Eight magnitudes, all above zero, with bit `j` of `signs` negating value `j`.
fn signed(magnitudes: u64, signs: u8) -> u64 {
    let negated = NEGATED[usize::from(signs)];
    // No byte carries: a magnitude is not zero.
    ((magnitudes ^ negated) + (negated & ONES)) ^ BIAS
}

fn eight(vector: &[i8; 8]) -> u64 {
    u64::from_le_bytes(vector.map(|v| v as u8))
}

fn two_fours(low: &[i8; 4], high: &[i8; 4]) -> u64 {
    let word = |v: &[i8; 4]| u64::from(u32::from_le_bytes(v.map(|v| v as u8)));
    word(low) | word(high) << 32
}

/// Eight times each of a vector of -1, 0 and 1, plus or minus one: what an eighth shifts it by.
fn shifted(vector: &[i8; 8], up: bool) -> u64 {
    // 0, 8 or 16 first; no byte carries.
    let eights = ((eight(vector) ^ BIAS) - 0x7f * ONES) << 3;
    eights + if up { 121 * ONES } else { 119 * ONES }
}

/// 32 values: four indices of a byte, then a word of four 7-bit sign indices and a 4-bit scale.
pub(crate) fn iq2_xxs(b: &[u8], out: &mut Integers) {
    out.d = half_at(b, 0) / 8.0;
    for (i, b) in b[2..66].as_chunks::<8>().0.iter().enumerate() {
        let word = u32_at(b, 4);
        out.scale_32(i, odd((word >> 28) as u8));
        for l in 0..4 {
            let vector = eight(&grids::IQ2_XXS[usize::from(b[l])]);
            out.values[4 * i + l] = signed(vector, signs_of(word >> (7 * l)));
        }
    }
}

/// Words of a 9-bit index and a 7-bit sign index; a 4-bit scale for each 16.
pub(crate) fn iq2_xs(b: &[u8], out: &mut Integers) {
    out.d = half_at(b, 0) / 8.0;
    for (i, scale) in out.scales.iter_mut().enumerate() {
        *scale = odd(nibble(&b[66..74], i));
    }
    for (i, values) in out.values.iter_mut().enumerate() {
        let q = u16_at(b, 2 + 2 * i);
        *values = signed(eight(&grids::IQ2_XS[usize::from(q & 511)]), signs_of(u32::from(q >> 9)));
    }
}

/// 10-bit indices whose high bits lie apart, plain signs, a 4-bit scale for each 16.
pub(crate) fn iq2_s(b: &[u8], out: &mut Integers) {
    out.d = half_at(b, 0) / 8.0;
    let (qs, signs, high, scales) = (&b[2..34], &b[34..66], &b[66..74], &b[74..82]);
    for (i, scale) in out.scales.iter_mut().enumerate() {
        *scale = odd(nibble(scales, i));
    }
    for (i, values) in out.values.iter_mut().enumerate() {
        let top = high[i / 4] >> (2 * (i % 4)) & 3;
        let index = usize::from(qs[i]) | usize::from(top) << 8;
        *values = signed(eight(&grids::IQ2_S[index]), signs[i]);
    }
}

/// Vectors of four by a byte each; words of signs and scale as IQ2_XXS, after all indices.
pub(crate) fn iq3_xxs(b: &[u8], out: &mut Integers) {
    out.d = half_at(b, 0) / 4.0;
    let qs = &b[2..66];
    for i in 0..8 {
        let word = u32_at(b, 66 + 4 * i);
        out.scale_32(i, odd((word >> 28) as u8));
        for l in 4 * i..4 * i + 4 {
            let fours = [qs[2 * l], qs[2 * l + 1]].map(|q| &grids::IQ3_XXS[usize::from(q)]);
            out.values[l] = signed(two_fours(fours[0], fours[1]), signs_of(word >> (7 * (l % 4))));
        }
    }
}

/// Vectors of four by 9 bits whose high bit lies apart, plain signs, a 4-bit odd scale for each 32.
pub(crate) fn iq3_s(b: &[u8], out: &mut Integers) {
    out.d = half_at(b, 0);
    let (qs, high, signs, scales) = (&b[2..66], &b[66..74], &b[74..106], &b[106..110]);
    for i in 0..8 {
        out.scale_32(i, odd(nibble(scales, i)));
    }
    for (l, values) in out.values.iter_mut().enumerate() {
        let index = |i: usize| usize::from(qs[i]) | usize::from(high[i / 8] >> (i % 8) & 1) << 8;
        let fours = [index(2 * l), index(2 * l + 1)].map(|q| &grids::IQ3_S[q]);
        *values = signed(two_fours(fours[0], fours[1]), signs[l]);
    }
}

/// 11-bit indices; a word for each 32 holds their high bits, a 3-bit odd scale and the sign of a shift by an eighth.
pub(crate) fn iq1_s(b: &[u8], out: &mut Integers) {
    out.d = half_at(b, 0) / 8.0;
    for i in 0..8 {
        let word = u16_at(b, 34 + 2 * i);
        out.scale_32(i, odd((word >> 12 & 7) as u8));
        for l in 0..4 {
            let index = usize::from(b[2 + 4 * i + l]) | usize::from(word >> (3 * l) & 7) << 8;
            out.values[4 * i + l] = shifted(&grids::IQ1_S[index], word & 0x8000 == 0);
        }
    }
}

/// The half of an IQ1_M block: the top nibbles of its four words of scales, lowest first.
pub(crate) fn iq1_m_scale(b: &[u8]) -> u16 {
    (0..4).fold(0, |d, w| d | u16_at(b, 48 + 2 * w) >> 12 << (4 * w))
}

/// As IQ1_S with a scale for each 16 and a shift for each 8.
pub(crate) fn iq1_m(b: &[u8], out: &mut Integers) {
    out.d = crate::f16_to_f32(iq1_m_scale(b)) / 8.0;
    for (i, scale) in out.scales.iter_mut().enumerate() {
        *scale = odd((u16_at(b, 48 + 2 * (i / 4)) >> (3 * (i % 4)) & 7) as u8);
    }
    for (i, values) in out.values.iter_mut().enumerate() {
        let bits = nibble(&b[32..48], i);
        let index = usize::from(b[i]) | usize::from(bits & 7) << 8;
        *values = shifted(&grids::IQ1_S[index], bits & 8 == 0);
    }
}

/// The odd numbers that scale indices stand for.
fn odd(index: u8) -> i8 {
    (2 * index + 1) as i8
}

/// Blocks of 32 of non-linear 4-bit values.
pub(crate) fn iq4_nl(b: &[u8], out: &mut [f32]) {
    let d = half_at(b, 0);
    crate::simple::nibbles(&b[2..], out, |_, q| d * f32::from(IQ4_VALUES[usize::from(q)]));
}

/// Eight blocks as IQ4_NL with 6-bit scales whose high bits lie apart.
pub(crate) fn iq4_xs(b: &[u8], out: &mut [f32]) {
    let (d, high) = (half_at(b, 0), u16_at(b, 2));
    for (i, (o, qs)) in out.chunks_exact_mut(32).zip(b[8..].chunks_exact(16)).enumerate() {
        let scale = nibble(&b[4..8], i) | ((high >> (2 * i) & 3) << 4) as u8;
        let scale = d * (f32::from(scale) - 32.0);
        crate::simple::nibbles(qs, o, |_, q| scale * f32::from(IQ4_VALUES[usize::from(q)]));
    }
}
