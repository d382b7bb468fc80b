//! Panels of 32-value blocks with a scale, and perhaps a minimum, each.
//!
//! Per block: `acc = fma(f32(sum of q_w * q_a), rn(scale * d), acc)`, then, with a minimum,
//! `acc = fma(min, rn(d * f32(sum of q_a)), acc)`. Weights are unsigned bytes; what was added to make
//! them so is taken back by where the integer sum starts.

use std::marker::PhantomData;

use firth_simd::{Level, Simd};

use super::tiles::{AHEAD, Ahead, TileFn, eight, loads_ahead, opaque, prefetch_ahead};

/// Values of IQ4_NL and IQ4_XS nibbles, plus 128.
pub(crate) const NL_PLUS_128: [u8; 16] =
    [1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241];
/// Values of MXFP4 nibbles (twice E2M1), plus 16.
const FP4_PLUS_16: [u8; 16] = [16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4];

/// What a kind of weight byte means.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offset {
    /// The byte is the weight.
    None,
    /// The byte is the weight plus 2^n; below 128.
    Shift(u32),
    /// The byte is the weight plus 128.
    Signed,
}

/// Where an integer sum starts, from minus the sum of the activations.
#[inline(always)]
pub(crate) fn start<S: Simd>(s: S, offset: Offset, minus_sum: S::I) -> S::I {
    match offset {
        Offset::None => s.splat_i(0),
        Offset::Shift(n) => s.shl(minus_sum, n),
        Offset::Signed if S::W8_BIAS == -128 => s.shl(minus_sum, 7),
        Offset::Signed => s.splat_i(0),
    }
}

#[inline(always)]
pub(crate) fn dot<S: Simd>(s: S, offset: Offset, acc: S::I, w: S::I, a: S::I) -> S::I {
    if matches!(offset, Offset::Signed) { s.dot_w8(acc, w, a) } else { s.dot_u7(acc, w, a) }
}

/// A block type: how its parts are read for half a panel (`h` 0 or 1).
///
/// # Safety
/// Of all methods: `p` points at a whole panel block of [`Block::BYTES`].
pub(crate) trait Block: 'static {
    /// Bytes of a panel block.
    const BYTES: usize;
    /// What a weight byte means.
    const OFFSET: Offset;
    /// The greatest byte.
    const TOP: usize;
    /// Whether there is a minimum.
    const MIN: bool = false;
    /// Scales of 16 outputs.
    #[inline(always)]
    unsafe fn scale<S: Simd>(s: S, p: *const u8, h: usize) -> S::F {
        // SAFETY: 32 f16 lead the block.
        unsafe { s.load_f16_ptr(p.add(h * 32).cast()) }
    }
    /// Weight bytes of 16 outputs, values 4g..4g+4.
    unsafe fn group<S: Simd>(s: S, p: *const u8, g: usize, h: usize) -> S::I;
}

/// Nibbles of group `g`: the low ones of words 0..4, then the high ones.
///
/// # Safety
/// 512 bytes at `p` are readable.
#[inline(always)]
pub(crate) unsafe fn nibbles<S: Simd>(s: S, p: *const u8, g: usize, h: usize) -> S::I {
    // SAFETY: word g % 4 of half h lies within the 512 bytes.
    let v = unsafe { s.load_i_ptr(p.add((g % 4) * 128 + h * 64)) };
    s.and(if g < 4 { v } else { s.shr(v, 4) }, s.splat_i(0x0f0f_0f0f))
}

/// Fifth bits of group `g`, as 16 or 0 a byte.
///
/// # Safety
/// 128 bytes at `p` are readable.
#[inline(always)]
unsafe fn fifth<S: Simd>(s: S, p: *const u8, g: usize, h: usize) -> S::I {
    // SAFETY: half h lies within the 128 bytes.
    let v = unsafe { s.load_i_ptr(p.add(h * 64)) };
    let v = if g < 4 { s.shl(v, 4 - g as u32) } else { s.shr(v, g as u32 - 4) };
    s.and(v, s.splat_i(0x1010_1010))
}

