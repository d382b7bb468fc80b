//! Tokens in plain Rust: [`Scalar`], the definition, and [`Emulated4`], NEON's shape.

use std::marker::PhantomData;

use crate::convert::{f16_to_f32, f32_to_f16};
use crate::level::Level;
use crate::token::{LANES, Simd};

/// Sixteen lanes in one array: what every other token must equal.
pub type Scalar = Plain<Flat>;
/// Sixteen lanes as four quarters of four, as a machine with 128-bit registers holds them.
pub type Emulated4 = Plain<Quarters>;

/// How the sixteen lanes lie.
pub trait Shape: Copy + Send + Sync + Default + 'static {
    /// Sixteen of `T`.
    type Of<T: Copy>: Copy;
    /// The level this shape runs at.
    const LEVEL: Level;
    /// Lane i is `f(i)`.
    fn make<T: Copy>(f: impl FnMut(usize) -> T) -> Self::Of<T>;
    /// Lane `i`.
    fn get<T: Copy>(a: &Self::Of<T>, i: usize) -> T;
}

/// `[T; 16]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flat;
/// `[[T; 4]; 4]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quarters;

impl Shape for Flat {
    type Of<T: Copy> = [T; LANES];
    const LEVEL: Level = Level::Scalar;

    #[inline(always)]
    fn make<T: Copy>(mut f: impl FnMut(usize) -> T) -> [T; LANES] {
        let mut out = [f(0); LANES];
        for (i, lane) in out.iter_mut().enumerate().skip(1) {
            *lane = f(i);
        }
        out
    }
    #[inline(always)]
    fn get<T: Copy>(a: &[T; LANES], i: usize) -> T {
        a[i]
    }
}

impl Shape for Quarters {
    type Of<T: Copy> = [[T; 4]; 4];
    const LEVEL: Level = Level::Emulated4;

    #[inline(always)]
    fn make<T: Copy>(mut f: impl FnMut(usize) -> T) -> [[T; 4]; 4] {
        let mut quarter = |q: usize| -> [T; 4] { [f(4 * q), f(4 * q + 1), f(4 * q + 2), f(4 * q + 3)] };
        [quarter(0), quarter(1), quarter(2), quarter(3)]
    }
    #[inline(always)]
    fn get<T: Copy>(a: &[[T; 4]; 4], i: usize) -> T {
        a[i / 4][i % 4]
    }
}

/// A token of plain loops over lanes of shape `Sh`; any machine has it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain<Sh: Shape>(PhantomData<Sh>);

#[inline(always)]
fn map<Sh: Shape, T: Copy, U: Copy>(a: Sh::Of<T>, f: impl Fn(T) -> U) -> Sh::Of<U> {
    Sh::make(|i| f(Sh::get(&a, i)))
}

#[inline(always)]
fn zip<Sh: Shape, T: Copy, U: Copy, V: Copy>(a: Sh::Of<T>, b: Sh::Of<U>, f: impl Fn(T, U) -> V) -> Sh::Of<V> {
    Sh::make(|i| f(Sh::get(&a, i), Sh::get(&b, i)))
}

#[inline(always)]
fn round_to_i32(x: f32) -> i32 {
    let r = x.round_ties_even();
    if (-2147483648.0..2147483648.0).contains(&r) { r as i32 } else { i32::MIN }
}

#[inline(always)]
fn dot4(acc: i32, w: i32, a: i32, f: impl Fn(u8) -> i32) -> i32 {
    let (w, a) = (w.to_le_bytes(), a.to_le_bytes());
    let mut acc = acc;
    for j in 0..4 {
        acc = acc.wrapping_add(f(w[j]) * a[j] as i8 as i32);
    }
    acc
}

#[inline(always)]
fn madd(acc: i32, a: i32, b: i32) -> i32 {
    let low = (a as i16 as i32).wrapping_mul(b as i16 as i32);
    let high = (a >> 16).wrapping_mul(b >> 16);
    acc.wrapping_add(low.wrapping_add(high))
}

// Methods stay calls: inlined, a tile of six rows would become tens of thousands of scalar operations, which
// the compiler takes minutes over. A call on sixteen lanes costs little beside them.
// SAFETY of the memory methods below: each touches the sixteen elements its contract names.
impl<Sh: Shape> Simd for Plain<Sh> {
    type F = Sh::Of<f32>;
    type I = Sh::Of<i32>;
    type M = Sh::Of<bool>;
    const LEVEL: Level = Sh::LEVEL;
    const W8_BIAS: i32 = 0;

