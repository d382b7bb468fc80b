//! The IQ formats: super-blocks of 256 whose values are vectors of a codebook.

use crate::grids;
use crate::simple::half_at;

/// Values of the non-linear 4-bit formats.
pub(crate) const IQ4_VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// How far the 1-bit formats shift their vectors.
const DELTA: f32 = 0.125;

fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// The sign bits of a 7-bit index: the eighth makes their number even.
fn signs_of(index: u32) -> u8 {
    let bits = (index & 127) as u8;
    bits | ((bits.count_ones() & 1) as u8) << 7
}

/// A vector scaled, bit `j` of `signs` negating element `j`.
fn put(out: &mut [f32], scale: f32, vector: &[i8], signs: u8) {
    for (j, (o, v)) in out.iter_mut().zip(vector).enumerate() {
        let x = scale * f32::from(*v);
        *o = if signs >> j & 1 == 1 { -x } else { x };
    }
}

/// A vector shifted, then scaled.
fn put_shifted(out: &mut [f32], scale: f32, vector: &[i8], shift: f32) {
    for (o, v) in out.iter_mut().zip(vector) {
        *o = scale * (f32::from(*v) + shift);
    }
}

/// Nibble `i` of packed nibbles, low first.
fn nibble(b: &[u8], i: usize) -> u8 {
    b[i / 2] >> (4 * (i % 2)) & 15
}

/// 32 values: four indices of a byte, then a word of four 7-bit sign indices and a 4-bit scale.
pub(crate) fn iq2_xxs(b: &[u8], out: &mut [f32]) {
    let d = half_at(b, 0);
    for (o, b) in out.chunks_exact_mut(32).zip(b[2..].chunks_exact(8)) {
        let word = u32_at(b, 4);
        let scale = d * (0.5 + (word >> 28) as f32) * 0.25;
        for (l, o) in o.chunks_exact_mut(8).enumerate() {
            put(o, scale, &grids::IQ2_XXS[usize::from(b[l])], signs_of(word >> (7 * l)));
        }
    }
}

/// Words of a 9-bit index and a 7-bit sign index; a 4-bit scale for each 16.
pub(crate) fn iq2_xs(b: &[u8], out: &mut [f32]) {
    let (d, scales) = (half_at(b, 0), &b[66..74]);
    for (i, o) in out.chunks_exact_mut(8).enumerate() {
        let q = u16_at(b, 2 + 2 * i);
        let scale = d * (0.5 + f32::from(nibble(scales, i / 2))) * 0.25;
        put(o, scale, &grids::IQ2_XS[usize::from(q & 511)], signs_of(u32::from(q >> 9)));
    }
}

/// 10-bit indices whose high bits lie apart, plain signs, a 4-bit scale for each 16.
pub(crate) fn iq2_s(b: &[u8], out: &mut [f32]) {
    let d = half_at(b, 0);
    let (qs, signs, high, scales) = (&b[2..34], &b[34..66], &b[66..74], &b[74..82]);
    for (i, o) in out.chunks_exact_mut(8).enumerate() {
        let top = high[i / 4] >> (2 * (i % 4)) & 3;
        let index = usize::from(qs[i]) | usize::from(top) << 8;
        let scale = d * (0.5 + f32::from(nibble(scales, i / 2))) * 0.25;
        put(o, scale, &grids::IQ2_S[index], signs[i]);
    }
}

/// Vectors of four by a byte each; words of signs and scale as IQ2_XXS, after all indices.
pub(crate) fn iq3_xxs(b: &[u8], out: &mut [f32]) {
    let (d, qs) = (half_at(b, 0), &b[2..66]);
    for (i, o) in out.chunks_exact_mut(8).enumerate() {
        let word = u32_at(b, 66 + 4 * (i / 4));
        let scale = d * (0.5 + (word >> 28) as f32) * 0.5;
        let signs = signs_of(word >> (7 * (i % 4)));
        let (low, high) = o.split_at_mut(4);
        put(low, scale, &grids::IQ3_XXS[usize::from(qs[2 * i])], signs);
        put(high, scale, &grids::IQ3_XXS[usize::from(qs[2 * i + 1])], signs >> 4);
    }
}

/// Vectors of four by 9 bits whose high bit lies apart, plain signs, a 4-bit odd scale for each 32.
pub(crate) fn iq3_s(b: &[u8], out: &mut [f32]) {
    let d = half_at(b, 0);
    let (qs, high, signs, scales) = (&b[2..66], &b[66..74], &b[74..106], &b[106..110]);
    for (i, o) in out.chunks_exact_mut(4).enumerate() {
        let index = usize::from(qs[i]) | usize::from(high[i / 8] >> (i % 8) & 1) << 8;
        let scale = d * f32::from(1 + 2 * nibble(scales, i / 8));
        put(o, scale, &grids::IQ3_S[index], signs[i / 2] >> (4 * (i % 2)));
    }
}

/// 11-bit indices; a word for each 32 holds their high bits, a 3-bit odd scale and the shift's sign.
pub(crate) fn iq1_s(b: &[u8], out: &mut [f32]) {
    let (d, qs) = (half_at(b, 0), &b[2..34]);
    for (i, o) in out.chunks_exact_mut(8).enumerate() {
        let word = u16_at(b, 34 + 2 * (i / 4));
        let scale = d * f32::from(2 * (word >> 12 & 7) + 1);
        let shift = if word & 0x8000 == 0 { DELTA } else { -DELTA };
        let index = usize::from(qs[i]) | usize::from(word >> (3 * (i % 4)) & 7) << 8;
        put_shifted(o, scale, &grids::IQ1_S[index], shift);
    }
}

/// The half of an IQ1_M block: the top nibbles of its four words of scales, lowest first.
pub(crate) fn iq1_m_scale(b: &[u8]) -> u16 {
    (0..4).fold(0, |d, w| d | u16_at(b, 48 + 2 * w) >> 12 << (4 * w))
}

/// As IQ1_S with a scale for each 16 and a shift for each 8.
pub(crate) fn iq1_m(b: &[u8], out: &mut [f32]) {
    let (qs, high, scales) = (&b[..32], &b[32..48], &b[48..56]);
    let d = crate::f16_to_f32(iq1_m_scale(b));
    for (i, o) in out.chunks_exact_mut(8).enumerate() {
        let (sixteen, bits) = (i / 2, nibble(high, i));
        let scale = u16_at(scales, 2 * (sixteen / 4)) >> (3 * (sixteen % 4)) & 7;
        let scale = d * f32::from(2 * scale + 1);
        let shift = if bits & 8 == 0 { DELTA } else { -DELTA };
        let index = usize::from(qs[i]) | usize::from(bits & 7) << 8;
        put_shifted(o, scale, &grids::IQ1_S[index], shift);
    }
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