macro_rules! block {
    ($name:ident, $bytes:literal, $offset:expr, top $top:literal, min $min:literal,
     |$s:ident, $p:ident, $g:ident, $h:ident| $group:expr) => {
        #[doc = concat!(stringify!($name), " blocks.")]
        #[allow(non_camel_case_types)]
        pub(crate) struct $name;
        impl Block for $name {
            const BYTES: usize = $bytes;
            const OFFSET: Offset = $offset;
            const TOP: usize = $top;
            const MIN: bool = $min;
            #[inline(always)]
            unsafe fn group<S: Simd>($s: S, $p: *const u8, $g: usize, $h: usize) -> S::I {
                // SAFETY: the caller vouches for the block; every offset lies within it.
                unsafe { $group }
            }
        }
    };
}

block!(Q8_0, 1088, Offset::Signed, top 255, min false, |s, p, g, h| s
    .load_i_ptr(p.add(64 + g * 128 + h * 64)));
block!(Q4_0, 576, Offset::Shift(3), top 15, min false, |s, p, g, h| nibbles(s, p.add(64), g, h));
block!(Q4_1, 640, Offset::None, top 15, min true, |s, p, g, h| nibbles(s, p.add(128), g, h));
block!(Q5_0, 704, Offset::Shift(4), top 31, min false, |s, p, g, h| s
    .or(nibbles(s, p.add(192), g, h), fifth(s, p.add(64), g, h)));
block!(Q5_1, 768, Offset::None, top 31, min true, |s, p, g, h| s
    .or(nibbles(s, p.add(256), g, h), fifth(s, p.add(128), g, h)));
block!(IQ4_NL, 576, Offset::Signed, top 255, min false, |s, p, g, h| s
    .lookup16(&NL_PLUS_128, nibbles(s, p.add(64), g, h)));

/// MXFP4 blocks.
pub(crate) struct Mxfp4;
impl Block for Mxfp4 {
    const BYTES: usize = 544;
    const OFFSET: Offset = Offset::Shift(4);
    const TOP: usize = 28;
    #[inline(always)]
    unsafe fn scale<S: Simd>(s: S, p: *const u8, h: usize) -> S::F {
        // SAFETY: 32 exponent bytes lead the block.
        let e = unsafe { s.load_u8_ptr(p.add(h * 16)) };
        // 2^(e-128), half of what the exponent says since the table is doubled; 0 and 1 are denormal.
        let normal = s.shl(s.sub_i(e, s.splat_i(1)), 23);
        let denormal = s.select_i(s.eq_i(e, s.splat_i(0)), s.splat_i(0x0020_0000), s.splat_i(0x0040_0000));
        s.of_bits(s.select_i(s.gt_i(e, s.splat_i(1)), normal, denormal))
    }
    #[inline(always)]
    unsafe fn group<S: Simd>(s: S, p: *const u8, g: usize, h: usize) -> S::I {
        // SAFETY: 512 bytes of nibbles follow the exponents.
        s.lookup16(&FP4_PLUS_16, unsafe { nibbles(s, p.add(32), g, h) })
    }
}

/// Groups of four bytes up to `top` whose products with activations, two in a half, fit 16 bits together: 8, 4, 2 or 1.
pub(crate) const fn short_groups(top: usize) -> usize {
    let mut n = 8;
    while n > 1 && n * 2 * 127 * top > i16::MAX as usize {
        n /= 2;
    }
    n
}

/// Brings the lines ahead that step `g` of eight has.
///
/// # Safety
/// `p` is a whole panel block, and `ahead` is its own.
#[inline(always)]
unsafe fn fetch<S: Simd, B: Block, const NR: usize>(s: S, p: *const u8, ahead: Ahead, g: usize) {
    if const { loads_ahead(S::LEVEL, NR) } {
        // SAFETY: whole lines of the block.
        unsafe { ahead.load(s, 0, g, 8, B::BYTES / 64) };
    } else {
        prefetch_ahead(p, g, 8, B::BYTES);
    }
}

