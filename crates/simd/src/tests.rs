//! Every level gives the bits of `Scalar`; the functions keep their error bounds.

use crate::math::{self, scalar};
use crate::token::LANES;
use crate::{Kernel, Level, Scalar, Simd, convert, dispatch};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    }
    fn ints(&mut self) -> [i32; LANES] {
        std::array::from_fn(|_| self.next() as i32)
    }
    /// Random bits without NaN: normal, denormal, zero, huge, infinite.
    fn floats(&mut self) -> [f32; LANES] {
        std::array::from_fn(|i| {
            let bits = self.next();
            let x = match i % 6 {
                0 => f32::from_bits(bits & 0x807f_ffff),
                1 => f32::from_bits(bits & 0x8000_0000),
                2 => (bits as i32 as f32) / 65536.0,
                3 => (bits as i32 as f32) * 2.0f32.powi(-31),
                4 => (bits as i32 / 0x1000_0000) as f32 + 0.5,
                _ => f32::from_bits(bits),
            };
            if x.is_nan() { 1.5 } else { x }
        })
    }
}

/// One bit pattern for all NaN, since their payload is not specified.
fn canonical(x: f32) -> i32 {
    if x.is_nan() { 0x7fc0_0000 } else { x.to_bits() as i32 }
}

/// Everything the token does, on one set of inputs.
struct Everything<'a> {
    x: &'a [[f32; LANES]; 3],
    i: &'a [[i32; LANES]; 3],
    out: &'a mut Vec<i32>,
}

impl Everything<'_> {
    #[inline(always)]
    fn put_f<S: Simd>(&mut self, s: S, a: S::F) {
        self.out.extend(s.to_array(a).map(canonical));
    }
    #[inline(always)]
    fn put_i<S: Simd>(&mut self, s: S, a: S::I) {
        self.out.extend(s.to_array_i(a));
    }
}

