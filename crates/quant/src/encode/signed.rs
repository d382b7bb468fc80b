//! The best signed scale of a group of values under weights.

use super::{TINY, extreme, nearest, total};

/// The scale of `x = scale * q` with `q` in `-half..half` that leaves the least weighted squared error. The value of
/// largest magnitude meets the code `-half`, whatever its sign, so the scale may be negative; nearby scales are tried
/// too, and each is refined by least squares over its codes. `x.len()` is a multiple of 8.
pub(crate) fn fit(x: &[f32], w: &[f32], half: f32) -> f32 {
    let extreme = extreme(x);
    if extreme.abs() < TINY {
        return 0.0;
    }
    let mut best = -extreme / half;
    let mut most = 0.0;
    for i in -9..=9 {
        let inverse = -(half + 0.1 * i as f32) / extreme;
        let (qq, qx) = sums(x, w, inverse, half);
        // The error falls by (sum w q x)^2 / (sum w q^2) from that of all zeros.
        if qq > 0.0 && qx * qx > most * qq {
            (best, most) = (qx / qq, qx * qx / qq);
        }
    }
    best
}

/// The weighted squared error of the best codes under a scale.
pub(crate) fn error(x: &[f32], w: &[f32], scale: f32, half: f32) -> f32 {
    let inverse = super::inverse(scale);
    let mut sums = [0.0f32; 8];
    for (x, w) in x.as_chunks::<8>().0.iter().zip(w.as_chunks::<8>().0) {
        for l in 0..8 {
            let q = nearest((x[l] * inverse).clamp(-half, half - 1.0));
            let miss = x[l] - scale * q;
            sums[l] += w[l] * (miss * miss);
        }
    }
    total(sums)
}

fn sums(x: &[f32], w: &[f32], inverse: f32, half: f32) -> (f32, f32) {
    let (mut sqq, mut sqx) = ([0.0f32; 8], [0.0f32; 8]);
    for (x, w) in x.as_chunks::<8>().0.iter().zip(w.as_chunks::<8>().0) {
        for l in 0..8 {
            let q = nearest(x[l] * inverse).clamp(-half, half - 1.0);
            let wq = w[l] * q;
            sqq[l] += wq * q;
            sqx[l] += wq * x[l];
        }
    }
    (total(sqq), total(sqx))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_on_a_lattice_are_met() {
        let x: Vec<f32> = (0..16).map(|i| 0.5 * (i as f32 - 8.0)).collect();
        assert!((fit(&x, &[1.0; 16], 8.0) - 0.5).abs() < 1e-6);
        let negated: Vec<f32> = x.iter().map(|x| -x).collect();
        assert!((fit(&negated, &[1.0; 16], 8.0) + 0.5).abs() < 1e-6);
        assert_eq!(fit(&[0.0; 16], &[1.0; 16], 8.0), 0.0);
    }
}
