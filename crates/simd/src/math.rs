//! Elementary functions: one polynomial each, the same bits at every level.
//!
//! Every function takes the token first and works on sixteen lanes; [`scalar`] has the same functions
//! of one f32, with the same bits. A NaN stays a NaN. Errors are in units in the last place of the
//! result, measured against f64. Coefficients are Chebyshev fits made in 40-digit arithmetic, except
//! those of [`exp2`], which were measured over every exponent.

use crate::token::Simd;

const LN_2_HI: f32 = f32::from_bits(0x3f31_7200);
const LN_2_LO: f32 = f32::from_bits(0x35bf_be8e);
const LOG2_E: f32 = f32::from_bits(0x3fb8_aa3b);

/// `c[0] + c[1]*x + ...` by Horner's rule in fused steps.
#[inline(always)]
fn poly<S: Simd, const N: usize>(s: S, x: S::F, bits: [u32; N]) -> S::F {
    let mut acc = s.splat(f32::from_bits(bits[N - 1]));
    let mut i = N - 1;
    while i > 0 {
        i -= 1;
        acc = s.fma(acc, x, s.splat(f32::from_bits(bits[i])));
    }
    acc
}

/// `p * 2^n` by adding to the exponent; `p` and the product must be normal (or 2^128 times below 1).
#[inline(always)]
fn scale<S: Simd>(s: S, p: S::F, n: S::I) -> S::F {
    s.of_bits(s.add_i(s.bits(p), s.shl(n, 23)))
}

/// `2^x`, within 0.95 ulp. `exp2(0)` is 1; below -126 it is 0 (no denormal results), from 128 on
/// infinite.
#[inline(always)]
pub fn exp2<S: Simd>(s: S, x: S::F) -> S::F {
    // At 128 the fraction is 0 and the exponent field becomes that of infinity.
    let x = s.pick_min(s.splat(128.0), x);
    let n = s.round_i(x);
    let f = s.sub(x, s.to_f(n));
    let p = poly(
        s,
        f,
        [0x3f80_0000, 0x3f31_7218, 0x3e75_fdee, 0x3d63_5774, 0x3c1d_96a6, 0x3aaf_9f29, 0x3920_fdde],
    );
    s.select(s.lt(x, s.splat(-126.0)), s.zero(), scale(s, p, n))
}

/// `e^x`, within 1.1 ulp. `exp(0)` is 1; below -87.33654 it is 0 (no denormal results), above
/// 88.72283 infinite.
#[inline(always)]
pub fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    let n = s.round_i(s.mul(x, s.splat(LOG2_E)));
    let nf = s.to_f(n);
    let r = s.fma(nf, s.splat(-LN_2_HI), x);
    let r = s.fma(nf, s.splat(-LN_2_LO), r);
    let q = poly(s, r, [0x3f00_0000, 0x3e2a_aa6c, 0x3d2a_aa8b, 0x3c09_0836, 0x3ab6_8b03]);
    let p = s.add(s.fma(s.mul(r, r), q, r), s.splat(1.0));
    let y = scale(s, p, n);
    let y = s.select(s.lt(x, s.splat(-87.33654)), s.zero(), y);
    let y = s.select(s.lt(s.splat(88.72283), x), s.splat(f32::INFINITY), y);
    s.select(s.is_nan(x), x, y)
}

/// Natural logarithm, within 1.1 ulp (denormals too). `ln(0)` is -infinity, of a negative number NaN.
#[inline(always)]
pub fn ln<S: Simd>(s: S, x: S::F) -> S::F {
    let denormal = s.lt(x, s.splat(f32::MIN_POSITIVE));
    let y = s.select(denormal, s.mul(x, s.splat(8_388_608.0)), x);
    let shift = s.select(denormal, s.splat(-23.0), s.zero());
    // Take exponents so that the mantissa lies in [sqrt(1/2), sqrt(2)).
    let bits = s.sub_i(s.bits(y), s.splat_i(0x3f35_04f3));
    let e = s.sar(bits, 23);
    let m = s.of_bits(s.sub_i(s.bits(y), s.shl(e, 23)));
    let ef = s.add(s.to_f(e), shift);
    let f = s.sub(m, s.splat(1.0));
    let z = s.div(f, s.add(f, s.splat(2.0)));
    let w = s.mul(z, z);
    let r = s.mul(w, poly(s, w, [0x3f2a_aaab, 0x3ecc_ccf6, 0x3e92_2dd3, 0x3e6e_f80d]));
    // ln(1+f) = f - (hfsq - z*(hfsq + r)): the leading term stays exact.
    let hfsq = s.mul(s.mul(f, f), s.splat(0.5));
    let tail = s.fma(z, s.add(hfsq, r), s.mul(ef, s.splat(LN_2_LO)));
    let result = s.fma(ef, s.splat(LN_2_HI), s.sub(f, s.sub(hfsq, tail)));
    let result = s.select(s.eq(x, s.splat(f32::INFINITY)), x, result);
    let result = s.select(s.eq(x, s.zero()), s.splat(f32::NEG_INFINITY), result);
    let wrong = s.lt(x, s.zero());
    let result = s.select(wrong, s.splat(f32::NAN), result);
    s.select(s.is_nan(x), x, result)
}

