//! e^-t as an integer, from two tables.

/// Where a weight becomes 0: this far below the maximum, in natural-log units.
pub(crate) const SPAN: f32 = 22.0;

/// `round((2^32 - 1) * e^(-i/32))` for i in 0..704: the coarse table of [`weight`].
pub static EXP_COARSE: [u32; 704] = coarse();
/// `round(2^31 * e^(-j/65536))` for j in 0..2048: the fine table of [`weight`].
pub static EXP_FINE: [u32; 2048] = fine();

/// The weight of a candidate `t` below the maximum: `e^-t * 2^31`, in 32 bits, from the tables alone.
///
/// 0 for `t >= 22` and for NaN; `t` must not be negative.
#[inline]
pub fn weight(t: f32) -> u32 {
    if t < SPAN {
        let n = (t * 65536.0) as usize;
        ((u64::from(EXP_COARSE[n >> 11]) * u64::from(EXP_FINE[n & 2047])) >> 32) as u32
    } else {
        0
    }
}

/// e^-x for x in 0..22 by plain IEEE operations: Taylor at x/64, then six squarings. Evaluated by the
/// compiler, so every machine has the same tables. The relative error is below 1e-14.
const fn exp_neg(x: f64) -> f64 {
    let y = -x / 64.0;
    let (mut term, mut sum, mut i) = (1.0, 1.0, 1);
    while i < 20 {
        term = term * y / i as f64;
        sum += term;
        i += 1;
    }
    let mut square = 0;
    while square < 6 {
        sum = sum * sum;
        square += 1;
    }
    sum
}

const fn coarse() -> [u32; 704] {
    let (mut table, mut i) = ([0; 704], 0);
    while i < table.len() {
        table[i] = (4294967295.0 * exp_neg(i as f64 / 32.0) + 0.5) as u32;
        i += 1;
    }
    table
}

const fn fine() -> [u32; 2048] {
    let (mut table, mut j) = ([0; 2048], 0);
    while j < table.len() {
        table[j] = (2147483648.0 * exp_neg(j as f64 / 65536.0) + 0.5) as u32;
        j += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_the_rounded_exponential() {
        let check = |got: u32, want: f64| assert!((f64::from(got) - want).abs() < 0.5001, "{got} {want}");
        for (i, a) in EXP_COARSE.iter().enumerate() {
            check(*a, 4294967295.0 * (-(i as f64) / 32.0).exp());
        }
        for (j, b) in EXP_FINE.iter().enumerate() {
            check(*b, 2147483648.0 * (-(j as f64) / 65536.0).exp());
        }
        assert_eq!((EXP_COARSE[0], EXP_FINE[0]), (u32::MAX, 1 << 31));
    }

    #[test]
    fn weights_follow_the_exponential() {
        for i in 0..220_000 {
            let t = i as f32 * 1e-4;
            let want = f64::from(1u32 << 31) * (-f64::from(t)).exp();
            let got = f64::from(weight(t));
            assert!((got - want).abs() <= 2.0 + want * 2e-5, "t {t}: {got}, not {want}");
        }
        assert_eq!(weight(0.0), (1 << 31) - 1);
        assert_eq!([weight(22.0), weight(f32::INFINITY), weight(f32::NAN)], [0; 3]);
    }
}