impl Kernel for Everything<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let [a, b, c] = self.x.map(|x| s.load(&x));
        let [i, j, k] = self.i.map(|x| s.load_i32(&x));
        for f in [
            s.add(a, b),
            s.sub(a, b),
            s.mul(a, b),
            s.div(a, b),
            s.fma(a, b, c),
            s.sqrt(s.abs(a)),
            s.sqrt(a),
            s.pick_max(a, b),
            s.pick_min(a, b),
            s.max(a, b),
            s.min(a, b),
            s.neg(a),
            s.abs(a),
            s.copysign(a, b),
            s.to_f(i),
            s.select(s.lt(a, b), a, c),
            s.select(s.le(a, b), a, c),
            s.select(s.eq(s.round(s.abs(c)), s.zero()), a, b),
            s.select(s.is_nan(s.sqrt(a)), b, c),
            s.select(s.gt_i(i, j), a, b),
            s.load_f16(&self.i[0].map(|x| x as u16 & 0xfbff)),
            s.load_bf16(&self.i[0].map(|x| x as u16 & 0xff7f)),
            s.load_partial(&self.x[0][..7], 2.5),
        ] {
            self.put_f(s, f);
        }
        let bytes: [u8; 64] = std::array::from_fn(|n| self.i[2][n / 4].to_le_bytes()[n % 4]);
        let u7 = s.and(i, s.splat_i(0x7f7f_7f7f));
        let u4 = s.and(i, s.splat_i(0x0f0f_0f0f));
        // Bytes in -127..=127.
        let s8: [i32; LANES] =
            self.i[1].map(|x| i32::from_le_bytes(x.to_le_bytes().map(|b| if b == 128 { 127 } else { b })));
        let a8 = s.load_i32(&s8);
        let mut a_sum = [0; LANES];
        for (sum, x) in a_sum.iter_mut().zip(s8) {
            *sum = x.to_le_bytes().iter().map(|&b| b as i8 as i32).sum::<i32>() * S::W8_BIAS;
        }
        for v in [
            s.round_i(a),
            s.add_i(i, j),
            s.sub_i(i, j),
            s.mul_i(i, j),
            s.and(i, j),
            s.or(i, j),
            s.xor(i, j),
            s.shl(i, 5),
            s.shr(i, 4),
            s.sar(i, 23),
            s.max_i(i, j),
            s.select_i(s.eq_i(s.and(i, s.splat_i(1)), s.splat_i(0)), j, k),
            s.load_bytes(&bytes),
            s.load_u8(bytes.first_chunk().unwrap()),
            s.load_i8(&std::array::from_fn(|n| bytes[n] as i8)),
            s.lookup16(&[200, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255], u4),
            s.dot_u7(k, u7, a8),
            s.dot_u7(k, s.splat_i(0x7f7f_7f7f), s.splat_i(0x8181_8181u32 as i32)),
            s.dot_w8(s.load_i32(&a_sum), i, a8),
            s.madd16(k, i, j),
            s.dot_pairs(k, u7, a8),
            s.dot_pairs(s.dot_pairs(k, u4, a8), s.splat_i(0x7f7f_7f7f), s.splat_i(0x8181_8181u32 as i32)),
        ] {
            self.put_i(s, v);
        }
        // The weight of -128 against both ends.
        let extreme = s.dot_w8(s.splat_i(S::W8_BIAS * -508), s.splat_i(0), s.splat_i(0x8181_8181u32 as i32));
        self.put_i(s, extreme);
        let (mut low8, mut half, mut brain, mut part) = ([0i8; 16], [0u16; 16], [0u16; 16], [0f32; 5]);
        s.store_i8(&mut low8, i);
        s.store_f16(&mut half, b);
        s.store_bf16(&mut brain, b);
        s.store_partial(&mut part, c);
        self.out.extend(low8.map(i32::from));
        self.out.extend(half.map(i32::from));
        self.out.extend(brain.map(i32::from));
        self.out.extend(part.map(canonical));
        self.out.extend([
            canonical(s.sum_tree(a)),
            canonical(s.reduce_max(a)),
            s.reduce_max_i(i),
            s.sum_i(i),
        ]);
        for f in functions(s, a).into_iter().chain(functions(s, s.mul(s.to_f(i), s.splat(1e-8)))) {
            self.put_f(s, f);
        }
    }
}

#[inline(always)]
fn functions<S: Simd>(s: S, x: S::F) -> [S::F; 13] {
    [
        math::exp2(s, x),
        math::exp(s, x),
        math::ln(s, x),
        math::tanh(s, x),
        math::sigmoid(s, x),
        math::silu(s, x),
        math::gelu(s, x),
        math::gelu_quick(s, x),
        math::gelu_erf(s, x),
        math::erf(s, x),
        math::softplus(s, x),
        math::relu(s, x),
        math::relu_squared(s, x),
    ]
}

#[test]
fn every_level_gives_the_bits_of_scalar() {
    let mut random = Random(0x1234_5678_9abc_def1);
    for round in 0..2000 {
        let x = std::array::from_fn(|_| random.floats());
        let i = std::array::from_fn(|_| random.ints());
        let mut expected = Vec::new();
        dispatch(Level::Scalar, Everything { x: &x, i: &i, out: &mut expected });
        for level in Level::available() {
            let mut found = Vec::new();
            dispatch(level, Everything { x: &x, i: &i, out: &mut found });
            let differs = expected.iter().zip(&found).position(|(a, b)| a != b);
            assert_eq!(differs, None, "level {level}, round {round}");
            assert_eq!(expected.len(), found.len());
        }
    }
}

#[test]
fn scalar_without_fma_hardware_gives_the_same_bits() {
    let mut random = Random(77);
    for _ in 0..50 {
        let x = std::array::from_fn(|_| random.floats());
        let i = std::array::from_fn(|_| random.ints());
        let (mut expected, mut found) = (Vec::new(), Vec::new());
        dispatch(Level::Scalar, Everything { x: &x, i: &i, out: &mut expected });
        // Called here, outside of a function that enables FMA, `mul_add` is the exact software one.
        Everything { x: &x, i: &i, out: &mut found }.run(Scalar::default());
        assert_eq!(expected, found);
    }
}

