//! Probabilities as 32-bit integers from two tables.
//!
//! A candidate that lies `t` below the highest logit weighs about `2^31 * e^-t`. With `n = trunc(t * 2^16)` the
//! weight is `hi32(COARSE[n >> 11] * FINE[n & 2047])`; from `t = 22` on it is 0.

/// Entries of [`WEIGHT_COARSE`]: `22 * 32`.
pub const N_COARSE: usize = 704;
/// Entries of [`WEIGHT_FINE`].
pub const N_FINE: usize = 2048;
/// The weight at `t = 0`, which the first candidate always has.
pub const MAX_WEIGHT: u32 = (1 << 31) - 1;

/// Where weights become 0: this far below the highest logit.
pub(crate) const SPAN: f32 = 22.0;

/// `round((2^32 - 1) * e^(-i/32))`.
pub static WEIGHT_COARSE: [u32; N_COARSE] = coarse();
/// `round(2^31 * e^(-j/65536))`.
pub static WEIGHT_FINE: [u32; N_FINE] = fine();

/// The weight of a candidate `t >= 0` below the highest logit; 0 for `t >= 22`, infinity included.
#[inline]
pub fn weight(t: f32) -> u32 {
    if t < SPAN {
        let n = (t * 65536.0) as u32 as usize;
        let product = u64::from(WEIGHT_COARSE[n >> 11]) * u64::from(WEIGHT_FINE[n & 2047]);
        (product >> 32) as u32
    } else {
        0
    }
}

const fn coarse() -> [u32; N_COARSE] {
    let mut out = [0; N_COARSE];
    let mut i = 0;
    while i < N_COARSE {
        let mut e = exp_neg((i % 32) as f64 / 32.0);
        let mut whole = i / 32;
        while whole > 0 {
            e *= INV_E;
            whole -= 1;
        }
        out[i] = round(4_294_967_295.0 * e);
        i += 1;
    }
    out
}

const fn fine() -> [u32; N_FINE] {
    let mut out = [0; N_FINE];
    let mut j = 0;
    while j < N_FINE {
        out[j] = round(2_147_483_648.0 * exp_neg(j as f64 / 65536.0));
        j += 1;
    }
    out
}

const INV_E: f64 = 0.367_879_441_171_442_33;

/// `e^-x` for `0 <= x < 1` by its Taylor series. Basic f64 operations alone, so every build has the same tables;
/// the twentieth term is below 2^-61.
const fn exp_neg(x: f64) -> f64 {
    let mut sum = 1.0;
    let mut n = 20;
    while n > 0 {
        sum = 1.0 - sum * x / n as f64;
        n -= 1;
    }
    sum
}

const fn round(x: f64) -> u32 {
    (x + 0.5) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `e^-(num/den) * 2^90` by integer arithmetic, good to about 2^-90: e^-x = (e^-(x/64))^64.
    fn exp_neg_fixed(num: u128, den: u128) -> u128 {
        let x = (num << 90) / (den * 64);
        let (mut term, mut plus, mut minus) = (1_u128 << 90, 0_u128, 0_u128);
        for n in 1..40 {
            if n % 2 == 1 {
                plus += term
            } else {
                minus += term
            }
            term = mul(term, x) / n;
        }
        let mut e = plus - minus;
        for _ in 0..6 {
            e = mul(e, e);
        }
        e
    }

    /// `a * b >> 90` for factors of at most 2^91.
    fn mul(a: u128, b: u128) -> u128 {
        let (ah, al) = (a >> 46, a & ((1 << 46) - 1));
        let (bh, bl) = (b >> 46, b & ((1 << 46) - 1));
        // (ah*2^46 + al)(bh*2^46 + bl) >> 90
        ((ah * bh) << 2) + ((ah * bl + al * bh + ((al * bl) >> 46)) >> 44)
    }

    /// The f64 tables are the rounded values themselves: an exact form agrees on every entry.
    #[test]
    fn tables_are_correctly_rounded() {
        let round = |scale: u128, e: u128| ((scale * (e >> 30) + (1 << 59)) >> 60) as u32;
        for (i, &a) in WEIGHT_COARSE.iter().enumerate() {
            assert_eq!(a, round((1 << 32) - 1, exp_neg_fixed(i as u128, 32)), "coarse {i}");
        }
        for (j, &b) in WEIGHT_FINE.iter().enumerate() {
            assert_eq!(b, round(1 << 31, exp_neg_fixed(j as u128, 65536)), "fine {j}");
        }
    }

    /// The distance is cut to 2^-16 and the coarse table to integers, so weights are near, not monotone.
    #[test]
    fn weights_follow_the_exponential() {
        assert_eq!([weight(0.0), weight(22.0), weight(f32::INFINITY)], [MAX_WEIGHT, 0, 0]);
        for i in 0..220_000 {
            let t = i as f32 * 1e-4;
            let want = f64::from(1u32 << 31) * (-f64::from(t)).exp();
            let got = f64::from(weight(t));
            assert!((got - want).abs() <= 2.0 + want * 2e-5, "t {t}: {got}, not {want}");
        }
    }
}