/// `ln(1 + u)` for `u` in 0..=1.
#[inline(always)]
fn ln_1p_unit<S: Simd>(s: S, u: S::F) -> S::F {
    let z = s.div(u, s.add(u, s.splat(2.0)));
    let w = s.mul(z, z);
    let r = poly(s, w, [0x3f2a_aaab, 0x3ecc_ccd0, 0x3e92_47ac, 0x3e63_fd9b, 0x3e32_d6ab, 0x3e54_dd7e]);
    s.fma(s.mul(z, w), r, s.add(z, z))
}

/// Hyperbolic tangent, within 2 ulp.
#[inline(always)]
pub fn tanh<S: Simd>(s: S, x: S::F) -> S::F {
    let a = s.abs(x);
    let w = s.mul(a, a);
    let p = poly(s, w, [0xbeaa_aaa9, 0x3e08_86ec, 0xbd5c_8ac1, 0x3cab_b718, 0xbbc6_1685]);
    let near = s.fma(s.mul(a, w), p, a);
    let e = exp(s, s.add(a, a));
    let far = s.sub(s.splat(1.0), s.div(s.splat(2.0), s.add(e, s.splat(1.0))));
    s.copysign(s.select(s.lt(a, s.splat(0.625)), near, far), x)
}

/// `1 / (1 + e^-x)`, within 2.5 ulp; 0 below -88.72283.
#[inline(always)]
pub fn sigmoid<S: Simd>(s: S, x: S::F) -> S::F {
    let one = s.splat(1.0);
    s.div(one, s.add(one, exp(s, s.neg(x))))
}

/// `x / (1 + e^-x)`, within 2.5 ulp.
#[inline(always)]
pub fn silu<S: Simd>(s: S, x: S::F) -> S::F {
    s.div(x, s.add(s.splat(1.0), exp(s, s.neg(x))))
}

/// `x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))`.
#[inline(always)]
pub fn gelu<S: Simd>(s: S, x: S::F) -> S::F {
    let cubic = s.fma(s.mul(x, x), s.splat(0.044715), s.splat(1.0));
    let t = tanh(s, s.mul(s.mul(x, s.splat(0.797_884_6)), cubic));
    s.mul(s.mul(x, s.splat(0.5)), s.add(s.splat(1.0), t))
}

/// `x / (1 + e^(-1.702 x))`.
#[inline(always)]
pub fn gelu_quick<S: Simd>(s: S, x: S::F) -> S::F {
    s.div(x, s.add(s.splat(1.0), exp(s, s.mul(x, s.splat(-1.702)))))
}

/// `x/2 * (1 + erf(x / sqrt(2)))`.
#[inline(always)]
pub fn gelu_erf<S: Simd>(s: S, x: S::F) -> S::F {
    let e = erf(s, s.mul(x, s.splat(std::f32::consts::FRAC_1_SQRT_2)));
    s.mul(s.mul(x, s.splat(0.5)), s.add(s.splat(1.0), e))
}

/// The error function, within 2 ulp.
#[inline(always)]
pub fn erf<S: Simd>(s: S, x: S::F) -> S::F {
    let a = s.abs(x);
    let w = s.mul(a, a);
    let p = poly(
        s,
        w,
        [0x3e03_75d4, 0xbec0_939f, 0x3de7_1688, 0xbcdb_fd5d, 0x3baa_0938, 0xba52_2844, 0x38a5_2b48],
    );
    let near = s.fma(a, p, a);
    // From 4 on the result rounds to 1.
    let b = s.pick_min(s.splat(4.0), a);
    let q = poly(
        s,
        b,
        [
            0xb9a8_4066,
            0x3f90_ab99,
            0x3f21_bef9,
            0x3de1_749a,
            0xbcd8_77ec,
            0x3b9c_000c,
            0xba1c_838c,
            0x3841_4e05,
            0xb5db_ef26,
        ],
    );
    let far = s.sub(s.splat(1.0), exp(s, s.neg(q)));
    s.copysign(s.select(s.lt(a, s.splat(1.0)), near, far), x)
}

/// `ln(1 + e^x)` as `max(x, 0) + ln(1 + e^-|x|)`, within 2.6 ulp.
#[inline(always)]
pub fn softplus<S: Simd>(s: S, x: S::F) -> S::F {
    let tail = ln_1p_unit(s, exp(s, s.neg(s.abs(x))));
    s.add(s.max(x, s.zero()), tail)
}

/// `x` where positive, else 0.
#[inline(always)]
pub fn relu<S: Simd>(s: S, x: S::F) -> S::F {
    s.max(x, s.zero())
}

/// `relu(x)^2`.
#[inline(always)]
pub fn relu_squared<S: Simd>(s: S, x: S::F) -> S::F {
    let r = relu(s, x);
    s.mul(r, r)
}

/// The functions of one f32, with the bits of the sixteen-lane ones.
pub mod scalar {
    use crate::plain::Scalar;
    use crate::token::Simd;

    macro_rules! one {
        ($($name:ident),+) => {$(
            #[doc = concat!("[`super::", stringify!($name), "`] of one value.")]
            pub fn $name(x: f32) -> f32 {
                let s = Scalar::default();
                s.to_array(super::$name(s, s.splat(x)))[0]
            }
        )+};
    }

    one!(exp2, exp, ln, tanh, sigmoid, silu, gelu, gelu_quick, gelu_erf, erf, softplus, relu, relu_squared);
}
