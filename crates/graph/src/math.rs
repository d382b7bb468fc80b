//! f64 functions made of additions, products and divisions alone, so that every machine gives the same bits.
//! The host makes tables with them; they are not for kernels.

/// `2^x` for |x| < 1000, error below 2 ulp.
pub fn exp2(x: f64) -> f64 {
    let n = x.round();
    let y = (x - n) * std::f64::consts::LN_2;
    // Taylor's series on |y| <= ln 2 / 2: term 17 is below 2^-60.
    let mut sum = 1.0;
    for k in (1..=17).rev() {
        sum = 1.0 + sum * y / f64::from(k);
    }
    sum * f64::from_bits(((n as i64 + 1023) as u64) << 52)
}

/// `log2 x` for normal positive x.
pub fn log2(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut e = (bits >> 52) as i64 - 1023;
    let mut m = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    if m > std::f64::consts::SQRT_2 {
        m *= 0.5;
        e += 1;
    }
    // ln m = 2 atanh z with |z| < 0.172: 14 terms reach 2^-70.
    let z = (m - 1.0) / (m + 1.0);
    let zz = z * z;
    let mut sum = 0.0;
    for k in (0..14).rev() {
        sum = sum * zz + 1.0 / f64::from(2 * k + 1);
    }
    e as f64 + 2.0 * z * sum * std::f64::consts::LOG2_E
}

/// Sines and cosines of angles in radians, 0 <= x < 2^30: without a branch, for tables of millions of them.
pub fn sin_cos<const N: usize>(x: [f64; N]) -> ([f64; N], [f64; N]) {
    // pi/2 in three parts of at most 33 bits: quarter * part is exact for quarters below 2^20.
    const P1: f64 = 1.570_796_326_734_125_6;
    const P2: f64 = 6.077_100_506_303_966e-11;
    const P3: f64 = 2.022_266_248_795_950_6e-21;
    // The nearest whole number, half way to the greater: as `round` has it, in instructions that exist for many at once.
    let quarter = x.map(|x| {
        let turns = x * std::f64::consts::FRAC_2_PI;
        let whole = turns as i32;
        whole + i32::from(turns - f64::from(whole) >= 0.5)
    });
    let y: [f64; N] = std::array::from_fn(|i| {
        let q = f64::from(quarter[i]);
        ((x[i] - q * P1) - q * P2) - q * P3
    });
    let (s, c) = series(y);
    let pick = |odd: bool, a: f64, b: f64| if odd { b } else { a };
    let sign = |negative: bool, v: f64| if negative { -v } else { v };
    let sines = std::array::from_fn(|i| sign(quarter[i] & 2 != 0, pick(quarter[i] & 1 != 0, s[i], c[i])));
    let cosines =
        std::array::from_fn(|i| sign((quarter[i] + 1) & 2 != 0, pick(quarter[i] & 1 != 0, c[i], s[i])));
    (sines, cosines)
}

/// Taylor's series on |y| <= pi/4.
fn series<const N: usize>(y: [f64; N]) -> ([f64; N], [f64; N]) {
    let yy = y.map(|y| y * y);
    let (mut s, mut c) = ([1.0; N], [1.0; N]);
    for k in (1..=9).rev() {
        let k = f64::from(k);
        for i in 0..N {
            s[i] = 1.0 - s[i] * yy[i] / ((2.0 * k) * (2.0 * k + 1.0));
            c[i] = 1.0 - c[i] * yy[i] / ((2.0 * k - 1.0) * (2.0 * k));
        }
    }
    (std::array::from_fn(|i| s[i] * y[i]), c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sines_of_large_angles() {
        for i in 0..20_000 {
            let x = f64::from(i) * 61.803_398_87;
            let ([s], [c]) = sin_cos([x]);
            assert!((s - x.sin()).abs() < 4e-16 + x * 1e-22, "sin {x}: {s} {}", x.sin());
            assert!((c - x.cos()).abs() < 4e-16 + x * 1e-22, "cos {x}: {c} {}", x.cos());
        }
    }

    #[test]
    fn powers_and_logarithms() {
        for i in 0..2000 {
            let x = f64::from(i) * 0.037 - 37.0;
            assert!((exp2(x) / x.exp2() - 1.0).abs() < 1e-15, "2^{x}");
            let y = x.exp2();
            assert!((log2(y) - y.log2()).abs() < 4e-15 * (1.0 + x.abs()), "log2 {y}");
        }
    }
}
