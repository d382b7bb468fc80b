//! The types of pages that attention reads.

use firth_graph::PAGE;
use firth_simd::{LANES, Simd};

/// How one type of page is widened. Addresses are inside a page; a load may run up to 64 bytes past a row, which
/// the pool's padding covers.
pub trait Source: Copy {
    /// Bytes of an element, about.
    const BYTES: usize;

    /// Sixteen keys from `16 * block`, element `d`.
    ///
    /// # Safety
    /// `keys` starts the keys of a head of `key_dim` elements, `d` is below it.
    unsafe fn keys<S: Simd>(s: S, keys: *const u8, key_dim: usize, d: usize, block: usize) -> S::F;

    /// Sixteen elements from `j` of the value at `pos`.
    ///
    /// # Safety
    /// `values` starts the values of a head of `value_dim` elements, `j` is below it.
    unsafe fn values<S: Simd>(s: S, values: *const u8, value_dim: usize, pos: usize, j: usize) -> S::F;
}

/// Pages of f32.
#[derive(Clone, Copy)]
pub struct F32;
/// Pages of f16.
#[derive(Clone, Copy)]
pub struct F16;
/// Pages of Q8_0.
#[derive(Clone, Copy)]
pub struct Q8;

impl Source for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn keys<S: Simd>(s: S, keys: *const u8, _key_dim: usize, d: usize, block: usize) -> S::F {
        // SAFETY: by the contract; keys lie as [key_dim][64].
        unsafe { s.load_ptr(keys.cast::<f32>().add(d * PAGE + block * LANES)) }
    }

    #[inline(always)]
    unsafe fn values<S: Simd>(s: S, values: *const u8, value_dim: usize, pos: usize, j: usize) -> S::F {
        // SAFETY: by the contract; values lie as [64][value_dim].
        unsafe { s.load_ptr(values.cast::<f32>().add(pos * value_dim + j)) }
    }
}

impl Source for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn keys<S: Simd>(s: S, keys: *const u8, _key_dim: usize, d: usize, block: usize) -> S::F {
        // SAFETY: as for F32.
        unsafe { s.load_f16_ptr(keys.cast::<u16>().add(d * PAGE + block * LANES)) }
    }

    #[inline(always)]
    unsafe fn values<S: Simd>(s: S, values: *const u8, value_dim: usize, pos: usize, j: usize) -> S::F {
        // SAFETY: as for F32.
        unsafe { s.load_f16_ptr(values.cast::<u16>().add(pos * value_dim + j)) }
    }
}

impl Source for Q8 {
    const BYTES: usize = 1;

    #[inline(always)]
    unsafe fn keys<S: Simd>(s: S, keys: *const u8, key_dim: usize, d: usize, block: usize) -> S::F {
        // SAFETY: by the contract; the scales [key_dim / 32][64] follow the integers.
        unsafe {
            let scales = keys.add(key_dim * PAGE).cast::<u16>();
            let scale = s.load_f16_ptr(scales.add(d / 32 * PAGE + block * LANES));
            let q = s.load_i8_ptr(keys.add(d * PAGE + block * LANES));
            s.mul(s.to_f(q), scale)
        }
    }

    #[inline(always)]
    unsafe fn values<S: Simd>(s: S, values: *const u8, value_dim: usize, pos: usize, j: usize) -> S::F {
        // SAFETY: by the contract; the scales [64][value_dim / 32] follow the integers. Rows are whole blocks
        // of 32, so sixteen elements share a scale.
        unsafe {
            let scale = *values.add(value_dim * PAGE).cast::<u16>().add(pos * (value_dim / 32) + j / 32);
            let q = s.load_i8_ptr(values.add(pos * value_dim + j));
            s.mul(s.to_f(q), s.splat(firth_quant::f16_to_f32(scale)))
        }
    }
}
