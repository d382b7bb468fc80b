//! The operations of an instruction-set token.

use crate::level::Level;

/// Lanes of every token.
pub const LANES: usize = 16;

/// A value that proves an instruction set is there, and its operations on sixteen lanes.
///
/// `F` is 16 f32, `I` is 16 i32 and also 64 bytes in memory order, `M` one truth value a lane.
/// Integer arithmetic wraps. Every method gives the same bits at every level (NaN: see the crate).
pub trait Simd: Copy + Send + Sync + 'static {
    /// Sixteen f32.
    type F: Copy;
    /// Sixteen i32, or 64 bytes.
    type I: Copy;
    /// Sixteen truth values.
    type M: Copy;

    /// The level of this token.
    const LEVEL: Level;

    /// What an accumulator of [`Simd::dot_w8`] starts from, per unit of the sum of `a`: start it at
    /// `W8_BIAS * sum(a)` and it ends at the sum of `(w - 128) * a`. The integer is exact, so the
    /// result is the same for every token.
    const W8_BIAS: i32;

    // ---- memory ----

    /// Loads 16 f32.
    ///
    /// # Safety
    /// 64 bytes at `p` are readable; no alignment is needed.
    unsafe fn load_ptr(self, p: *const f32) -> Self::F;
    /// Stores 16 f32.
    ///
    /// # Safety
    /// 64 bytes at `p` are writable; no alignment is needed.
    unsafe fn store_ptr(self, p: *mut f32, a: Self::F);
    /// Loads 16 f16, widened exactly.
    ///
    /// # Safety
    /// 32 bytes at `p` are readable; no alignment is needed.
    unsafe fn load_f16_ptr(self, p: *const u16) -> Self::F;
    /// Loads 64 bytes.
    ///
    /// # Safety
    /// 64 bytes at `p` are readable; no alignment is needed.
    unsafe fn load_i_ptr(self, p: *const u8) -> Self::I;
    /// Stores 64 bytes.
    ///
    /// # Safety
    /// 64 bytes at `p` are writable; no alignment is needed.
    unsafe fn store_i_ptr(self, p: *mut u8, a: Self::I);
    /// Loads 16 u8, each widened to an i32 lane.
    ///
    /// # Safety
    /// 16 bytes at `p` are readable.
    unsafe fn load_u8_ptr(self, p: *const u8) -> Self::I;
    /// Loads 16 i8, each widened to an i32 lane.
    ///
    /// # Safety
    /// 16 bytes at `p` are readable.
    unsafe fn load_i8_ptr(self, p: *const u8) -> Self::I;
    /// Loads 16 u16, each widened to an i32 lane.
    ///
    /// # Safety
    /// 32 bytes at `p` are readable; no alignment is needed.
    unsafe fn load_u16_ptr(self, p: *const u16) -> Self::I;
    /// Stores the low 8 bits of each lane.
    ///
    /// # Safety
    /// 16 bytes at `p` are writable.
    unsafe fn store_low8_ptr(self, p: *mut u8, a: Self::I);
    /// Stores the low 16 bits of each lane.
    ///
    /// # Safety
    /// 32 bytes at `p` are writable; no alignment is needed.
    unsafe fn store_low16_ptr(self, p: *mut u16, a: Self::I);
    /// Stores 16 lanes rounded to f16, ties to even; NaN becomes 0x7e00.
    ///
    /// # Safety
    /// 32 bytes at `p` are writable; no alignment is needed.
    unsafe fn store_f16_ptr(self, p: *mut u16, a: Self::F);

    // ---- f32 ----

    /// All lanes `x`.
    fn splat(self, x: f32) -> Self::F;
    /// `a + b`.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`.
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`, correctly rounded.
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c` with one rounding.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Square root, correctly rounded.
    fn sqrt(self, a: Self::F) -> Self::F;
    /// `if a > b { a } else { b }`: one instruction on x86; NaN in either gives `b`.
    fn pick_max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `if a < b { a } else { b }`: one instruction on x86; NaN in either gives `b`.
    fn pick_min(self, a: Self::F, b: Self::F) -> Self::F;
    /// The nearest integer, ties to even; NaN and what i32 cannot hold give `i32::MIN`.
    fn round_i(self, a: Self::F) -> Self::I;
    /// The bits of `a`.
    fn bits(self, a: Self::F) -> Self::I;
    /// `a < b`, false for NaN.
    fn lt(self, a: Self::F, b: Self::F) -> Self::M;
    /// `a <= b`, false for NaN.
    fn le(self, a: Self::F, b: Self::F) -> Self::M;
    /// `a == b`, false for NaN.
    fn eq(self, a: Self::F, b: Self::F) -> Self::M;
    /// Whether `a` is NaN.
    fn is_nan(self, a: Self::F) -> Self::M;
    /// `if m { a } else { b }`.
    fn select(self, m: Self::M, a: Self::F, b: Self::F) -> Self::F;
    /// The lanes, in order.
    fn to_array(self, a: Self::F) -> [f32; LANES];

    // ---- i32 and bytes ----

    /// All lanes `x`.
    fn splat_i(self, x: i32) -> Self::I;
    /// The lanes as f32, rounded to nearest even.
    fn to_f(self, a: Self::I) -> Self::F;
    /// The f32 with these bits.
    fn of_bits(self, a: Self::I) -> Self::F;
    /// `a + b`.
    fn add_i(self, a: Self::I, b: Self::I) -> Self::I;
    /// `a - b`.
    fn sub_i(self, a: Self::I, b: Self::I) -> Self::I;
    /// The low 32 bits of `a * b`.
    fn mul_i(self, a: Self::I, b: Self::I) -> Self::I;
    /// Bitwise and.
    fn and(self, a: Self::I, b: Self::I) -> Self::I;
    /// Bitwise or.
    fn or(self, a: Self::I, b: Self::I) -> Self::I;
    /// Bitwise exclusive or.
    fn xor(self, a: Self::I, b: Self::I) -> Self::I;
    /// Shifts each lane left by `n < 32`; pass a constant.
    fn shl(self, a: Self::I, n: u32) -> Self::I;
    /// Shifts each lane right by `n < 32`, zeros coming in; pass a constant.
    fn shr(self, a: Self::I, n: u32) -> Self::I;
    /// Shifts each lane right by `n < 32`, the sign coming in; pass a constant.
    fn sar(self, a: Self::I, n: u32) -> Self::I;
    /// The greater, signed.
    fn max_i(self, a: Self::I, b: Self::I) -> Self::I;
    /// `a > b`, signed.
    fn gt_i(self, a: Self::I, b: Self::I) -> Self::M;
    /// `a == b`.
    fn eq_i(self, a: Self::I, b: Self::I) -> Self::M;
    /// `if m { a } else { b }`.
    fn select_i(self, m: Self::M, a: Self::I, b: Self::I) -> Self::I;
    /// The lanes, in order.
    fn to_array_i(self, a: Self::I) -> [i32; LANES];
    /// Byte `table[idx]` for each of 64 bytes `idx` in 0..16.
    fn lookup16(self, table: &[u8; 16], idx: Self::I) -> Self::I;
    /// `acc + sum of 4 w*a` per lane; `w` bytes unsigned in 0..=127, `a` bytes signed in -127..=127.
    fn dot_u7(self, acc: Self::I, w: Self::I, a: Self::I) -> Self::I;
    /// As [`Simd::dot_u7`] for `w` bytes that store a signed weight plus 128: see
    /// [`Simd::W8_BIAS`] for where `acc` must start.
    fn dot_w8(self, acc: Self::I, w: Self::I, a: Self::I) -> Self::I;
    /// `acc + a.lo * b.lo + a.hi * b.hi` per lane, each lane read as two i16.
    fn madd16(self, acc: Self::I, a: Self::I, b: Self::I) -> Self::I;

    /// `acc + w.lo * a.lo + w.hi * a.hi` in each 16-bit half of a lane, of its two bytes: `w` unsigned, `a` signed.
    /// The two products together fit 16 bits; the sum wraps, so the caller bounds how many are added.
    #[inline(always)]
    fn dot_pairs(self, acc: Self::I, w: Self::I, a: Self::I) -> Self::I {
        let (mut out, w, a) = (self.to_array_i(acc), self.to_array_i(w), self.to_array_i(a));
        for ((out, w), a) in out.iter_mut().zip(w).zip(a) {
            let (w, a) = (w.to_le_bytes(), a.to_le_bytes().map(|b| b as i8));
            let pair = |i: usize| w[i] as i32 * a[i] as i32 + w[i + 1] as i32 * a[i + 1] as i32;
            let (low, high) = ((*out & 0xffff) + pair(0), (*out >> 16) + pair(2));
            *out = high << 16 | low & 0xffff;
        }
        self.load_i32(&out)
    }

    /// Loads a line ahead of its use and drops it. Unlike a prefetch, a load into a vector register sets the hardware's
    /// own reading ahead going, which has more lines in flight. Nothing but with AVX-512: elsewhere it was not worth it.
    ///
    /// # Safety
    /// 64 bytes at `p` are readable.
    #[inline(always)]
    unsafe fn touch(self, p: *const u8) {
        let _ = p;
    }

    /// Asks for the cache line at `p`; any address is allowed.
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch is a hint; it never faults and changes nothing.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = p;
    }

    // ---- made of the above ----

    /// Loads 16 f32.
    #[inline(always)]
    fn load(self, src: &[f32; LANES]) -> Self::F {
        // SAFETY: the array is 64 readable bytes.
        unsafe { self.load_ptr(src.as_ptr()) }
    }
    /// Loads the first 16 of `src`; panics when there are fewer.
    #[inline(always)]
    fn load_first(self, src: &[f32]) -> Self::F {
        self.load(src.first_chunk().expect("16 values to load"))
    }
    /// Loads up to 16 f32; the lanes beyond `src` are `fill`.
    #[inline(always)]
    fn load_partial(self, src: &[f32], fill: f32) -> Self::F {
        if let Some(whole) = src.first_chunk() {
            return self.load(whole);
        }
        let mut lanes = [fill; LANES];
        lanes[..src.len()].copy_from_slice(src);
        self.load(&lanes)
    }
    /// Stores 16 f32.
    #[inline(always)]
    fn store(self, dst: &mut [f32; LANES], a: Self::F) {
        // SAFETY: the array is 64 writable bytes.
        unsafe { self.store_ptr(dst.as_mut_ptr(), a) }
    }
    /// Stores to the first 16 of `dst`; panics when there are fewer.
    #[inline(always)]
    fn store_first(self, dst: &mut [f32], a: Self::F) {
        self.store(dst.first_chunk_mut().expect("room for 16 values"), a);
    }
    /// Stores the first lanes, up to 16, as many as `dst` holds.
    #[inline(always)]
    fn store_partial(self, dst: &mut [f32], a: Self::F) {
        if let Some(whole) = dst.first_chunk_mut() {
            return self.store(whole, a);
        }
        let lanes = self.to_array(a);
        let n = dst.len();
        dst.copy_from_slice(&lanes[..n]);
    }
    /// Loads 16 f16, widened exactly.
    #[inline(always)]
    fn load_f16(self, src: &[u16; LANES]) -> Self::F {
        // SAFETY: the array is 32 readable bytes.
        unsafe { self.load_f16_ptr(src.as_ptr()) }
    }
    /// Loads 16 bf16, widened exactly.
    #[inline(always)]
    fn load_bf16(self, src: &[u16; LANES]) -> Self::F {
        // SAFETY: the array is 32 readable bytes.
        unsafe { self.load_bf16_ptr(src.as_ptr()) }
    }
    /// Loads 16 bf16, widened exactly.
    ///
    /// # Safety
    /// 32 bytes at `p` are readable; no alignment is needed.
    #[inline(always)]
    unsafe fn load_bf16_ptr(self, p: *const u16) -> Self::F {
        // SAFETY: the caller vouches for the 32 bytes.
        let wide = unsafe { self.load_u16_ptr(p) };
        self.of_bits(self.shl(wide, 16))
    }
    /// Stores 16 lanes rounded to f16, ties to even; NaN becomes 0x7e00.
    #[inline(always)]
    fn store_f16(self, dst: &mut [u16; LANES], a: Self::F) {
        // SAFETY: the array is 32 writable bytes.
        unsafe { self.store_f16_ptr(dst.as_mut_ptr(), a) }
    }
    /// Stores 16 lanes rounded to bf16, ties to even; NaN becomes 0x7fc0.
    #[inline(always)]
    fn store_bf16(self, dst: &mut [u16; LANES], a: Self::F) {
        let bits = self.bits(a);
        let odd = self.and(self.shr(bits, 16), self.splat_i(1));
        let rounded = self.shr(self.add_i(bits, self.add_i(odd, self.splat_i(0x7fff))), 16);
        let kept = self.select_i(self.is_nan(a), self.splat_i(0x7fc0), rounded);
        // SAFETY: the array is 32 writable bytes.
        unsafe { self.store_low16_ptr(dst.as_mut_ptr(), kept) }
    }
    /// Loads 16 i32.
    #[inline(always)]
    fn load_i32(self, src: &[i32; LANES]) -> Self::I {
        // SAFETY: the array is 64 readable bytes.
        unsafe { self.load_i_ptr(src.as_ptr().cast()) }
    }
    /// Stores 16 i32.
    #[inline(always)]
    fn store_i32(self, dst: &mut [i32; LANES], a: Self::I) {
        // SAFETY: the array is 64 writable bytes.
        unsafe { self.store_i_ptr(dst.as_mut_ptr().cast(), a) }
    }
    /// Loads 64 bytes.
    #[inline(always)]
    fn load_bytes(self, src: &[u8; 64]) -> Self::I {
        // SAFETY: the array is 64 readable bytes.
        unsafe { self.load_i_ptr(src.as_ptr()) }
    }
    /// Stores 64 bytes.
    #[inline(always)]
    fn store_bytes(self, dst: &mut [u8; 64], a: Self::I) {
        // SAFETY: the array is 64 writable bytes.
        unsafe { self.store_i_ptr(dst.as_mut_ptr(), a) }
    }
    /// Loads 16 u8, each widened to an i32 lane.
    #[inline(always)]
    fn load_u8(self, src: &[u8; LANES]) -> Self::I {
        // SAFETY: the array is 16 readable bytes.
        unsafe { self.load_u8_ptr(src.as_ptr()) }
    }
    /// Loads 16 i8, each widened to an i32 lane.
    #[inline(always)]
    fn load_i8(self, src: &[i8; LANES]) -> Self::I {
        // SAFETY: the array is 16 readable bytes.
        unsafe { self.load_i8_ptr(src.as_ptr().cast()) }
    }
    /// Stores the low 8 bits of each lane.
    #[inline(always)]
    fn store_i8(self, dst: &mut [i8; LANES], a: Self::I) {
        // SAFETY: the array is 16 writable bytes.
        unsafe { self.store_low8_ptr(dst.as_mut_ptr().cast(), a) }
    }
    /// All lanes +0.
    #[inline(always)]
    fn zero(self) -> Self::F {
        self.splat(0.0)
    }
    /// `a` with the sign flipped, NaN too.
    #[inline(always)]
    fn neg(self, a: Self::F) -> Self::F {
        self.of_bits(self.xor(self.bits(a), self.splat_i(i32::MIN)))
    }
    /// `a` with the sign cleared, NaN too.
    #[inline(always)]
    fn abs(self, a: Self::F) -> Self::F {
        self.of_bits(self.and(self.bits(a), self.splat_i(i32::MAX)))
    }
    /// The magnitude of `a` with the sign of `sign`.
    #[inline(always)]
    fn copysign(self, a: Self::F, sign: Self::F) -> Self::F {
        let signs = self.and(self.bits(sign), self.splat_i(i32::MIN));
        self.of_bits(self.or(self.bits(self.abs(a)), signs))
    }
    /// The greater, NaN when either is: `if a > b || a is NaN { a } else { b }`, so of two zeros `b`.
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        self.select(self.is_nan(a), a, self.pick_max(a, b))
    }
    /// The lesser, NaN when either is: `if a < b || a is NaN { a } else { b }`, so of two zeros `b`.
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        self.select(self.is_nan(a), a, self.pick_min(a, b))
    }
    /// `a` rounded to an integer, ties to even, for magnitudes below 2^31.
    #[inline(always)]
    fn round(self, a: Self::F) -> Self::F {
        self.to_f(self.round_i(a))
    }
    /// The greatest lane by the rule of [`Simd::max`], in the tree of [`Simd::sum_tree`]; NaN when a lane is NaN.
    #[inline(always)]
    fn reduce_max(self, a: Self::F) -> f32 {
        let mut lanes = self.to_array(a);
        let mut half = 8;
        while half > 0 {
            for i in 0..half {
                let (a, b) = (lanes[i], lanes[i + half]);
                lanes[i] = if a > b || a.is_nan() { a } else { b };
            }
            half /= 2;
        }
        lanes[0]
    }
    /// The greatest lane, signed.
    #[inline(always)]
    fn reduce_max_i(self, a: Self::I) -> i32 {
        let lanes = self.to_array_i(a);
        let mut best = lanes[0];
        for &x in &lanes[1..] {
            best = if x > best { x } else { best };
        }
        best
    }
    /// The sum of the lanes: lane i + lane i+8, then +4, +2, +1.
    #[inline(always)]
    fn sum_tree(self, a: Self::F) -> f32 {
        let mut lanes = self.to_array(a);
        let mut half = 8;
        while half > 0 {
            for i in 0..half {
                lanes[i] += lanes[i + half];
            }
            half /= 2;
        }
        lanes[0]
    }
    /// The sum of the lanes, wrapping.
    #[inline(always)]
    fn sum_i(self, a: Self::I) -> i32 {
        let lanes = self.to_array_i(a);
        let mut total = 0i32;
        for x in lanes {
            total = total.wrapping_add(x);
        }
        total
    }
}

/// Asks for a cache line that will be read soon, into the second-level cache. A hint: any address will do.
#[inline(always)]
pub fn prefetch_far(p: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint; it never faults and changes nothing.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}
