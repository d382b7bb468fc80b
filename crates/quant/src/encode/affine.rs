//! The best scale and minimum of a group of values under weights.

use super::{MAX_BLOCK, TINY, nearest, total};

/// `x = scale * q - min` with `q` in `0..=levels`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Affine {
    /// Distance of two codes.
    pub scale: f32,
    /// What is taken off.
    pub min: f32,
}

/// How many candidates of the scale are tried: those that would spread the range over
/// `levels + first + i * step` codes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search {
    /// The largest code.
    pub levels: f32,
    /// Offset of the first candidate.
    pub first: f32,
    /// Distance of candidates.
    pub step: f32,
    /// Number of candidates.
    pub n: usize,
    /// Whether the format takes a minimum off, which then is not negative, or adds one of any sign.
    pub below_zero: bool,
}

/// Sums over a group that do not depend on the codes.
struct Fixed {
    w: f32,
    wx: f32,
}

/// Sums over a group and its codes.
struct Sums {
    q: f32,
    qq: f32,
    qx: f32,
}

/// Scale and minimum whose codes leave the least weighted squared error, over the candidates of `search`. For each
/// the codes are fixed first, and scale and minimum follow by least squares. `x.len()` is a multiple of 8.
pub(crate) fn fit(x: &[f32], w: &[f32], search: &Search) -> Affine {
    let ceiling = if search.below_zero { 0.0 } else { f32::MAX };
    let low = x.iter().copied().fold(ceiling, f32::min);
    let high = x.iter().copied().fold(f32::MIN, f32::max);
    let range = high - low;
    if range < TINY {
        return Affine { scale: 0.0, min: -low };
    }
    let fixed = Fixed { w: super::sum8(x.len(), |i| w[i]), wx: super::sum8(x.len(), |i| w[i] * x[i]) };
    let mut weighted = [0.0; MAX_BLOCK];
    let weighted = &mut weighted[..x.len()];
    weighted.iter_mut().zip(x.iter().zip(w)).for_each(|(o, (x, w))| *o = x * w);
    let mut best = Affine { scale: range / search.levels, min: -low };
    let mut most = f32::MIN;
    for i in 0..search.n {
        let spread = search.levels + search.first + search.step * i as f32;
        let sums = sums(x, w, weighted, low, spread / range, search.levels);
        if let Some((fit, gain)) = solve(&fixed, &sums, search.below_zero)
            && gain > most
        {
            (best, most) = (fit, gain);
        }
    }
    best
}

fn sums(x: &[f32], w: &[f32], weighted: &[f32], low: f32, inverse: f32, levels: f32) -> Sums {
    let (mut sq, mut sqq, mut sqx) = ([0.0f32; 8], [0.0f32; 8], [0.0f32; 8]);
    for ((x, w), wx) in x.as_chunks::<8>().0.iter().zip(w.as_chunks::<8>().0).zip(weighted.as_chunks::<8>().0)
    {
        for l in 0..8 {
            let q = nearest((x[l] - low) * inverse).clamp(0.0, levels);
            let wq = w[l] * q;
            sq[l] += wq;
            sqq[l] += wq * q;
            sqx[l] += wx[l] * q;
        }
    }
    Sums { q: total(sq), qq: total(sqq), qx: total(sqx) }
}

/// The weighted squared error of the best codes `0..=levels` under a scale and minimum.
pub(crate) fn error(x: &[f32], w: &[f32], scale: f32, min: f32, levels: f32) -> f32 {
    let inverse = super::inverse(scale);
    let mut sums = [0.0f32; 8];
    for (x, w) in x.as_chunks::<8>().0.iter().zip(w.as_chunks::<8>().0) {
        for l in 0..8 {
            let shifted = x[l] + min;
            let q = nearest((shifted * inverse).clamp(0.0, levels));
            let miss = shifted - scale * q;
            sums[l] += w[l] * (miss * miss);
        }
    }
    total(sums)
}

/// The least-squares solution, and by how much it lessens the error of an all-zero answer.
fn solve(f: &Fixed, s: &Sums, below_zero: bool) -> Option<(Affine, f32)> {
    let determinant = f.w * s.qq - s.q * s.q;
    if determinant.is_nan() || determinant <= 0.0 {
        return None;
    }
    let scale = (f.w * s.qx - f.wx * s.q) / determinant;
    let offset = (s.qq * f.wx - s.q * s.qx) / determinant;
    let (scale, offset) = if below_zero && offset > 0.0 { (s.qx / s.qq, 0.0) } else { (scale, offset) };
    let gain = scale * s.qx + offset * f.wx;
    (scale > 0.0).then_some((Affine { scale, min: -offset }, gain))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEARCH: Search = Search { levels: 15.0, first: -1.0, step: 0.1, n: 21, below_zero: true };

    #[test]
    fn values_on_a_lattice_are_met() {
        let x: Vec<f32> = (0..32).map(|i| 0.25 * (i % 16) as f32 - 1.0).collect();
        let fit = fit(&x, &[1.0; 32], &SEARCH);
        assert!((fit.scale - 0.25).abs() < 1e-5 && (fit.min - 1.0).abs() < 1e-5, "{fit:?}");
    }

    #[test]
    fn a_minimum_is_never_negative() {
        let x: Vec<f32> = (0..32).map(|i| 5.0 + i as f32 * 0.01).collect();
        let fit = fit(&x, &[1.0; 32], &SEARCH);
        assert!(fit.min == 0.0 && fit.scale > 0.0, "{fit:?}");
    }

    #[test]
    fn equal_values_need_no_scale() {
        assert_eq!(fit(&[-2.0; 32], &[1.0; 32], &SEARCH), Affine { scale: 0.0, min: 2.0 });
        assert_eq!(fit(&[0.0; 32], &[1.0; 32], &SEARCH), Affine::default());
    }
}