struct NanRules;
impl Kernel for NanRules {
    type Out = [bool; 8];
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> [bool; 8] {
        let (nan, one) = (s.splat(f32::NAN), s.splat(1.0));
        let first = |v: S::F| s.to_array(v)[0];
        let mut lane3 = [1.0; LANES];
        lane3[3] = f32::NAN;
        let mut half = [0; LANES];
        s.store_f16(&mut half, s.neg(nan));
        [
            first(s.max(nan, one)).is_nan(),
            first(s.max(one, nan)).is_nan(),
            first(s.min(nan, one)).is_nan(),
            first(s.min(one, nan)).is_nan(),
            first(s.pick_max(nan, one)) == 1.0,
            first(s.pick_min(one, nan)).is_nan(),
            s.reduce_max(s.load(&lane3)).is_nan(),
            half == [0x7e00; LANES] && s.to_array_i(s.round_i(nan)) == [i32::MIN; LANES],
        ]
    }
}

#[test]
fn nan_stays_visible() {
    for level in Level::available() {
        assert_eq!(dispatch(level, NanRules), [true; 8], "{level}");
    }
    for f in [scalar::exp2, scalar::exp, scalar::ln, scalar::tanh, scalar::silu, scalar::gelu_erf] {
        assert!(f(f32::NAN).is_nan());
    }
    assert!(scalar::softplus(f32::NAN).is_nan() && scalar::relu(f32::NAN).is_nan());
}

#[test]
fn halves_convert_as_the_crate_half_does() {
    for h in 0..=u16::MAX {
        let expected = half::f16::from_bits(h).to_f32();
        let found = convert::f16_to_f32(h);
        assert!(found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan()), "{h:04x}");
        if !found.is_nan() {
            assert_eq!(convert::f32_to_f16(found), h);
        }
    }
    let mut random = Random(99);
    for _ in 0..200_000 {
        // Exponents around the range of f16, denormals and overflow included.
        let x = f32::from_bits((random.next() & 0x8fff_ffff).wrapping_add(0x3000_0000));
        assert_eq!(convert::f32_to_f16(x), half::f16::from_f32_const(x).to_bits(), "{x}");
        assert_eq!(convert::f32_to_bf16(x), half::bf16::from_f32(x).to_bits(), "{x}");
    }
}

/// Largest error of `f` against `exact` over `n` steps of `lo..hi`, in ulp of the exact value.
#[track_caller]
fn check(name: &str, f: fn(f32) -> f32, exact: fn(f64) -> f64, range: (f32, f32), bound: f64) {
    let n = 200_000;
    let mut worst = (0.0, 0.0);
    for step in 0..=n {
        let x = range.0 + (range.1 - range.0) * (step as f32 / n as f32);
        let want = exact(x as f64);
        let ulp = 2.0f64.powi((want.abs().log2().floor() as i32).max(-126) - 23);
        let error = (f(x) as f64 - want).abs() / ulp;
        if error > worst.0 {
            worst = (error, x);
        }
    }
    println!("{name}: {:.3} ulp at {}", worst.0, worst.1);
    assert!(worst.0 <= bound, "{name}: {} ulp at {}", worst.0, worst.1);
}

