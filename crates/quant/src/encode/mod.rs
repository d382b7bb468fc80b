//! Encoders of blocks. Plain f32 arithmetic without fused steps, in fixed order, so that a file is the same
//! whichever machine wrote it.
//!
//! An encoder takes one block of finite values and, where the caller has it, the importance of each: a factor of
//! its squared error, not negative. What its block cannot hold for want of range shows in a scale that is not
//! finite.

pub(crate) mod affine;
pub(crate) mod fp4;
pub(crate) mod iq4;
pub(crate) mod k;
pub(crate) mod lattice;
pub(crate) mod signed;
pub(crate) mod simple;
pub(crate) mod ternary;

/// The longest block.
const MAX_BLOCK: usize = 256;

/// Below this a magnitude or a range counts as zero: its inverse would leave f32.
const TINY: f32 = 1e-30;

/// The nearest whole number, ties to even, of a magnitude below 2^22. In one addition and one subtraction, which
/// run in vector lanes everywhere.
pub(crate) fn nearest(x: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    (x + SHIFT) - SHIFT
}

/// The sum of `f(i)` below `n`, a multiple of 8, in eight strided partial sums.
pub(crate) fn sum8(n: usize, f: impl Fn(usize) -> f32) -> f32 {
    let mut sums = [0.0f32; 8];
    for i in (0..n).step_by(8) {
        for (l, s) in sums.iter_mut().enumerate() {
            *s += f(i + l);
        }
    }
    total(sums)
}

/// Partial sums joined by a fixed tree.
pub(crate) fn total(s: [f32; 8]) -> f32 {
    ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))
}

/// Twice the mean square.
pub(crate) fn twice_mean_square(x: &[f32]) -> f32 {
    2.0 * sum8(x.len(), |i| x[i] * x[i]) / x.len() as f32
}

/// What the squared error of each value of a group counts: large values count more, since they move a product more.
/// Without importance (or where it is zero throughout) `rms + |x|` with the root mean square of the group, with it
/// `importance * sqrt(around + x^2)` where `around` is twice the mean square of the block. These are the weights of
/// GGML's encoders for the formats with a minimum, so that files compare.
pub(crate) fn group_weights(x: &[f32], around: f32, importance: Option<&[f32]>, w: &mut [f32]) {
    if let Some(importance) = importance {
        for ((w, x), i) in w.iter_mut().zip(x).zip(importance) {
            *w = i * (around + x * x).sqrt();
        }
        if w.iter().any(|w| *w > 0.0) {
            return;
        }
    }
    let rms = (sum8(x.len(), |i| x[i] * x[i]) / x.len() as f32).sqrt();
    w.iter_mut().zip(x).for_each(|(w, x)| *w = rms + x.abs());
}

/// The value of largest magnitude, the first of equals, sign kept.
pub(crate) fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |a: f32, v| if v.abs() > a.abs() { *v } else { a })
}

/// The inverse of a scale; 0 for a scale of 0, so that every code is that of zero.
pub(crate) fn inverse(d: f32) -> f32 {
    if d.abs() < TINY { 0.0 } else { 1.0 / d }
}

/// Writes a half at byte `at` and returns what was written.
pub(crate) fn put_half(b: &mut [u8], at: usize, x: f32) -> f32 {
    let bits = crate::f32_to_f16(x);
    b[at..at + 2].copy_from_slice(&bits.to_le_bytes());
    crate::f16_to_f32(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_is_to_even() {
        for (x, expected) in [(0.5, 0.0), (1.5, 2.0), (-2.5, -2.0), (2.4999, 2.0), (-0.7, -1.0), (4e6, 4e6)] {
            assert_eq!(nearest(x), expected, "{x}");
        }
    }

    #[test]
    fn the_first_extreme_keeps_its_sign() {
        assert_eq!(extreme(&[1.0, -3.0, 3.0]), -3.0);
        assert_eq!(extreme(&[]), 0.0);
    }
}
