//! Formats of one and two bits, and of base three.

use crate::integers::Integers;
use crate::simple::half_at;

/// What eight values of -1, 0 and 1 are kept as, from the digits 0, 1 and 2.
fn from_digits(digits: [u8; 8]) -> u64 {
    u64::from_le_bytes(digits.map(|q| q + 127))
}

/// Digit `n` of a byte that holds five base-3 digits as a fraction, the highest first.
fn digit(byte: u8, n: usize) -> u8 {
    let rest = byte.wrapping_mul([1, 3, 9, 27, 81][n]);
    ((u16::from(rest) * 3) >> 8) as u8
}

/// 32 and 16 bytes of five digits, 4 bytes of four; digits run slower than bytes.
pub(crate) fn tq1_0(b: &[u8], out: &mut Integers) {
    (out.d, out.scales) = (half_at(b, 52), [1; 16]);
    let (first, rest) = out.values.split_at_mut(20);
    let (second, third) = rest.split_at_mut(10);
    for (qs, out) in [(&b[..32], first), (&b[32..48], second)] {
        for (n, out) in out.chunks_exact_mut(qs.len() / 8).enumerate() {
            for (values, qs) in out.iter_mut().zip(qs.as_chunks::<8>().0) {
                *values = from_digits(qs.map(|q| digit(q, n)));
            }
        }
    }
    for (i, values) in third.iter_mut().enumerate() {
        *values = from_digits(std::array::from_fn(|j| digit(b[48 + j % 4], 2 * i + j / 4)));
    }
}

/// Two bits a value, four rounds over each 32 bytes.
pub(crate) fn tq2_0(b: &[u8], out: &mut Integers) {
    (out.d, out.scales) = (half_at(b, 64), [1; 16]);
    for (i, out) in out.values.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        for (values, qs) in out.iter_mut().zip(b[i / 4 * 32..].as_chunks::<8>().0) {
            *values = from_digits(qs.map(|q| q >> (2 * (i % 4)) & 3));
        }
    }
}

/// A bit a value: plus or minus the scale.
pub(crate) fn q1_0(b: &[u8], out: &mut [f32]) {
    let d = half_at(b, 0);
    for (i, o) in out.iter_mut().enumerate() {
        *o = if b[2 + i / 8] >> (i % 8) & 1 == 1 { d } else { -d };
    }
}

/// Two bits a value, in order: -1, 0, 1, 2 times the scale.
pub(crate) fn q2_0(b: &[u8], out: &mut [f32]) {
    let d = half_at(b, 0);
    for (i, o) in out.iter_mut().enumerate() {
        *o = (f32::from(b[2 + i / 4] >> (2 * (i % 4)) & 3) - 1.0) * d;
    }
}
