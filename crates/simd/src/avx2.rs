//! AVX2 with FMA and F16C: two 256-bit registers.

use std::arch::x86_64::*;
use std::is_x86_feature_detected as has;

use crate::level::{Kernel, Level};
use crate::token::{LANES, Simd};

/// Proof that the machine has AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

impl Avx2 {
    /// The token, if this machine has the instructions.
    #[inline]
    pub fn detect() -> Option<Self> {
        (has!("avx2") && has!("fma") && has!("f16c")).then_some(Self(()))
    }

    /// Runs `kernel` where the instructions are enabled.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Out {
        #[inline(never)]
        #[target_feature(enable = "avx2,fma,f16c")]
        fn inner<K: Kernel>(token: Avx2, kernel: K) -> K::Out {
            kernel.run(token)
        }
        // SAFETY: the token exists only after every feature was detected.
        unsafe { inner(self, kernel) }
    }
}

/// Lanes 0..8 and 8..16.
type F = [__m256; 2];
type I = [__m256i; 2];

/// Register intrinsics on both halves: sound because the token proves the instructions.
macro_rules! both {
    ($f:ident, $($x:expr),+) => {
        // SAFETY: the token exists only after detection; no memory is touched.
        unsafe { [$f($($x[0]),+), $f($($x[1]),+)] }
    };
}

/// Register intrinsics: sound because the token proves the instructions.
macro_rules! reg {
    ($e:expr) => {
        // SAFETY: the token exists only after detection; no memory is touched.
        unsafe { $e }
    };
}

/// One 256-bit step of a dot of unsigned and signed bytes whose pair sums fit 16 bits.
#[inline(always)]
fn dot_half(acc: __m256i, u: __m256i, s: __m256i) -> __m256i {
    reg!(_mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(u, s), _mm256_set1_epi16(1))))
}

impl Simd for Avx2 {
    type F = F;
    type I = I;
    type M = F;
    const LEVEL: Level = Level::Avx2;
    const W8_BIAS: i32 = 0;

