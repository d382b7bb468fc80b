//! Logarithm and exponential in f64 from basic operations alone, so that every build has the same bits.

const LN_2: f64 = std::f64::consts::LN_2;

/// `ln x` for a finite `x > 0` that is not denormal; within 2 units in the last place.
pub fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i64 - 1023;
    let mut m = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    if m > std::f64::consts::SQRT_2 {
        (m, exponent) = (m * 0.5, exponent + 1);
    }
    // ln m = 2 artanh s with |s| < 0.172; the fourteenth term is below 2^-73.
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    let mut n = 27;
    while n >= 1 {
        sum = sum * square + 1.0 / f64::from(n);
        n -= 2;
    }
    2.0 * s * sum + exponent as f64 * LN_2
}

/// `e^x` for any finite `x`; 0 below about -708, the largest number above about 709.
pub fn exp(x: f64) -> f64 {
    if x < -708.0 {
        return 0.0;
    }
    if x > 709.0 {
        return f64::MAX;
    }
    let k = (x / LN_2 + if x < 0.0 { -0.5 } else { 0.5 }) as i64;
    // The high part of ln 2 has few bits, so its product with k is exact.
    let r = (x - k as f64 * 6.931_471_803_691_238e-1) - k as f64 * 1.908_214_929_270_587_7e-10;
    let mut sum = 1.0;
    let mut n = 16;
    while n > 0 {
        sum = 1.0 + sum * r / f64::from(n);
        n -= 1;
    }
    sum * f64::from_bits(((k + 1023) as u64) << 52)
}

/// `x^y` for `x >= 0`; `0^0` is 1.
pub fn pow(x: f64, y: f64) -> f64 {
    match (x > f64::MIN_POSITIVE, y == 0.0) {
        (_, true) => 1.0,
        (true, false) => exp(y * ln(x)),
        (false, false) if y > 0.0 => 0.0,
        (false, false) => f64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_those_of_the_library_nearly() {
        let near = |a: f64, b: f64| (a - b).abs() <= 4.0 * f64::EPSILON * b.abs().max(1e-300);
        for i in 1..20_000 {
            let x = f64::from(i) * 0.37 / 512.0;
            assert!(near(ln(x), x.ln()) || (ln(x) - x.ln()).abs() < 1e-16, "ln {x}");
            let y = (f64::from(i) - 10_000.0) * 0.07;
            assert!(near(exp(y), y.exp()), "exp {y}: {} {}", exp(y), y.exp());
        }
        assert_eq!((exp(0.0), ln(1.0), pow(0.0, 0.0), pow(0.0, 2.0)), (1.0, 0.0, 1.0, 0.0));
        assert_eq!((exp(-1e9), exp(1e9)), (0.0, f64::MAX));
        assert!(near(pow(1.75, 7.0), 1.75f64.powi(7)));
    }
}
