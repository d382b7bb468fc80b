//! The formats with blocks of 32 whose codes follow from extremes, and plain numbers. The inverse of a scale is taken
//! before the scale is rounded to half. With importance Q4 and Q5 search as the K formats do.

use super::affine::{self, Search};
use super::{extreme, group_weights, inverse, nearest, put_half, signed, twice_mean_square};
use crate::{f32_to_bf16, f32_to_f16};

macro_rules! plain {
    ($($name:ident: $bytes:literal, $convert:expr;)*) => {$(
        pub(crate) fn $name(x: &[f32], _: Option<&[f32]>, b: &mut [u8]) {
            for (b, x) in b.as_chunks_mut::<$bytes>().0.iter_mut().zip(x) {
                *b = $convert(*x).to_le_bytes();
            }
        }
    )*};
}

plain! {
    f32s: 4, |x: f32| x;
    f16s: 2, f32_to_f16;
    bf16s: 2, f32_to_bf16;
}

/// The nearest whole number, halves away from zero.
pub(super) fn round_away(x: f32) -> f32 {
    let whole = x as i32 as f32;
    whole + f32::from(u8::from((x - whole).abs() >= 0.5)).copysign(x)
}

pub(crate) fn q8_0(x: &[f32], _: Option<&[f32]>, b: &mut [u8]) {
    let d = x.iter().fold(0.0f32, |a, v| a.max(v.abs())) / 127.0;
    let id = exact_inverse(d);
    put_half(b, 0, d);
    for (q, v) in b[2..].iter_mut().zip(x) {
        *q = round_away(v * id) as i8 as u8;
    }
}

/// The inverse, infinite for the smallest subnormals.
pub(super) fn exact_inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// Codes from 0 to `top` of values that start at 0 in units of the step, rounded by adding a half.
fn code(x: f32, top: u8) -> u8 {
    ((x + 0.5) as i32).clamp(0, top.into()) as u8
}

/// Sixteen bytes of nibbles: byte `j` holds element `j` low and element `j + 16` high.
pub(crate) fn pack_halves(codes: &[u8; 32], b: &mut [u8]) {
    for (j, b) in b[..16].iter_mut().enumerate() {
        *b = codes[j] & 15 | codes[j + 16] << 4;
    }
}

/// The fifth bits, that of element `i` at bit `i`.
fn fifth_bits(codes: &[u8; 32]) -> [u8; 4] {
    codes.iter().enumerate().fold(0u32, |bits, (i, q)| bits | u32::from(q >> 4) << i).to_le_bytes()
}

/// The scale comes from the value of largest magnitude, sign kept, so that it meets `-half` exactly.
fn centred(x: &[f32], half: f32, importance: Option<&[f32]>, b: &mut [u8]) -> [u8; 32] {
    if importance.is_some() {
        let d = put_half(b, 0, signed::fit(x, &weights(x, importance), half));
        let id = inverse(d);
        return std::array::from_fn(|i| (nearest((x[i] * id).clamp(-half, half - 1.0)) + half) as u8);
    }
    let d = extreme(x) / -half;
    let id = exact_inverse(d);
    put_half(b, 0, d);
    std::array::from_fn(|i| (x[i] * id + (half + 0.5)).clamp(0.0, 2.0 * half - 1.0) as u8)
}

/// Scale and minimum spread the range over all codes.
fn spread(x: &[f32], top: u8, importance: Option<&[f32]>, b: &mut [u8]) -> [u8; 32] {
    if importance.is_some() {
        let levels = f32::from(top);
        let search = Search { levels, first: -1.0, step: 0.1, n: 21, below_zero: false };
        let fit = affine::fit(x, &weights(x, importance), &search);
        let (id, low) = (inverse(put_half(b, 0, fit.scale)), put_half(b, 2, -fit.min));
        return std::array::from_fn(|i| nearest(((x[i] - low) * id).clamp(0.0, levels)) as u8);
    }
    let low = x.iter().copied().fold(f32::MAX, f32::min);
    let high = x.iter().copied().fold(f32::MIN, f32::max);
    let d = (high - low) / f32::from(top);
    let id = exact_inverse(d);
    put_half(b, 0, d);
    put_half(b, 2, low);
    std::array::from_fn(|i| code((x[i] - low) * id, top))
}

fn weights(x: &[f32], importance: Option<&[f32]>) -> [f32; 32] {
    let mut w = [0.0; 32];
    group_weights(x, twice_mean_square(x), importance, &mut w);
    w
}

pub(crate) fn q4_0(x: &[f32], importance: Option<&[f32]>, b: &mut [u8]) {
    let codes = centred(x, 8.0, importance, b);
    pack_halves(&codes, &mut b[2..18]);
}

pub(crate) fn q4_1(x: &[f32], importance: Option<&[f32]>, b: &mut [u8]) {
    let codes = spread(x, 15, importance, b);
    pack_halves(&codes, &mut b[4..20]);
}

pub(crate) fn q5_0(x: &[f32], importance: Option<&[f32]>, b: &mut [u8]) {
    let codes = centred(x, 16.0, importance, b);
    b[2..6].copy_from_slice(&fifth_bits(&codes));
    pack_halves(&codes, &mut b[6..22]);
}

pub(crate) fn q5_1(x: &[f32], importance: Option<&[f32]>, b: &mut [u8]) {
    let codes = spread(x, 31, importance, b);
    b[4..8].copy_from_slice(&fifth_bits(&codes));
    pack_halves(&codes, &mut b[8..24]);
}
