//! 4-bit floats under a power of two.

use super::simple::pack_halves;
use crate::fp4::E2M1_DOUBLED;

/// The exponent leaves the largest magnitude between 4 and 8, of which 4 and 6 have codes.
pub(crate) fn mxfp4(x: &[f32], _: Option<&[f32]>, b: &mut [u8]) {
    let amax = x.iter().fold(0.0f32, |a, v| a.max(v.abs()));
    b[0] = exponent(amax);
    let inverse = 2f32.powi(128 - i32::from(b[0]));
    let codes = std::array::from_fn(|i| nearest_code(x[i] * inverse));
    pack_halves(&codes, &mut b[1..17]);
}

/// `floor(log2(amax)) - 2` with bias 127; 0 for zeros and for what is too small.
fn exponent(amax: f32) -> u8 {
    if amax < f32::MIN_POSITIVE {
        return 0;
    }
    let floor_log2 = (amax.to_bits() >> 23) as i32 - 127;
    (floor_log2 - 2 + 127).max(0) as u8
}

/// The nearest of the doubled values, the lower code of equals.
fn nearest_code(x: f32) -> u8 {
    let distance = |q: usize| (x - E2M1_DOUBLED[q]).abs();
    (1..16).fold(0, |best, q| if distance(q) < distance(best) { q } else { best }) as u8
}
