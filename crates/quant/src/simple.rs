//! Plain numbers and the formats with blocks of 32.

use half::{bf16, f16};

/// f16 bits to f32, exact; every NaN becomes the one quiet NaN.
pub fn f16_to_f32(bits: u16) -> f32 {
    let x = f16::from_bits(bits).to_f32_const();
    if x.is_nan() { f32::NAN } else { x }
}

/// f32 to f16 bits, ties to even; every NaN becomes the one quiet NaN.
pub fn f32_to_f16(x: f32) -> u16 {
    if x.is_nan() { 0x7e00 } else { f16::from_f32_const(x).to_bits() }
}

/// bf16 bits to f32, exact.
pub fn bf16_to_f32(bits: u16) -> f32 {
    let x = bf16::from_bits(bits).to_f32_const();
    if x.is_nan() { f32::NAN } else { x }
}

/// f32 to bf16 bits, ties to even; every NaN becomes the one quiet NaN.
pub fn f32_to_bf16(x: f32) -> u16 {
    if x.is_nan() { 0x7fc0 } else { bf16::from_f32_const(x).to_bits() }
}

/// The half at byte `at`.
pub(crate) fn half_at(b: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([b[at], b[at + 1]]))
}

macro_rules! plain {
    ($($name:ident: $ty:ty, $convert:expr;)*) => {$(
        pub(crate) fn $name(b: &[u8], out: &mut [f32]) {
            for (o, x) in out.iter_mut().zip(b.chunks_exact(size_of::<$ty>())) {
                *o = $convert(<$ty>::from_le_bytes(x.try_into().expect("one number")));
            }
        }
    )*};
}

plain! {
    f32s: f32, |x| x;
    f16s: u16, f16_to_f32;
    bf16s: u16, bf16_to_f32;
    f64s: f64, |x| x as f32;
    i8s: i8, f32::from;
    i16s: i16, f32::from;
    i32s: i32, |x| x as f32;
    i64s: i64, |x| x as f32;
}

/// Nibbles of sixteen bytes: byte `j` holds element `j` low and element `j + 16` high.
pub(crate) fn nibbles(qs: &[u8], out: &mut [f32], mut f: impl FnMut(usize, u8) -> f32) {
    for (j, q) in qs[..16].iter().enumerate() {
        out[j] = f(j, q & 15);
        out[j + 16] = f(j + 16, q >> 4);
    }
}

pub(crate) fn q4_0(b: &[u8], out: &mut [f32]) {
    let d = half_at(b, 0);
    nibbles(&b[2..], out, |_, q| (f32::from(q) - 8.0) * d);
}

pub(crate) fn q4_1(b: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(b, 0), half_at(b, 2));
    nibbles(&b[4..], out, |_, q| f32::from(q) * d + m);
}

pub(crate) fn q5_0(b: &[u8], out: &mut [f32]) {
    let (d, high) = (half_at(b, 0), u32::from_le_bytes([b[2], b[3], b[4], b[5]]));
    nibbles(&b[6..], out, |i, q| (f32::from(q | ((high >> i & 1) << 4) as u8) - 16.0) * d);
}

pub(crate) fn q5_1(b: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(b, 0), half_at(b, 2));
    let high = u32::from_le_bytes([b[4], b[5], b[6], b[7]]);
    nibbles(&b[8..], out, |i, q| f32::from(q | ((high >> i & 1) << 4) as u8) * d + m);
}

pub(crate) fn q8_0(b: &[u8], out: &mut [f32]) {
    let d = half_at(b, 0);
    for (o, q) in out.iter_mut().zip(&b[2..]) {
        *o = f32::from(*q as i8) * d;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dtype, decode, encode};

    #[test]
    fn halves_round_trip_and_have_one_nan() {
        for bits in 0..=u16::MAX {
            let x = f16_to_f32(bits);
            let expected = if x.is_nan() { 0x7e00 } else { bits };
            assert_eq!(f32_to_f16(x), expected, "bits {bits:#06x}");
        }
        assert_eq!(f16_to_f32(1), 2f32.powi(-24));
    }

    #[test]
    fn encoded_blocks_decode_within_half_a_step() {
        let x: Vec<f32> = (0..64).map(|i| (i as f32 * 0.37).sin() * 3.0).collect();
        for (dtype, steps) in [(Dtype::Q8_0, 127.0), (Dtype::Q4_0, 8.0)] {
            let mut bytes = vec![0; dtype.row_bytes(64).unwrap()];
            encode(dtype, &x, &mut bytes).unwrap();
            let mut y = vec![0.0; 64];
            decode(dtype, &bytes, &mut y);
            for (x, y) in x.iter().zip(&y) {
                assert!((x - y).abs() <= 3.01 / steps, "{}: {x} became {y}", dtype.name());
            }
        }
    }

    #[test]
    fn what_is_not_finite_is_refused() {
        let mut x = vec![0.0; 32];
        x[7] = f32::NAN;
        assert!(encode(Dtype::Q8_0, &x, &mut [0; 34]).is_err());
    }
}
