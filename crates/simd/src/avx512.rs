//! AVX-512 with VNNI: one 512-bit register.

use std::arch::x86_64::*;
use std::is_x86_feature_detected as has;

use crate::level::{Kernel, Level};
use crate::token::{LANES, Simd};

/// Proof that the machine has AVX-512 F, BW, VL, DQ and VNNI.
#[derive(Clone, Copy, Debug)]
pub struct Avx512(());

impl Avx512 {
    /// The token, if this machine has the instructions.
    #[inline]
    pub fn detect() -> Option<Self> {
        let all = has!("avx512f")
            && has!("avx512bw")
            && has!("avx512vl")
            && has!("avx512dq")
            && has!("avx512vnni")
            && has!("avx2")
            && has!("fma")
            && has!("f16c");
        all.then_some(Self(()))
    }

    /// Runs `kernel` where the instructions are enabled.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Out {
        #[inline(never)]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
        fn inner<K: Kernel>(token: Avx512, kernel: K) -> K::Out {
            kernel.run(token)
        }
        // SAFETY: the token exists only after every feature was detected.
        unsafe { inner(self, kernel) }
    }
}

/// Register intrinsics: sound because the token proves the instructions.
macro_rules! reg {
    ($e:expr) => {
        // SAFETY: the token exists only after detection; no memory is touched.
        unsafe { $e }
    };
}

/// A mask of the first `n < 16` lanes.
#[inline(always)]
fn first_lanes(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}

impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;
    type M = __mmask16;
    const LEVEL: Level = Level::Avx512;
    const W8_BIAS: i32 = -128;

    #[inline(always)]
    unsafe fn load_ptr(self, p: *const f32) -> __m512 {
        // SAFETY: the caller vouches for 64 bytes.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store_ptr(self, p: *mut f32, a: __m512) {
        // SAFETY: the caller vouches for 64 bytes.
        unsafe { _mm512_storeu_ps(p, a) }
    }
    #[inline(always)]
    unsafe fn touch(self, p: *const u8) {
        #[inline]
        #[target_feature(enable = "avx512f")]
        unsafe fn load(p: *const u8) {
            let _line: __m512i;
            // SAFETY: the caller vouches for 64 bytes; the register is dropped.
            unsafe {
                std::arch::asm!("vmovdqu64 {0}, [{1}]", out(zmm_reg) _line, in(reg) p,
                    options(readonly, nostack, preserves_flags));
            }
        }
        // SAFETY: the token exists only after detection; the caller vouches for 64 bytes.
        unsafe { load(p) }
    }
    #[inline(always)]
    unsafe fn load_f16_ptr(self, p: *const u16) -> __m512 {
        // SAFETY: the caller vouches for 32 bytes.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_i_ptr(self, p: *const u8) -> __m512i {
        // SAFETY: the caller vouches for 64 bytes.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store_i_ptr(self, p: *mut u8, a: __m512i) {
        // SAFETY: the caller vouches for 64 bytes.
        unsafe { _mm512_storeu_si512(p.cast(), a) }
    }
    #[inline(always)]
    unsafe fn load_u8_ptr(self, p: *const u8) -> __m512i {
        // SAFETY: the caller vouches for 16 bytes.
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_i8_ptr(self, p: *const u8) -> __m512i {
        // SAFETY: the caller vouches for 16 bytes.
        unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_u16_ptr(self, p: *const u16) -> __m512i {
        // SAFETY: the caller vouches for 32 bytes.
        unsafe { _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_low8_ptr(self, p: *mut u8, a: __m512i) {
        // SAFETY: the caller vouches for 16 bytes.
        unsafe { _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(a)) }
    }
    #[inline(always)]
    unsafe fn store_low16_ptr(self, p: *mut u16, a: __m512i) {
        // SAFETY: the caller vouches for 32 bytes.
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(a)) }
    }
    #[inline(always)]
    unsafe fn store_f16_ptr(self, p: *mut u16, a: __m512) {
        let a = self.select(self.is_nan(a), self.splat(f32::from_bits(0x7fc0_0000)), a);
        // SAFETY: the caller vouches for 32 bytes.
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT }>(a)) }
    }

    // With masks, and so without a call on any way: the caller's registers stay where they are.
    #[inline(always)]
    fn load_partial(self, src: &[f32], fill: f32) -> __m512 {
        if let Some(whole) = src.first_chunk() {
            return self.load(whole);
        }
        // SAFETY: lanes beyond `src` are masked and not touched; the token proves the instructions.
        unsafe { _mm512_mask_loadu_ps(self.splat(fill), first_lanes(src.len()), src.as_ptr()) }
    }
    #[inline(always)]
    fn store_partial(self, dst: &mut [f32], a: __m512) {
        if let Some(whole) = dst.first_chunk_mut() {
            return self.store(whole, a);
        }
        // SAFETY: lanes beyond `dst` are masked and not touched; the token proves the instructions.
        unsafe { _mm512_mask_storeu_ps(dst.as_mut_ptr(), first_lanes(dst.len()), a) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        reg!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        reg!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        reg!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        reg!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        reg!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        reg!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn sqrt(self, a: __m512) -> __m512 {
        reg!(_mm512_sqrt_ps(a))
    }
    #[inline(always)]
    fn pick_max(self, a: __m512, b: __m512) -> __m512 {
        reg!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn pick_min(self, a: __m512, b: __m512) -> __m512 {
        reg!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    fn round_i(self, a: __m512) -> __m512i {
        reg!(_mm512_cvt_roundps_epi32::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a))
    }
    #[inline(always)]
    fn bits(self, a: __m512) -> __m512i {
        reg!(_mm512_castps_si512(a))
    }
    #[inline(always)]
    fn lt(self, a: __m512, b: __m512) -> __mmask16 {
        reg!(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b))
    }
    #[inline(always)]
    fn le(self, a: __m512, b: __m512) -> __mmask16 {
        reg!(_mm512_cmp_ps_mask::<_CMP_LE_OQ>(a, b))
    }
    #[inline(always)]
    fn eq(self, a: __m512, b: __m512) -> __mmask16 {
        reg!(_mm512_cmp_ps_mask::<_CMP_EQ_OQ>(a, b))
    }
    #[inline(always)]
    fn is_nan(self, a: __m512) -> __mmask16 {
        reg!(_mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a))
    }
    #[inline(always)]
    fn select(self, m: __mmask16, a: __m512, b: __m512) -> __m512 {
        reg!(_mm512_mask_blend_ps(m, b, a))
    }
    #[inline(always)]
    fn to_array(self, a: __m512) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        self.store(&mut out, a);
        out
    }

    #[inline(always)]
    fn splat_i(self, x: i32) -> __m512i {
        reg!(_mm512_set1_epi32(x))
    }
    #[inline(always)]
    fn to_f(self, a: __m512i) -> __m512 {
        reg!(_mm512_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn of_bits(self, a: __m512i) -> __m512 {
        reg!(_mm512_castsi512_ps(a))
    }
    #[inline(always)]
    fn add_i(self, a: __m512i, b: __m512i) -> __m512i {
        reg!(_mm512_add_epi32(a, b))
    }
    #[inline(always)]
    fn sub_i(self, a: __m512i, b: __m512i) -> __m512i {
        reg!(_mm512_sub_epi32(a, b))
    }
    #[inline(always)]
    fn mul_i(self, a: __m512i, b: __m512i) -> __m512i {
        reg!(_mm512_mullo_epi32(a, b))
    }
    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        reg!(_mm512_and_si512(a, b))
    }
    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        reg!(_mm512_or_si512(a, b))
    }
    #[inline(always)]
    fn xor(self, a: __m512i, b: __m512i) -> __m512i {
        reg!(_mm512_xor_si512(a, b))
    }
    #[inline(always)]
    fn shl(self, a: __m512i, n: u32) -> __m512i {
        reg!(_mm512_sll_epi32(a, _mm_cvtsi32_si128(n as i32)))
    }
    #[inline(always)]
    fn shr(self, a: __m512i, n: u32) -> __m512i {
        reg!(_mm512_srl_epi32(a, _mm_cvtsi32_si128(n as i32)))
    }
    #[inline(always)]
    fn sar(self, a: __m512i, n: u32) -> __m512i {
        reg!(_mm512_sra_epi32(a, _mm_cvtsi32_si128(n as i32)))
    }
    #[inline(always)]
    fn max_i(self, a: __m512i, b: __m512i) -> __m512i {
        reg!(_mm512_max_epi32(a, b))
    }
    #[inline(always)]
    fn gt_i(self, a: __m512i, b: __m512i) -> __mmask16 {
        reg!(_mm512_cmpgt_epi32_mask(a, b))
    }
    #[inline(always)]
    fn eq_i(self, a: __m512i, b: __m512i) -> __mmask16 {
        reg!(_mm512_cmpeq_epi32_mask(a, b))
    }
    #[inline(always)]
    fn select_i(self, m: __mmask16, a: __m512i, b: __m512i) -> __m512i {
        reg!(_mm512_mask_blend_epi32(m, b, a))
    }
    #[inline(always)]
    fn to_array_i(self, a: __m512i) -> [i32; LANES] {
        let mut out = [0; LANES];
        self.store_i32(&mut out, a);
        out
    }
    #[inline(always)]
    fn lookup16(self, table: &[u8; 16], idx: __m512i) -> __m512i {
        // SAFETY: the table is 16 readable bytes; the token proves the instructions.
        unsafe { _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), idx) }
    }
    #[inline(always)]
    fn dot_u7(self, acc: __m512i, w: __m512i, a: __m512i) -> __m512i {
        reg!(_mm512_dpbusd_epi32(acc, w, a))
    }
    #[inline(always)]
    fn dot_w8(self, acc: __m512i, w: __m512i, a: __m512i) -> __m512i {
        reg!(_mm512_dpbusd_epi32(acc, w, a))
    }
    #[inline(always)]
    fn madd16(self, acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
        reg!(_mm512_dpwssd_epi32(acc, a, b))
    }
    #[inline(always)]
    fn reduce_max_i(self, a: __m512i) -> i32 {
        reg!(_mm512_reduce_max_epi32(a))
    }
    #[inline(always)]
    fn sum_i(self, a: __m512i) -> i32 {
        reg!(_mm512_reduce_add_epi32(a))
    }
    #[inline(always)]
    fn sum_tree(self, a: __m512) -> f32 {
        reg!({
            let eight = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        })
    }
    #[inline(always)]
    fn reduce_max(self, a: __m512) -> f32 {
        reg!(crate::avx2::greatest(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a)))
    }
}