    #[inline(always)]
    unsafe fn load_ptr(self, p: *const f32) -> F {
        // SAFETY: the caller vouches for 64 bytes.
        unsafe { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
    }
    #[inline(always)]
    unsafe fn store_ptr(self, p: *mut f32, a: F) {
        // SAFETY: the caller vouches for 64 bytes.
        unsafe {
            _mm256_storeu_ps(p, a[0]);
            _mm256_storeu_ps(p.add(8), a[1]);
        }
    }
    #[inline(always)]
    unsafe fn load_f16_ptr(self, p: *const u16) -> F {
        // SAFETY: the caller vouches for 32 bytes.
        unsafe {
            [_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(8).cast()))]
        }
    }
    #[inline(always)]
    unsafe fn load_i_ptr(self, p: *const u8) -> I {
        // SAFETY: the caller vouches for 64 bytes.
        unsafe { [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())] }
    }
    #[inline(always)]
    unsafe fn store_i_ptr(self, p: *mut u8, a: I) {
        // SAFETY: the caller vouches for 64 bytes.
        unsafe {
            _mm256_storeu_si256(p.cast(), a[0]);
            _mm256_storeu_si256(p.add(32).cast(), a[1]);
        }
    }
    #[inline(always)]
    unsafe fn load_u8_ptr(self, p: *const u8) -> I {
        // SAFETY: the caller vouches for 16 bytes.
        unsafe {
            [
                _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())),
                _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.add(8).cast())),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_i8_ptr(self, p: *const u8) -> I {
        // SAFETY: the caller vouches for 16 bytes.
        unsafe {
            [
                _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())),
                _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.add(8).cast())),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_u16_ptr(self, p: *const u16) -> I {
        // SAFETY: the caller vouches for 32 bytes.
        unsafe {
            [
                _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast())),
                _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(8).cast())),
            ]
        }
    }
    #[inline(always)]
    unsafe fn store_low8_ptr(self, p: *mut u8, a: I) {
        let a = self.and(a, self.splat_i(0xff));
        // SAFETY: the caller vouches for 16 bytes.
        unsafe {
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(a[0], a[1]));
            let bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(p.cast(), bytes);
        }
    }
    #[inline(always)]
    unsafe fn store_low16_ptr(self, p: *mut u16, a: I) {
        let a = self.and(a, self.splat_i(0xffff));
        // SAFETY: the caller vouches for 32 bytes.
        unsafe {
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(a[0], a[1]));
            _mm256_storeu_si256(p.cast(), words);
        }
    }
    #[inline(always)]
    unsafe fn store_f16_ptr(self, p: *mut u16, a: F) {
        let a = self.select(self.is_nan(a), self.splat(f32::from_bits(0x7fc0_0000)), a);
        // SAFETY: the caller vouches for 32 bytes.
        unsafe {
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT }>(a[0]));
            _mm_storeu_si128(p.add(8).cast(), _mm256_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT }>(a[1]));
        }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> F {
        reg!([_mm256_set1_ps(x); 2])
    }
    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        both!(_mm256_add_ps, a, b)
    }
    #[inline(always)]
    fn sub(self, a: F, b: F) -> F {
        both!(_mm256_sub_ps, a, b)
    }
    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        both!(_mm256_mul_ps, a, b)
    }
    #[inline(always)]
    fn div(self, a: F, b: F) -> F {
        both!(_mm256_div_ps, a, b)
    }
    #[inline(always)]
    fn fma(self, a: F, b: F, c: F) -> F {
        both!(_mm256_fmadd_ps, a, b, c)
    }
    #[inline(always)]
    fn sqrt(self, a: F) -> F {
        both!(_mm256_sqrt_ps, a)
    }
    #[inline(always)]
    fn pick_max(self, a: F, b: F) -> F {
        both!(_mm256_max_ps, a, b)
    }
    #[inline(always)]
    fn pick_min(self, a: F, b: F) -> F {
        both!(_mm256_min_ps, a, b)
    }
    #[inline(always)]
    fn round_i(self, a: F) -> I {
        both!(_mm256_cvtps_epi32, a)
    }
    #[inline(always)]
    fn bits(self, a: F) -> I {
        both!(_mm256_castps_si256, a)
    }
    #[inline(always)]
    fn lt(self, a: F, b: F) -> F {
        reg!([_mm256_cmp_ps::<_CMP_LT_OQ>(a[0], b[0]), _mm256_cmp_ps::<_CMP_LT_OQ>(a[1], b[1])])
    }
    #[inline(always)]
    fn le(self, a: F, b: F) -> F {
        reg!([_mm256_cmp_ps::<_CMP_LE_OQ>(a[0], b[0]), _mm256_cmp_ps::<_CMP_LE_OQ>(a[1], b[1])])
    }
    #[inline(always)]
    fn eq(self, a: F, b: F) -> F {
        reg!([_mm256_cmp_ps::<_CMP_EQ_OQ>(a[0], b[0]), _mm256_cmp_ps::<_CMP_EQ_OQ>(a[1], b[1])])
    }
    #[inline(always)]
    fn is_nan(self, a: F) -> F {
        reg!([_mm256_cmp_ps::<_CMP_UNORD_Q>(a[0], a[0]), _mm256_cmp_ps::<_CMP_UNORD_Q>(a[1], a[1])])
    }
    #[inline(always)]
    fn select(self, m: F, a: F, b: F) -> F {
        both!(_mm256_blendv_ps, b, a, m)
    }
    #[inline(always)]
    fn to_array(self, a: F) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        self.store(&mut out, a);
        out
    }

    #[inline(always)]
    fn splat_i(self, x: i32) -> I {
        reg!([_mm256_set1_epi32(x); 2])
    }
    #[inline(always)]
    fn to_f(self, a: I) -> F {
        both!(_mm256_cvtepi32_ps, a)
    }
    #[inline(always)]
    fn of_bits(self, a: I) -> F {
        both!(_mm256_castsi256_ps, a)
    }
    #[inline(always)]
    fn add_i(self, a: I, b: I) -> I {
        both!(_mm256_add_epi32, a, b)
    }
    #[inline(always)]
    fn sub_i(self, a: I, b: I) -> I {
        both!(_mm256_sub_epi32, a, b)
    }
    #[inline(always)]
    fn mul_i(self, a: I, b: I) -> I {
        both!(_mm256_mullo_epi32, a, b)
    }
    #[inline(always)]
    fn and(self, a: I, b: I) -> I {
        both!(_mm256_and_si256, a, b)
    }
    #[inline(always)]
    fn or(self, a: I, b: I) -> I {
        both!(_mm256_or_si256, a, b)
    }
    #[inline(always)]
    fn xor(self, a: I, b: I) -> I {
        both!(_mm256_xor_si256, a, b)
    }
    #[inline(always)]
    fn shl(self, a: I, n: u32) -> I {
        let n = reg!([_mm_cvtsi32_si128(n as i32); 2]);
        both!(_mm256_sll_epi32, a, n)
    }
    #[inline(always)]
    fn shr(self, a: I, n: u32) -> I {
        let n = reg!([_mm_cvtsi32_si128(n as i32); 2]);
        both!(_mm256_srl_epi32, a, n)
    }
    #[inline(always)]
    fn sar(self, a: I, n: u32) -> I {
        let n = reg!([_mm_cvtsi32_si128(n as i32); 2]);
        both!(_mm256_sra_epi32, a, n)
    }
    #[inline(always)]
    fn max_i(self, a: I, b: I) -> I {
        both!(_mm256_max_epi32, a, b)
    }
    #[inline(always)]
    fn gt_i(self, a: I, b: I) -> F {
        self.of_bits(both!(_mm256_cmpgt_epi32, a, b))
    }
    #[inline(always)]
    fn eq_i(self, a: I, b: I) -> F {
        self.of_bits(both!(_mm256_cmpeq_epi32, a, b))
    }
    #[inline(always)]
    fn select_i(self, m: F, a: I, b: I) -> I {
        self.bits(self.select(m, self.of_bits(a), self.of_bits(b)))
    }
    #[inline(always)]
    fn to_array_i(self, a: I) -> [i32; LANES] {
        let mut out = [0; LANES];
        self.store_i32(&mut out, a);
        out
    }
    #[inline(always)]
    fn lookup16(self, table: &[u8; 16], idx: I) -> I {
        // SAFETY: the table is 16 readable bytes; the token proves the instructions.
        let table = unsafe { [_mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())); 2] };
        both!(_mm256_shuffle_epi8, table, idx)
    }
    #[inline(always)]
    fn dot_u7(self, acc: I, w: I, a: I) -> I {
        [dot_half(acc[0], w[0], a[0]), dot_half(acc[1], w[1], a[1])]
    }
    #[inline(always)]
    fn dot_w8(self, acc: I, w: I, a: I) -> I {
        // 128 * 127 * 2 = 32512: the 16-bit sums never saturate, even for a weight of -128.
        let w = self.xor(w, self.splat_i(0x8080_8080u32 as i32));
        let signed = both!(_mm256_sign_epi8, a, w);
        let magnitude = both!(_mm256_abs_epi8, w);
        [dot_half(acc[0], magnitude[0], signed[0]), dot_half(acc[1], magnitude[1], signed[1])]
    }
    #[inline(always)]
    fn madd16(self, acc: I, a: I, b: I) -> I {
        self.add_i(acc, both!(_mm256_madd_epi16, a, b))
    }
    #[inline(always)]
    fn dot_pairs(self, acc: I, w: I, a: I) -> I {
        let pairs = both!(_mm256_maddubs_epi16, w, a);
        both!(_mm256_add_epi16, acc, pairs)
    }
    #[inline(always)]
    fn sum_tree(self, a: F) -> f32 {
        reg!({
            let eight = _mm256_add_ps(a[0], a[1]);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        })
    }
    #[inline(always)]
    fn reduce_max(self, a: F) -> f32 {
        reg!(greatest(a[0], a[1]))
    }
}

/// The greatest of sixteen lanes, in the tree of [`Simd::reduce_max`].
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
pub(crate) unsafe fn greatest(low: __m256, high: __m256) -> f32 {
    // SAFETY: by the contract.
    unsafe {
        // A maximum of x86 is its second operand where one is NaN: the first is put back where it is one.
        let eight = _mm256_blendv_ps(_mm256_max_ps(low, high), low, _mm256_cmp_ps::<_CMP_UNORD_Q>(low, low));
        let max = |a: __m128, b: __m128| _mm_blendv_ps(_mm_max_ps(a, b), a, _mm_cmpunord_ps(a, a));
        let four = max(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
        let two = max(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(max(two, _mm_movehdup_ps(two)))
    }
}
