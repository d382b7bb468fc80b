//! Formats of one and two bits, and of base three.

use super::put_half;
use super::simple::{exact_inverse, round_away};

fn largest_magnitude(x: &[f32]) -> f32 {
    x.iter().fold(0.0f32, |a, v| a.max(v.abs()))
}

/// -1, 0 or 1 for each value, in units of the largest magnitude, as 0, 1 or 2.
fn digits(x: &[f32], d: f32) -> [u8; 256] {
    let id = exact_inverse(d);
    std::array::from_fn(|i| (round_away((x[i] * id).clamp(-1.0, 1.0)) + 1.0) as u8)
}

/// Five digits of base 3 as a fraction of 256, rounded up so that multiplying gives them back.
fn fraction(digits: impl Iterator<Item = u8>) -> u8 {
    let number = digits.fold(0u16, |n, digit| 3 * n + u16::from(digit));
    ((number * 256).div_ceil(243)) as u8
}

pub(crate) fn tq1_0(x: &[f32], _: Option<&[f32]>, b: &mut [u8]) {
    let d = largest_magnitude(x);
    put_half(b, 52, d);
    let digits = digits(x, d);
    for (bytes, first, rounds) in [(0..32, 0, 5), (32..48, 160, 5), (48..52, 240, 4)] {
        let n = bytes.len();
        for (i, b) in b[bytes].iter_mut().enumerate() {
            let at = |round: usize| if round < rounds { digits[first + round * n + i] } else { 0 };
            *b = fraction((0..5).map(at));
        }
    }
}

pub(crate) fn tq2_0(x: &[f32], _: Option<&[f32]>, b: &mut [u8]) {
    let d = largest_magnitude(x);
    put_half(b, 64, d);
    let digits = digits(x, d);
    for (b, q) in b[..64].chunks_exact_mut(32).zip(digits.chunks_exact(128)) {
        for (l, b) in b.iter_mut().enumerate() {
            *b = (0..4).fold(0, |bits, round| bits | q[32 * round + l] << (2 * round));
        }
    }
}

/// The scale is the mean magnitude.
pub(crate) fn q1_0(x: &[f32], _: Option<&[f32]>, b: &mut [u8]) {
    put_half(b, 0, x.iter().map(|v| v.abs()).sum::<f32>() / x.len() as f32);
    for (b, x) in b[2..].iter_mut().zip(x.chunks_exact(8)) {
        *b = x.iter().enumerate().fold(0, |bits, (i, x)| bits | u8::from(*x >= 0.0) << i);
    }
}

pub(crate) fn q2_0(x: &[f32], _: Option<&[f32]>, b: &mut [u8]) {
    let d = largest_magnitude(x);
    let id = exact_inverse(d);
    put_half(b, 0, d);
    for (b, x) in b[2..].iter_mut().zip(x.chunks_exact(4)) {
        let code = |x: f32| (round_away((x * id).clamp(-1.0, 1.0)) + 1.0) as u8;
        *b = x.iter().enumerate().fold(0, |bits, (i, x)| bits | code(*x) << (2 * i));
    }
}
