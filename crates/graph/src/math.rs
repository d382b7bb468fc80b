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

/// Sine and cosine of an angle in radians, 0 <= x < 2^30.
pub fn sin_cos(x: f64) -> (f64, f64) {
    // pi/2 in three parts of at most 33 bits: quarter * part is exact for quarters below 2^20.
    const P1: f64 = 1.570_796_326_734_125_6;
    const P2: f64 = 6.077_100_506_303_966e-11;
    const P3: f64 = 2.022_266_248_795_950_6e-21;
    let quarter = (x * std::f64::consts::FRAC_2_PI).round();
    let y = ((x - quarter * P1) - quarter * P2) - quarter * P3;
    let (s, c) = series(y);
    match quarter as i64 & 3 {
        0 => (s, c),
        1 => (c, -s),
        2 => (-s, -c),
        _ => (-c, s),
    }
}

/// Taylor's series on |y| <= pi/4.
fn series(y: f64) -> (f64, f64) {
    let yy = y * y;
    let (mut s, mut c) = (1.0, 1.0);
    for k in (1..=9).rev() {
        let k = f64::from(k);
        s = 1.0 - s * yy / ((2.0 * k) * (2.0 * k + 1.0));
        c = 1.0 - c * yy / ((2.0 * k - 1.0) * (2.0 * k));
    }
    (s * y, c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sines_of_large_angles() {
        for i in 0..20_000 {
            let x = f64::from(i) * 61.803_398_87;
            let (s, c) = sin_cos(x);
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