/// The integer sums of a block for one half of a panel, where 16 registers are all there are: sums of as many groups as
/// 16 bits hold, widened together.
///
/// # Safety
/// As [`TileFn::tile`]; `p` is a whole panel block, `q` the integers of the tile's block.
#[inline(always)]
unsafe fn half_sums<S: Simd, B: Block, const NR: usize>(
    s: S,
    p: *const u8,
    ahead: Ahead,
    q: *const i32,
    stride: usize,
    h: usize,
    from: [S::I; NR],
) -> [S::I; NR] {
    let run = const { short_groups(B::TOP) };
    let ones = s.splat_i(0x0001_0001);
    let (mut acc, mut short) = (from, [s.splat_i(0); NR]);
    eight!(S::LEVEL, g => {
        if h == 0 {
            // SAFETY: the caller vouches for the block.
            unsafe { fetch::<S, B, NR>(s, p, ahead, g) };
        }
        // SAFETY: handed on to the caller.
        let w = unsafe { B::group(s, p, g, h) };
        for r in 0..NR {
            // SAFETY: the word lies in the tile.
            let a = s.splat_i(unsafe { q.add(g * stride + r).read_unaligned() });
            if run == 1 {
                acc[r] = dot(s, B::OFFSET, acc[r], w, a);
                continue;
            }
            short[r] = s.dot_pairs(short[r], w, a);
            if (g + 1).is_multiple_of(run) {
                acc[r] = s.madd16(acc[r], short[r], ones);
                short[r] = s.splat_i(0);
            }
        }
    });
    acc
}

/// Panels of `B`.
pub(crate) struct Blocks32<B>(PhantomData<B>);

impl<B: Block> TileFn for Blocks32<B> {
    const WHOLE: bool = true;
    #[inline(always)]
    unsafe fn tile<S: Simd, const NR: usize, const NH: usize>(
        s: S,
        panel: *const u8,
        end: *const u8,
        tile: *const u8,
        stride: usize,
        k: usize,
        row0: usize,
        half: usize,
    ) -> [[S::F; NH]; NR] {
        let n_blocks = k / 32;
        let mut sums = [[s.zero(); NH]; NR];
        // SAFETY: the caller vouches for n_blocks panel blocks and for a tile of R rows in form Q32:
        // k/4 words of integers, then scales, minus sums and scaled sums, one word a block, each R wide.
        unsafe {
            let q = tile.cast::<i32>().add(row0);
            let d = tile.cast::<f32>().add(k / 4 * stride + row0);
            let minus = q.add((k / 4 + n_blocks) * stride);
            let scaled = d.add(2 * n_blocks * stride);
            for b in 0..n_blocks {
                let p = panel.add(b * B::BYTES);
                let ahead = Ahead::of(p, B::BYTES, AHEAD, end);
                let q = q.add(b * 8 * stride);
                let mut acc = [[s.splat_i(0); NH]; NR];
                for r in 0..NR {
                    let from = s.splat_i(minus.add(b * stride + r).read_unaligned());
                    acc[r] = [start(s, B::OFFSET, from); NH];
                }
                if const { matches!(S::LEVEL, Level::Avx2) } {
                    for h in 0..NH {
                        let mut from = [s.splat_i(0); NR];
                        for r in 0..NR {
                            from[r] = acc[r][h];
                        }
                        let sums = half_sums::<S, B, NR>(s, p, ahead, q, stride, half + h, from);
                        for r in 0..NR {
                            acc[r][h] = sums[r];
                        }
                    }
                } else {
                    eight!(S::LEVEL, g => {
                        fetch::<S, B, NR>(s, p, ahead, g);
                        let p = if const { loads_ahead(S::LEVEL, NR) } { opaque(p) } else { p };
                        let mut w = [s.splat_i(0); NH];
                        for h in 0..NH {
                            w[h] = B::group(s, p, g, half + h);
                        }
                        for r in 0..NR {
                            let a = s.splat_i(q.add(g * stride + r).read_unaligned());
                            for h in 0..NH {
                                acc[r][h] = dot(s, B::OFFSET, acc[r][h], w[h], a);
                            }
                        }
                    });
                }
                for h in 0..NH {
                    let scale = B::scale(s, p, half + h);
                    for r in 0..NR {
                        let product = s.mul(scale, s.splat(d.add(b * stride + r).read_unaligned()));
                        sums[r][h] = s.fma(s.to_f(acc[r][h]), product, sums[r][h]);
                    }
                    if const { B::MIN } {
                        let min = s.load_f16_ptr(p.add(64 + (half + h) * 32).cast());
                        for r in 0..NR {
                            let part = s.splat(scaled.add(b * stride + r).read_unaligned());
                            sums[r][h] = s.fma(min, part, sums[r][h]);
                        }
                    }
                }
            }
        }
        sums
    }
}