    #[inline(never)]
    unsafe fn load_ptr(self, p: *const f32) -> Self::F {
        // SAFETY: the caller vouches for 64 bytes.
        let lanes = unsafe { p.cast::<[f32; LANES]>().read_unaligned() };
        Sh::make(|i| lanes[i])
    }
    #[inline(never)]
    unsafe fn store_ptr(self, p: *mut f32, a: Self::F) {
        // SAFETY: the caller vouches for 64 bytes.
        unsafe { p.cast::<[f32; LANES]>().write_unaligned(self.to_array(a)) }
    }
    #[inline(never)]
    unsafe fn load_f16_ptr(self, p: *const u16) -> Self::F {
        // SAFETY: the caller vouches for 32 bytes.
        let lanes = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        Sh::make(|i| f16_to_f32(lanes[i]))
    }
    #[inline(never)]
    unsafe fn load_i_ptr(self, p: *const u8) -> Self::I {
        // SAFETY: the caller vouches for 64 bytes.
        let lanes = unsafe { p.cast::<[i32; LANES]>().read_unaligned() };
        Sh::make(|i| i32::from_le(lanes[i]))
    }
    #[inline(never)]
    unsafe fn store_i_ptr(self, p: *mut u8, a: Self::I) {
        // SAFETY: the caller vouches for 64 bytes.
        unsafe { p.cast::<[i32; LANES]>().write_unaligned(self.to_array_i(a).map(i32::to_le)) }
    }
    #[inline(never)]
    unsafe fn load_u8_ptr(self, p: *const u8) -> Self::I {
        // SAFETY: the caller vouches for 16 bytes.
        let lanes = unsafe { p.cast::<[u8; LANES]>().read_unaligned() };
        Sh::make(|i| lanes[i] as i32)
    }
    #[inline(never)]
    unsafe fn load_i8_ptr(self, p: *const u8) -> Self::I {
        // SAFETY: the caller vouches for 16 bytes.
        let lanes = unsafe { p.cast::<[i8; LANES]>().read_unaligned() };
        Sh::make(|i| lanes[i] as i32)
    }
    #[inline(never)]
    unsafe fn load_u16_ptr(self, p: *const u16) -> Self::I {
        // SAFETY: the caller vouches for 32 bytes.
        let lanes = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        Sh::make(|i| lanes[i] as i32)
    }
    #[inline(never)]
    unsafe fn store_low8_ptr(self, p: *mut u8, a: Self::I) {
        // SAFETY: the caller vouches for 16 bytes.
        unsafe { p.cast::<[u8; LANES]>().write_unaligned(self.to_array_i(a).map(|x| x as u8)) }
    }
    #[inline(never)]
    unsafe fn store_low16_ptr(self, p: *mut u16, a: Self::I) {
        // SAFETY: the caller vouches for 32 bytes.
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(self.to_array_i(a).map(|x| x as u16)) }
    }
    #[inline(never)]
    unsafe fn store_f16_ptr(self, p: *mut u16, a: Self::F) {
        // SAFETY: the caller vouches for 32 bytes.
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(self.to_array(a).map(f32_to_f16)) }
    }

    #[inline(never)]
    fn splat(self, x: f32) -> Self::F {
        Sh::make(|_| x)
    }
    #[inline(never)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        zip::<Sh, _, _, _>(a, b, |a: f32, b: f32| a + b)
    }
    #[inline(never)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        zip::<Sh, _, _, _>(a, b, |a: f32, b: f32| a - b)
    }
    #[inline(never)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        zip::<Sh, _, _, _>(a, b, |a: f32, b: f32| a * b)
    }
    #[inline(never)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        zip::<Sh, _, _, _>(a, b, |a: f32, b: f32| a / b)
    }
    #[inline(never)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "fma")]
            fn hardware<Sh: Shape>(a: Sh::Of<f32>, b: Sh::Of<f32>, c: Sh::Of<f32>) -> Sh::Of<f32> {
                Sh::make(|i| Sh::get(&a, i).mul_add(Sh::get(&b, i), Sh::get(&c, i)))
            }
            if std::is_x86_feature_detected!("fma") {
                // SAFETY: the feature was just detected. Same bits as without, only faster.
                return unsafe { hardware::<Sh>(a, b, c) };
            }
        }
        Sh::make(|i| Sh::get(&a, i).mul_add(Sh::get(&b, i), Sh::get(&c, i)))
    }
    #[inline(never)]
    fn sqrt(self, a: Self::F) -> Self::F {
        map::<Sh, _, _>(a, |a: f32| a.sqrt())
    }
    #[inline(never)]
    fn pick_max(self, a: Self::F, b: Self::F) -> Self::F {
        zip::<Sh, _, _, _>(a, b, |a: f32, b: f32| if a > b { a } else { b })
    }
    #[inline(never)]
    fn pick_min(self, a: Self::F, b: Self::F) -> Self::F {
        zip::<Sh, _, _, _>(a, b, |a: f32, b: f32| if a < b { a } else { b })
    }
    #[inline(never)]
    fn round_i(self, a: Self::F) -> Self::I {
        map::<Sh, _, _>(a, round_to_i32)
    }
    #[inline(never)]
    fn bits(self, a: Self::F) -> Self::I {
        map::<Sh, _, _>(a, |a: f32| a.to_bits() as i32)
    }
    #[inline(never)]
    fn lt(self, a: Self::F, b: Self::F) -> Self::M {
        zip::<Sh, _, _, _>(a, b, |a: f32, b: f32| a < b)
    }
    #[inline(never)]
    fn le(self, a: Self::F, b: Self::F) -> Self::M {
        zip::<Sh, _, _, _>(a, b, |a: f32, b: f32| a <= b)
    }
    #[inline(never)]
    fn eq(self, a: Self::F, b: Self::F) -> Self::M {
        zip::<Sh, _, _, _>(a, b, |a: f32, b: f32| a == b)
    }
    #[inline(never)]
    fn is_nan(self, a: Self::F) -> Self::M {
        map::<Sh, _, _>(a, |a: f32| a.is_nan())
    }
    #[inline(never)]
    fn select(self, m: Self::M, a: Self::F, b: Self::F) -> Self::F {
        Sh::make(|i| if Sh::get(&m, i) { Sh::get(&a, i) } else { Sh::get(&b, i) })
    }
    #[inline(never)]
    fn to_array(self, a: Self::F) -> [f32; LANES] {
        Flat::make(|i| Sh::get(&a, i))
    }

    #[inline(never)]
    fn splat_i(self, x: i32) -> Self::I {
        Sh::make(|_| x)
    }
    #[inline(never)]
    fn to_f(self, a: Self::I) -> Self::F {
        map::<Sh, _, _>(a, |a: i32| a as f32)
    }
    #[inline(never)]
    fn of_bits(self, a: Self::I) -> Self::F {
        map::<Sh, _, _>(a, |a: i32| f32::from_bits(a as u32))
    }
    #[inline(never)]
    fn add_i(self, a: Self::I, b: Self::I) -> Self::I {
        zip::<Sh, _, _, _>(a, b, i32::wrapping_add)
    }
    #[inline(never)]
    fn sub_i(self, a: Self::I, b: Self::I) -> Self::I {
        zip::<Sh, _, _, _>(a, b, i32::wrapping_sub)
    }
    #[inline(never)]
    fn mul_i(self, a: Self::I, b: Self::I) -> Self::I {
        zip::<Sh, _, _, _>(a, b, i32::wrapping_mul)
    }
    #[inline(never)]
    fn and(self, a: Self::I, b: Self::I) -> Self::I {
        zip::<Sh, _, _, _>(a, b, |a: i32, b: i32| a & b)
    }
    #[inline(never)]
    fn or(self, a: Self::I, b: Self::I) -> Self::I {
        zip::<Sh, _, _, _>(a, b, |a: i32, b: i32| a | b)
    }
    #[inline(never)]
    fn xor(self, a: Self::I, b: Self::I) -> Self::I {
        zip::<Sh, _, _, _>(a, b, |a: i32, b: i32| a ^ b)
    }
    #[inline(never)]
    fn shl(self, a: Self::I, n: u32) -> Self::I {
        map::<Sh, _, _>(a, |a: i32| a << n)
    }
    #[inline(never)]
    fn shr(self, a: Self::I, n: u32) -> Self::I {
        map::<Sh, _, _>(a, |a: i32| (a as u32 >> n) as i32)
    }
    #[inline(never)]
    fn sar(self, a: Self::I, n: u32) -> Self::I {
        map::<Sh, _, _>(a, |a: i32| a >> n)
    }
    #[inline(never)]
    fn max_i(self, a: Self::I, b: Self::I) -> Self::I {
        zip::<Sh, _, _, _>(a, b, |a: i32, b: i32| if a > b { a } else { b })
    }
    #[inline(never)]
    fn gt_i(self, a: Self::I, b: Self::I) -> Self::M {
        zip::<Sh, _, _, _>(a, b, |a: i32, b: i32| a > b)
    }
    #[inline(never)]
    fn eq_i(self, a: Self::I, b: Self::I) -> Self::M {
        zip::<Sh, _, _, _>(a, b, |a: i32, b: i32| a == b)
    }
    #[inline(never)]
    fn select_i(self, m: Self::M, a: Self::I, b: Self::I) -> Self::I {
        Sh::make(|i| if Sh::get(&m, i) { Sh::get(&a, i) } else { Sh::get(&b, i) })
    }
    #[inline(never)]
    fn to_array_i(self, a: Self::I) -> [i32; LANES] {
        Flat::make(|i| Sh::get(&a, i))
    }
    #[inline(never)]
    fn lookup16(self, table: &[u8; 16], idx: Self::I) -> Self::I {
        map::<Sh, _, _>(idx, |idx: i32| {
            i32::from_le_bytes(idx.to_le_bytes().map(|b| table[(b & 15) as usize]))
        })
    }
    #[inline(never)]
    fn dot_u7(self, acc: Self::I, w: Self::I, a: Self::I) -> Self::I {
        Sh::make(|i| dot4(Sh::get(&acc, i), Sh::get(&w, i), Sh::get(&a, i), |w| w as i32))
    }
    #[inline(never)]
    fn dot_w8(self, acc: Self::I, w: Self::I, a: Self::I) -> Self::I {
        Sh::make(|i| dot4(Sh::get(&acc, i), Sh::get(&w, i), Sh::get(&a, i), |w| w as i32 - 128))
    }
    #[inline(never)]
    fn madd16(self, acc: Self::I, a: Self::I, b: Self::I) -> Self::I {
        Sh::make(|i| madd(Sh::get(&acc, i), Sh::get(&a, i), Sh::get(&b, i)))
    }
}
