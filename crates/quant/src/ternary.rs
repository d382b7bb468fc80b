//! Formats of one and two bits, and of base three.

use crate::simple::half_at;

/// Digit `n` of a byte that holds five base-3 digits as a fraction, the highest first.
fn digit(byte: u8, n: u32) -> f32 {
    let rest = byte.wrapping_mul(3u8.pow(n));
    f32::from(((u16::from(rest) * 3) >> 8) as u8)
}

/// 32 and 16 bytes of five digits, 4 bytes of four; digits run slower than bytes.
pub(crate) fn tq1_0(b: &[u8], out: &mut [f32]) {
    let d = half_at(b, 52);
    let (first, rest) = out.split_at_mut(160);
    let (second, third) = rest.split_at_mut(80);
    for (qs, out) in [(&b[..32], first), (&b[32..48], second), (&b[48..52], third)] {
        for (n, o) in out.chunks_exact_mut(qs.len()).enumerate() {
            for (o, q) in o.iter_mut().zip(qs) {
                *o = (digit(*q, n as u32) - 1.0) * d;
            }
        }
    }
}

/// Two bits a value, four rounds over each 32 bytes.
pub(crate) fn tq2_0(b: &[u8], out: &mut [f32]) {
    let d = half_at(b, 64);
    for (i, o) in out.chunks_exact_mut(32).enumerate() {
        for (o, q) in o.iter_mut().zip(&b[i / 4 * 32..]) {
            *o = (f32::from(q >> (2 * (i % 4)) & 3) - 1.0) * d;
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
