//! The formats of non-linear 4-bit values.

use super::simple::pack_halves;
use super::{TINY, extreme, group_weights, inverse, nearest, put_half, total, twice_mean_square};
use crate::iq::IQ4_VALUES;

/// The midpoint between value `i` and the next.
fn midpoint(i: usize) -> f32 {
    0.5 * (f32::from(IQ4_VALUES[i]) + f32::from(IQ4_VALUES[i + 1]))
}

/// The index of the value nearest to `y`.
fn code(y: f32) -> u8 {
    (0..15).fold(0, |q, i| q + u8::from(y > midpoint(i)))
}

/// The value nearest to `y`, without a table so that lanes run.
fn value(y: f32) -> f32 {
    (0..15).fold(
        f32::from(IQ4_VALUES[0]),
        |v, i| {
            if y > midpoint(i) { f32::from(IQ4_VALUES[i + 1]) } else { v }
        },
    )
}

/// The scale whose codes leave the least weighted squared error: the extreme meets the neighbourhood of the lowest
/// value, whatever its sign; then least squares.
fn fit(x: &[f32], w: &[f32; 32]) -> f32 {
    let extreme = extreme(x);
    if extreme.abs() < TINY {
        return 0.0;
    }
    let mut best = (extreme / f32::from(IQ4_VALUES[0]), 0.0);
    for end in [IQ4_VALUES[0], IQ4_VALUES[15]] {
        for i in -7..=7 {
            best = better(x, w, (f32::from(end) + i as f32) / extreme, best);
        }
    }
    // The codes of the best scale are not those it was fitted for.
    better(x, w, 1.0 / best.0, best).0
}

/// The least-squares scale of the codes under an inverse, and by how much it lessens the error of all zeros; or
/// what was best.
fn better(x: &[f32], w: &[f32; 32], inverse: f32, best: (f32, f32)) -> (f32, f32) {
    let (qq, qx) = sums(x, w, inverse);
    if qq > 0.0 && qx * qx > best.1 * qq { (qx / qq, qx * qx / qq) } else { best }
}

fn sums(x: &[f32], w: &[f32; 32], inverse: f32) -> (f32, f32) {
    let (mut sqq, mut sqx) = ([0.0f32; 8], [0.0f32; 8]);
    for (x, w) in x.as_chunks::<8>().0.iter().zip(w.as_chunks::<8>().0) {
        for l in 0..8 {
            let q = value(x[l] * inverse);
            let wq = w[l] * q;
            sqq[l] += wq * q;
            sqx[l] += wq * x[l];
        }
    }
    (total(sqq), total(sqx))
}

fn codes(x: &[f32], scale: f32) -> [u8; 32] {
    let inverse = inverse(scale);
    std::array::from_fn(|i| code(x[i] * inverse))
}

pub(crate) fn iq4_nl(x: &[f32], importance: Option<&[f32]>, b: &mut [u8]) {
    let mut w = [0.0; 32];
    group_weights(x, twice_mean_square(x), importance, &mut w);
    let scale = put_half(b, 0, fit(x, &w));
    pack_halves(&codes(x, scale), &mut b[2..18]);
}

pub(crate) fn iq4_xs(x: &[f32], importance: Option<&[f32]>, b: &mut [u8]) {
    let around = twice_mean_square(x);
    let fits: [f32; 8] = std::array::from_fn(|j| {
        let at = 32 * j..32 * j + 32;
        let mut w = [0.0; 32];
        group_weights(&x[at.clone()], around, importance.map(|i| &i[at.clone()]), &mut w);
        fit(&x[at], &w)
    });
    let step = put_half(b, 0, extreme(&fits) / -32.0);
    let inverse = inverse(step);
    let (mut low, mut high) = ([0u8; 4], 0u16);
    for (j, fit) in fits.iter().enumerate() {
        let s = nearest((fit * inverse).clamp(-32.0, 31.0));
        let packed = (s + 32.0) as u8;
        low[j / 2] |= (packed & 15) << (4 * (j % 2));
        high |= u16::from(packed >> 4) << (2 * j);
        pack_halves(&codes(&x[32 * j..32 * j + 32], step * s), &mut b[8 + 16 * j..24 + 16 * j]);
    }
    b[2..4].copy_from_slice(&high.to_le_bytes());
    b[4..8].copy_from_slice(&low);
}