fn erf_f64(x: f64) -> f64 {
    if x.abs() > 4.5 {
        return x.signum(); // off by 2e-10 at most
    }
    // Taylor series; its cancellation leaves 1e-8 at 4.5 and less below.
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term.abs() > 1e-18 * sum.abs() && n < 200.0 {
        n += 1.0;
        term *= -x * x / n;
        sum += term / (2.0 * n + 1.0);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

#[test]
fn functions_keep_their_bounds() {
    check("exp2", scalar::exp2, f64::exp2, (-125.99, 127.99), 0.95);
    check("exp2 near 0", scalar::exp2, f64::exp2, (-0.6, 0.6), 0.95);
    check("exp", scalar::exp, f64::exp, (-87.3, 88.7), 1.1);
    check("exp near 0", scalar::exp, f64::exp, (-0.4, 0.4), 1.1);
    check("ln", scalar::ln, f64::ln, (1e-6, 3.0), 1.1);
    check("ln large", scalar::ln, f64::ln, (3.0, 3e38), 1.1);
    check("ln denormal", scalar::ln, f64::ln, (1e-44, 1e-37), 1.1);
    check("tanh", scalar::tanh, f64::tanh, (-10.0, 10.0), 2.0);
    check("tanh near 0", scalar::tanh, f64::tanh, (-0.7, 0.7), 2.0);
    check("erf", scalar::erf, erf_f64, (-4.5, 4.5), 2.0);
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    check("sigmoid", scalar::sigmoid, sigmoid, (-87.0, 20.0), 2.5);
    check("silu", scalar::silu, |x| x / (1.0 + (-x).exp()), (-80.0, 20.0), 2.5);
    check("softplus", scalar::softplus, |x| x.exp().ln_1p(), (-80.0, 40.0), 2.6);
}

#[test]
fn gelus_are_close_in_absolute_terms() {
    for step in -8000..8000 {
        let x = step as f32 / 1000.0;
        let d = x as f64;
        let tanh =
            0.5 * d * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (d + 0.044715 * d * d * d)).tanh());
        let erf = 0.5 * d * (1.0 + erf_f64(d / 2f64.sqrt()));
        let quick = d / (1.0 + (-1.702 * d).exp());
        for (found, want) in
            [(scalar::gelu(x), tanh), (scalar::gelu_erf(x), erf), (scalar::gelu_quick(x), quick)]
        {
            assert!((found as f64 - want).abs() < 4e-7 * d.abs().max(1.0), "{x}: {found} {want}");
        }
    }
}

#[test]
fn special_values() {
    assert_eq!(scalar::exp(0.0), 1.0);
    assert_eq!(scalar::exp2(0.0), 1.0);
    assert_eq!(scalar::exp(-1e30), 0.0);
    assert_eq!(scalar::exp(f32::NEG_INFINITY), 0.0);
    assert_eq!(scalar::exp2(f32::NEG_INFINITY), 0.0);
    assert_eq!(scalar::exp(89.0), f32::INFINITY);
    assert_eq!(scalar::exp(f32::INFINITY), f32::INFINITY);
    assert_eq!(scalar::exp2(128.0), f32::INFINITY);
    assert_eq!(scalar::exp2(f32::INFINITY), f32::INFINITY);
    assert_eq!(scalar::exp2(127.0), 2f32.powi(127));
    assert_eq!(scalar::tanh(50.0), 1.0);
    assert_eq!(scalar::tanh(-50.0), -1.0);
    assert_eq!(scalar::tanh(-0.0).to_bits(), (-0.0f32).to_bits());
    assert_eq!(scalar::ln(1.0), 0.0);
    assert_eq!(scalar::ln(0.0), f32::NEG_INFINITY);
    assert!(scalar::ln(-1.0).is_nan());
    assert_eq!(scalar::ln(f32::INFINITY), f32::INFINITY);
    assert_eq!(scalar::erf(5.0), 1.0);
    assert_eq!(scalar::sigmoid(-200.0), 0.0);
}

#[test]
fn words_name_levels() {
    for level in Level::ALL {
        assert_eq!(level.name().parse::<Level>(), Ok(level));
    }
    assert!("sse2".parse::<Level>().unwrap_err().to_string().contains("sse2"));
    assert_eq!(Level::detect().checked(), Ok(Level::detect()));
}
