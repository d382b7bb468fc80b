//! Panels of 256-value super-blocks whose sub-blocks of 16 or 32 have small integer scales.
//!
//! Per super-block, exact: `I = sum sc_j * (q_w . q_a)_j` and, with minima, `J = sum m_j * (sum q_a)_j`;
//! then `acc = fma(f32(J), rn(-dmin * d_a), acc)` and `acc = fma(f32(I), rn(d * d_a), acc)`.

use std::marker::PhantomData;

use firth_simd::{Kernel, Level, Simd};

use super::block32::{NL_PLUS_128, Offset, dot, nibbles, short_groups, start};
use super::layout::PANEL;
use super::tiles::{AHEAD, Ahead, TileFn, eight, loads_ahead, opaque, prefetch_ahead};

/// How minima are held.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Minima {
    /// There are none.
    None,
    /// Per 32, bytes in pairs `[4][32][2]` at 128.
    Pairs,
    /// Per 16, read by [`Super::min`].
    Each,
}

/// A super-block type: chunks of parts (sub-blocks), how they are read for half a panel.
///
/// # Safety
/// Of all methods: `p` points at a whole panel block of [`Super::BYTES`], `chunk` and `part` count
/// within it.
pub(crate) trait Super: 'static {
    /// Bytes of a panel block.
    const BYTES: usize;
    /// Chunks of a super-block.
    const CHUNKS: usize;
    /// Sub-blocks of a chunk.
    const PARTS: usize;
    /// What a weight byte means.
    const OFFSET: Offset;
    /// The greatest byte.
    const TOP: usize;
    /// How minima are held.
    const MINIMA: Minima = Minima::None;
    /// Whether panels lie in memory rather than in a cache.
    const COLD: bool = true;
    /// Bytes that loads for one row run ahead; more than those of a chunk where it is not read in order.
    const AHEAD: usize = AHEAD;
    /// Bytes that the nearest cache is ahead by, for several rows.
    const NEAR: usize = 1024;
    /// Values of a sub-block.
    const SUB: usize = 256 / (Self::CHUNKS * Self::PARTS);
    /// Which sixteen of the super-block a sub-block starts at.
    #[inline(always)]
    fn sixteenth(chunk: usize, part: usize) -> usize {
        (chunk * Self::PARTS + part) * (Self::SUB / 16)
    }
    /// What all values of each of 16 outputs have in common.
    #[inline(always)]
    unsafe fn factor<S: Simd>(s: S, p: *const u8, h: usize) -> S::F {
        // SAFETY: 32 f16 lead the block.
        unsafe { s.load_f16_ptr(p.add(32 * h).cast()) }
    }
    /// Scales of 16 outputs.
    unsafe fn scale<S: Simd>(s: S, p: *const u8, chunk: usize, part: usize, h: usize) -> S::I;
    /// Minima of 16 outputs.
    #[inline(always)]
    unsafe fn min<S: Simd>(s: S, _p: *const u8, _chunk: usize, _part: usize, _h: usize) -> S::I {
        s.splat_i(0)
    }
    /// Weight bytes of 16 outputs, values 4g..4g+4 of the sub-block.
    unsafe fn group<S: Simd>(s: S, p: *const u8, chunk: usize, part: usize, g: usize, h: usize) -> S::I;
}

/// Q4_K blocks: per chunk of 64, two scales and 1024 bytes whose low nibbles are the first 32 values.
#[allow(non_camel_case_types)]
pub(crate) struct Q4_K;
impl Super for Q4_K {
    const BYTES: usize = 4736;
    const CHUNKS: usize = 4;
    const PARTS: usize = 2;
    const OFFSET: Offset = Offset::None;
    const TOP: usize = 15;
    const MINIMA: Minima = Minima::Pairs;
    const NEAR: usize = 512;
    #[inline(always)]
    unsafe fn scale<S: Simd>(s: S, p: *const u8, chunk: usize, part: usize, h: usize) -> S::I {
        // SAFETY: within the block.
        unsafe { s.load_u8_ptr(p.add(384 + 1088 * chunk + 32 * part + 16 * h)) }
    }
    #[inline(always)]
    unsafe fn group<S: Simd>(s: S, p: *const u8, chunk: usize, part: usize, g: usize, h: usize) -> S::I {
        // SAFETY: within the block.
        let v = unsafe { s.load_i_ptr(p.add(384 + 1088 * chunk + 64 + 128 * g + 64 * h)) };
        s.and(if part == 0 { v } else { s.shr(v, 4) }, s.splat_i(0x0f0f_0f0f))
    }
}

/// Q5_K blocks: as Q4_K, with the fifth bits of all chunks before them.
#[allow(non_camel_case_types)]
pub(crate) struct Q5_K;
impl Super for Q5_K {
    const BYTES: usize = 5760;
    const CHUNKS: usize = 4;
    const PARTS: usize = 2;
    const OFFSET: Offset = Offset::None;
    const TOP: usize = 31;
    const MINIMA: Minima = Minima::Pairs;
    #[inline(always)]
    unsafe fn scale<S: Simd>(s: S, p: *const u8, chunk: usize, part: usize, h: usize) -> S::I {
        // SAFETY: within the block.
        unsafe { s.load_u8_ptr(p.add(1408 + 1088 * chunk + 32 * part + 16 * h)) }
    }
    #[inline(always)]
    unsafe fn group<S: Simd>(s: S, p: *const u8, chunk: usize, part: usize, g: usize, h: usize) -> S::I {
        // SAFETY: within the block.
        let (v, high) = unsafe {
            (
                s.load_i_ptr(p.add(1408 + 1088 * chunk + 64 + 128 * g + 64 * h)),
                s.load_i_ptr(p.add(384 + 128 * g + 64 * h)),
            )
        };
        let low = s.and(if part == 0 { v } else { s.shr(v, 4) }, s.splat_i(0x0f0f_0f0f));
        let bit = s.and(s.shr(high, (2 * chunk + part) as u32), s.splat_i(0x0101_0101));
        s.or(low, s.shl(bit, 4))
    }
}

/// Q6_K blocks: per chunk (half, sixteen of 32), four scales, low nibbles of two runs, high bit pairs.
#[allow(non_camel_case_types)]
pub(crate) struct Q6_K;
impl Super for Q6_K {
    const BYTES: usize = 6720;
    const CHUNKS: usize = 4;
    const PARTS: usize = 4;
    const OFFSET: Offset = Offset::Shift(5);
    const TOP: usize = 63;
    const AHEAD: usize = 3072;
    #[inline(always)]
    fn sixteenth(chunk: usize, part: usize) -> usize {
        8 * (chunk / 2) + 2 * part + chunk % 2
    }
    #[inline(always)]
    unsafe fn scale<S: Simd>(s: S, p: *const u8, chunk: usize, part: usize, h: usize) -> S::I {
        // SAFETY: within the block.
        unsafe { s.load_i8_ptr(p.add(64 + 1664 * chunk + 32 * part + 16 * h)) }
    }
    #[inline(always)]
    unsafe fn group<S: Simd>(s: S, p: *const u8, chunk: usize, part: usize, g: usize, h: usize) -> S::I {
        // SAFETY: within the block.
        let (low, high) = unsafe {
            let at = p.add(64 + 1664 * chunk + 128 + 128 * g + 64 * h);
            (s.load_i_ptr(at.add(512 * (part % 2))), s.load_i_ptr(at.add(1024)))
        };
        let low = s.and(if part < 2 { low } else { s.shr(low, 4) }, s.splat_i(0x0f0f_0f0f));
        let high = if part < 2 { s.shl(high, 4 - 2 * part as u32) } else { s.shr(high, 2 * part as u32 - 4) };
        s.or(low, s.and(high, s.splat_i(0x3030_3030)))
    }
}

/// Q3_K blocks: twelve packed scale bytes, third bits, then 2-bit fields, half by half.
#[allow(non_camel_case_types)]
pub(crate) struct Q3_K;
impl Super for Q3_K {
    const BYTES: usize = 3520;
    const CHUNKS: usize = 2;
    const PARTS: usize = 8;
    const OFFSET: Offset = Offset::Shift(2);
    const TOP: usize = 7;
    #[inline(always)]
    unsafe fn scale<S: Simd>(s: S, p: *const u8, chunk: usize, part: usize, h: usize) -> S::I {
        let j = 8 * chunk + part;
        // SAFETY: within the block.
        let (low, high) = unsafe {
            let at = p.add(64 + 16 * h);
            (s.load_u8_ptr(at.add(32 * (j % 8))), s.load_u8_ptr(at.add(32 * (8 + j % 4))))
        };
        let low = s.and(s.shr(low, 4 * chunk as u32), s.splat_i(15));
        let high = s.and(s.shr(high, 2 * (j / 4) as u32), s.splat_i(3));
        s.sub_i(s.or(low, s.shl(high, 4)), s.splat_i(32))
    }
    #[inline(always)]
    unsafe fn group<S: Simd>(s: S, p: *const u8, chunk: usize, part: usize, g: usize, h: usize) -> S::I {
        let at = 128 * (4 * (part % 2) + g) + 64 * h;
        // SAFETY: within the block.
        let (low, high) =
            unsafe { (s.load_i_ptr(p.add(1472 + 1024 * chunk + at)), s.load_i_ptr(p.add(448 + at))) };
        let round = part / 2;
        let low = s.and(s.shr(low, 2 * round as u32), s.splat_i(0x0303_0303));
        let high = s.and(s.shr(high, (4 * chunk + round) as u32), s.splat_i(0x0101_0101));
        s.or(low, s.shl(high, 2))
    }
}

/// Q2_K blocks: half by half, eight bytes of scale and minimum, then 2-bit fields.
#[allow(non_camel_case_types)]
pub(crate) struct Q2_K;
impl Super for Q2_K {
    const BYTES: usize = 2688;
    const CHUNKS: usize = 2;
    const PARTS: usize = 8;
    const OFFSET: Offset = Offset::None;
    const TOP: usize = 3;
    const MINIMA: Minima = Minima::Each;
    #[inline(always)]
    unsafe fn scale<S: Simd>(s: S, p: *const u8, chunk: usize, part: usize, h: usize) -> S::I {
        // SAFETY: within the block.
        s.and(unsafe { s.load_u8_ptr(p.add(128 + 1280 * chunk + 32 * part + 16 * h)) }, s.splat_i(15))
    }
    #[inline(always)]
    unsafe fn min<S: Simd>(s: S, p: *const u8, chunk: usize, part: usize, h: usize) -> S::I {
        // SAFETY: within the block.
        s.shr(unsafe { s.load_u8_ptr(p.add(128 + 1280 * chunk + 32 * part + 16 * h)) }, 4)
    }
    #[inline(always)]
    unsafe fn group<S: Simd>(s: S, p: *const u8, chunk: usize, part: usize, g: usize, h: usize) -> S::I {
        // SAFETY: within the block.
        let v = unsafe { s.load_i_ptr(p.add(384 + 1280 * chunk + 128 * (4 * (part % 2) + g) + 64 * h)) };
        s.and(s.shr(v, 2 * (part / 2) as u32), s.splat_i(0x0303_0303))
    }
}

/// IQ4_XS blocks: per 32, a signed scale and nibbles that index the table.
#[allow(non_camel_case_types)]
pub(crate) struct IQ4_XS;
impl Super for IQ4_XS {
    const BYTES: usize = 4416;
    const CHUNKS: usize = 8;
    const PARTS: usize = 1;
    const OFFSET: Offset = Offset::Signed;
    const TOP: usize = 255;
    #[inline(always)]
    unsafe fn scale<S: Simd>(s: S, p: *const u8, chunk: usize, _part: usize, h: usize) -> S::I {
        // SAFETY: within the block.
        unsafe { s.load_i8_ptr(p.add(64 + 544 * chunk + 16 * h)) }
    }
    #[inline(always)]
    unsafe fn group<S: Simd>(s: S, p: *const u8, chunk: usize, _part: usize, g: usize, h: usize) -> S::I {
        // SAFETY: within the block.
        s.lookup16(&NL_PLUS_128, unsafe { nibbles(s, p.add(64 + 544 * chunk + 32), g, h) })
    }
}

/// A panel of `B` whose weights were widened to bytes, for many rows: the header (scales as bytes,
/// minima where they come singly), then bytes in the order of the values, so that all sub-blocks are read alike.
pub(crate) struct Wide<B>(PhantomData<B>);

const WIDE_MINS: usize = 128;
const WIDE_SCALES: usize = 640;
const WIDE_BYTES: usize = 1152;

impl<B: Super> Super for Wide<B> {
    const BYTES: usize = WIDE_BYTES + 8192;
    const COLD: bool = false;
    const CHUNKS: usize = 256 / B::SUB;
    const PARTS: usize = 1;
    const OFFSET: Offset = B::OFFSET;
    const TOP: usize = B::TOP;
    const MINIMA: Minima = B::MINIMA;
    #[inline(always)]
    unsafe fn scale<S: Simd>(s: S, p: *const u8, chunk: usize, _part: usize, h: usize) -> S::I {
        // SAFETY: within the block.
        unsafe { s.load_i8_ptr(p.add(WIDE_SCALES + 32 * chunk + 16 * h)) }
    }
    #[inline(always)]
    unsafe fn min<S: Simd>(s: S, p: *const u8, chunk: usize, _part: usize, h: usize) -> S::I {
        // SAFETY: within the block.
        unsafe { s.load_u8_ptr(p.add(WIDE_MINS + 32 * chunk + 16 * h)) }
    }
    #[inline(always)]
    unsafe fn group<S: Simd>(s: S, p: *const u8, chunk: usize, _part: usize, g: usize, h: usize) -> S::I {
        // SAFETY: within the block.
        unsafe { s.load_i_ptr(p.add(WIDE_BYTES + (chunk * (B::SUB / 4) + g) * 128 + 64 * h)) }
    }
}

/// Bytes of a widened panel block.
pub(crate) const WIDE_BLOCK: usize = <Wide<Q6_K> as Super>::BYTES;

/// A panel of blocks that [`firth_quant::integers`] takes apart, widened as [`Wide`], `SUB` values to a scale. In place
/// of minima stand the factors as f32: some are eighths of a half, which no half holds.
pub(crate) struct Integers<const SUB: usize>;

impl<const SUB: usize> Super for Integers<SUB> {
    const BYTES: usize = WIDE_BLOCK;
    const COLD: bool = false;
    const CHUNKS: usize = 256 / SUB;
    const PARTS: usize = 1;
    const OFFSET: Offset = Offset::Signed;
    const TOP: usize = 255;
    #[inline(always)]
    unsafe fn factor<S: Simd>(s: S, p: *const u8, h: usize) -> S::F {
        // SAFETY: within the block.
        unsafe { s.load_ptr(p.add(WIDE_MINS + 64 * h).cast()) }
    }
    #[inline(always)]
    unsafe fn scale<S: Simd>(s: S, p: *const u8, chunk: usize, _part: usize, h: usize) -> S::I {
        // SAFETY: within the block.
        unsafe { s.load_i8_ptr(p.add(WIDE_SCALES + 32 * chunk + 16 * h)) }
    }
    #[inline(always)]
    unsafe fn group<S: Simd>(s: S, p: *const u8, chunk: usize, _part: usize, g: usize, h: usize) -> S::I {
        // SAFETY: within the block.
        unsafe { s.load_i_ptr(p.add(WIDE_BYTES + (chunk * (SUB / 4) + g) * 128 + 64 * h)) }
    }
}

/// Makes a block of [`Integers`] of the file blocks of 32 outputs; `share` values have a scale.
#[inline]
pub(crate) fn widen_integers<'a>(
    of: firth_quant::IntegersOf,
    share: usize,
    block: impl Fn(usize) -> &'a [u8],
    wide: &mut [u8],
) {
    let (head, bytes) = wide.split_at_mut(WIDE_BYTES);
    let (lines, _) = bytes.as_chunks_mut::<256>();
    let mut integers = firth_quant::Integers::ZERO;
    for l in 0..PANEL {
        of(block(l), &mut integers);
        head[WIDE_MINS + 4 * l..][..4].copy_from_slice(&integers.d.to_le_bytes());
        let scales = integers.scales.iter().step_by(share / 16);
        for (to, scale) in head[WIDE_SCALES..].chunks_exact_mut(PANEL).zip(scales) {
            to[l] = *scale as u8;
        }
        // Four values are a word of each of two lines of 128 bytes.
        for (line, values) in lines.iter_mut().zip(integers.values) {
            let (low, high) = line.split_at_mut(128);
            low[4 * l..][..4].copy_from_slice(&(values as u32).to_le_bytes());
            high[4 * l..][..4].copy_from_slice(&((values >> 32) as u32).to_le_bytes());
        }
    }
}

/// Widens a panel of `n_blocks` blocks of `B`. The pointers were checked by whoever made the value.
pub(crate) struct Widen<B> {
    pub panel: *const u8,
    pub dst: *mut u8,
    pub n_blocks: usize,
    pub kind: PhantomData<B>,
}

impl<B: Super> Kernel for Widen<B> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for b in 0..self.n_blocks {
            // SAFETY: the maker vouches for n_blocks panel blocks and as many widened ones.
            unsafe { widen_block::<S, B>(s, self.panel.add(b * B::BYTES), self.dst.add(b * WIDE_BLOCK)) }
        }
    }
}

/// # Safety
/// `p` is a whole panel block of `B`, `dst` has room for a widened one.
#[inline(always)]
unsafe fn widen_block<S: Simd, B: Super>(s: S, p: *const u8, dst: *mut u8) {
    // SAFETY: every offset lies within the two blocks.
    unsafe {
        let head = if matches!(B::MINIMA, Minima::Pairs) { 384 } else { 128 };
        std::ptr::copy_nonoverlapping(p, dst, head);
        for chunk in 0..B::CHUNKS {
            for part in 0..B::PARTS {
                let sub = B::sixteenth(chunk, part) / (B::SUB / 16);
                for h in 0..2 {
                    let at = 32 * sub + 16 * h;
                    s.store_low8_ptr(dst.add(WIDE_SCALES + at), B::scale(s, p, chunk, part, h));
                    if const { matches!(B::MINIMA, Minima::Each) } {
                        s.store_low8_ptr(dst.add(WIDE_MINS + at), B::min(s, p, chunk, part, h));
                    }
                    for g in 0..B::SUB / 4 {
                        if h == 0 {
                            prefetch_step::<S, B>(s, p, chunk, part * (B::SUB / 4) + g);
                        }
                        let to = WIDE_BYTES + (sub * (B::SUB / 4) + g) * 128 + 64 * h;
                        s.store_i_ptr(dst.add(to), B::group(s, p, chunk, part, g, h));
                    }
                }
            }
        }
    }
}

/// Brings the lines ahead that step `step` of a chunk has, for `NR` rows.
///
/// # Safety
/// `p` is a whole block of `B`, and `ahead` is its own.
#[inline(always)]
unsafe fn fetch<S: Simd, B: Super, const NR: usize>(
    s: S,
    p: *const u8,
    ahead: Ahead,
    chunk: usize,
    step: usize,
) {
    if const { !loads_ahead(S::LEVEL, NR) } {
        return prefetch_step::<S, B>(s, p, chunk, step);
    }
    let (bytes, steps) = (B::BYTES / B::CHUNKS, 64 / B::CHUNKS);
    // SAFETY: a part of the block, which ends with a line.
    unsafe { ahead.load(s, chunk * bytes / 64 * 64, step, steps, bytes.div_ceil(64)) };
}

/// Asks for the lines that step `step` of a chunk fetches well ahead, and for those that it brings nearest. The hardware
/// does neither where few loads are in flight at a time.
#[inline(always)]
fn prefetch_step<S: Simd, B: Super>(s: S, p: *const u8, chunk: usize, step: usize) {
    let (bytes, steps) = (B::BYTES / B::CHUNKS, 64 / B::CHUNKS);
    let p = p.wrapping_add(chunk * bytes);
    prefetch_ahead(p, step, steps, bytes);
    let mut line = step;
    while line < bytes.div_ceil(64) {
        s.prefetch(p.wrapping_add(B::NEAR + 64 * line));
        line += steps;
    }
}

/// The activations of one tile in form Q256, from `row0` on.
struct Q256 {
    /// Four integers a word, `[k/4][R]`.
    q: *const i32,
    /// Scales, `[k/256][R]`.
    d: *const f32,
    /// Minus the sums of 16, `[k/16][R]`.
    minus: *const i32,
    /// Sums of 32 in 16-bit pairs, `[k/64][R]`.
    pairs: *const i32,
}

/// Panels of `B`.
pub(crate) struct Blocks256<B>(PhantomData<B>);

impl<B: Super> TileFn for Blocks256<B> {
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
        let n = k / 256;
        let mut sums = [[s.zero(); NH]; NR];
        // SAFETY: the caller vouches for n panel blocks and a tile of R rows in form Q256.
        unsafe {
            let q = tile.cast::<i32>().add(row0);
            let d = q.add(k / 4 * stride);
            let minus = d.add(n * stride);
            for b in 0..n {
                let act = Q256 {
                    q: q.add(b * 64 * stride),
                    d: d.add(b * stride).cast(),
                    minus: minus.add(b * 16 * stride),
                    pairs: minus.add((k / 16 + b * 4) * stride),
                };
                block::<S, B, NR, NH>(s, panel.add(b * B::BYTES), end, &act, stride, half, &mut sums);
            }
        }
        sums
    }
}

/// Adds one super-block to the sums.
///
/// # Safety
/// `p` is a whole panel block, `act` points into a whole tile of R rows.
#[inline(always)]
unsafe fn block<S: Simd, B: Super, const NR: usize, const NH: usize>(
    s: S,
    p: *const u8,
    end: *const u8,
    act: &Q256,
    stride: usize,
    half: usize,
    sums: &mut [[S::F; NH]; NR],
) {
    let ahead = Ahead::of(p, B::BYTES, B::AHEAD, end);
    let mut isum = [[s.splat_i(0); NH]; NR];
    // Minus J where minima come per 16.
    let mut jsum = [[s.splat_i(0); NH]; NR];
    // SAFETY: all offsets lie within the block and the tile.
    unsafe {
        for chunk in 0..B::CHUNKS {
            if const { super::tiles::unrolls(S::LEVEL) } {
                macro_rules! part {
                    ($($part:literal),*) => {$(
                        if const { $part < B::PARTS } {
                            let p = if const { B::PARTS > 2 } { opaque(p) } else { p };
                            if const { matches!(S::LEVEL, Level::Avx2) } {
                                for h in 0..NH {
                                    let (i, j) = (&mut isum, &mut jsum);
                                    half_sub::<S, B, NR, NH>(s, p, ahead, act, stride, half, h, chunk, $part, i, j);
                                }
                            } else {
                                sub::<S, B, NR, NH>(s, p, ahead, act, stride, half, chunk, $part, &mut isum, &mut jsum);
                            }
                        }
                    )*};
                }
                part!(0, 1, 2, 3, 4, 5, 6, 7);
            } else {
                for part in 0..B::PARTS {
                    sub::<S, B, NR, NH>(s, p, ahead, act, stride, half, chunk, part, &mut isum, &mut jsum);
                }
            }
        }
        for h in 0..NH {
            let at = 32 * (half + h);
            let d = B::factor(s, p, half + h);
            if const { !matches!(B::MINIMA, Minima::None) } {
                let dmin = s.neg(s.load_f16_ptr(p.add(64 + at).cast()));
                let mut m = [s.splat_i(0); 4];
                for i in 0..4 {
                    // Two bytes a lane become two 16-bit numbers.
                    let v = s.load_u16_ptr(p.add(128 + 64 * i + at).cast());
                    m[i] = s.or(s.and(v, s.splat_i(0xff)), s.shl(s.and(v, s.splat_i(0xff00)), 8));
                }
                for r in 0..NR {
                    let mut j = s.splat_i(0);
                    if const { matches!(B::MINIMA, Minima::Pairs) } {
                        for i in 0..4 {
                            let a = s.splat_i(act.pairs.add(i * stride + r).read_unaligned());
                            j = s.madd16(j, m[i], a);
                        }
                    } else {
                        j = s.sub_i(j, jsum[r][h]);
                    }
                    let product = s.mul(dmin, s.splat(act.d.add(r).read_unaligned()));
                    sums[r][h] = s.fma(s.to_f(j), product, sums[r][h]);
                }
            }
            for r in 0..NR {
                let product = s.mul(d, s.splat(act.d.add(r).read_unaligned()));
                sums[r][h] = s.fma(s.to_f(isum[r][h]), product, sums[r][h]);
            }
        }
    }
}

/// Adds one sub-block to the integer sums.
///
/// # Safety
/// As [`block`].
#[inline(always)]
unsafe fn sub<S: Simd, B: Super, const NR: usize, const NH: usize>(
    s: S,
    p: *const u8,
    ahead: Ahead,
    act: &Q256,
    stride: usize,
    half: usize,
    chunk: usize,
    part: usize,
    isum: &mut [[S::I; NH]; NR],
    jsum: &mut [[S::I; NH]; NR],
) {
    // SAFETY: all offsets lie within the block and the tile.
    unsafe {
        let sixteenth = B::sixteenth(chunk, part);
        let q = act.q.add(sixteenth * 4 * stride);
        let minus = act.minus.add(sixteenth * stride);
        let mut acc = [[s.splat_i(0); NH]; NR];
        if const { !matches!(B::OFFSET, Offset::None) } {
            for r in 0..NR {
                let mut from = s.splat_i(minus.add(r).read_unaligned());
                if B::SUB == 32 {
                    from = s.add_i(from, s.splat_i(minus.add(stride + r).read_unaligned()));
                }
                acc[r] = [start(s, B::OFFSET, from); NH];
            }
        }
        eight!(S::LEVEL, g => {
            if g < B::SUB / 4 {
                if const { B::COLD } {
                    fetch::<S, B, NR>(s, p, ahead, chunk, part * (B::SUB / 4) + g);
                }
                let p = if const { loads_ahead(S::LEVEL, NR) && B::COLD } { opaque(p) } else { p };
                let mut w = [s.splat_i(0); NH];
                for h in 0..NH {
                    w[h] = B::group(s, p, chunk, part, g, half + h);
                }
                for r in 0..NR {
                    let a = s.splat_i(q.add(g * stride + r).read_unaligned());
                    for h in 0..NH {
                        acc[r][h] = dot(s, B::OFFSET, acc[r][h], w[h], a);
                    }
                }
            }
        });
        for h in 0..NH {
            let scale = B::scale(s, p, chunk, part, half + h);
            for r in 0..NR {
                isum[r][h] = s.add_i(isum[r][h], s.mul_i(acc[r][h], scale));
            }
            if const { matches!(B::MINIMA, Minima::Each) } {
                let min = B::min(s, p, chunk, part, half + h);
                for r in 0..NR {
                    let a = s.splat_i(minus.add(r).read_unaligned());
                    jsum[r][h] = s.add_i(jsum[r][h], s.mul_i(min, a));
                }
            }
        }
    }
}

/// [`sub`] for one half of a panel, where 16 registers are all there are: sums of as many groups as 16 bits hold meet
/// the scale in one instruction.
///
/// # Safety
/// As [`block`].
#[inline(always)]
unsafe fn half_sub<S: Simd, B: Super, const NR: usize, const NH: usize>(
    s: S,
    p: *const u8,
    ahead: Ahead,
    act: &Q256,
    stride: usize,
    half: usize,
    h: usize,
    chunk: usize,
    part: usize,
    isum: &mut [[S::I; NH]; NR],
    jsum: &mut [[S::I; NH]; NR],
) {
    let run = const { short_groups(B::TOP) };
    // SAFETY: all offsets lie within the block and the tile.
    unsafe {
        let sixteenth = B::sixteenth(chunk, part);
        let q = act.q.add(sixteenth * 4 * stride);
        let minus = act.minus.add(sixteenth * stride);
        let scale = B::scale(s, p, chunk, part, half + h);
        let low = |x: S::I| s.and(x, s.splat_i(0xffff));
        let both = s.or(low(scale), s.shl(scale, 16));
        let (mut acc, mut short) = ([s.splat_i(0); NR], [s.splat_i(0); NR]);
        eight!(S::LEVEL, g => {
            if g < B::SUB / 4 {
                if const { B::COLD } && half + h == 0 {
                    fetch::<S, B, NR>(s, p, ahead, chunk, part * (B::SUB / 4) + g);
                }
                let w = B::group(s, p, chunk, part, g, half + h);
                for r in 0..NR {
                    let a = s.splat_i(q.add(g * stride + r).read_unaligned());
                    if run == 1 {
                        acc[r] = dot(s, B::OFFSET, acc[r], w, a);
                        continue;
                    }
                    short[r] = s.dot_pairs(short[r], w, a);
                    if (g + 1).is_multiple_of(run) || g + 1 == B::SUB / 4 {
                        isum[r][h] = s.madd16(isum[r][h], short[r], both);
                        short[r] = s.splat_i(0);
                    }
                }
            }
        });
        if run == 1 {
            for r in 0..NR {
                isum[r][h] = s.add_i(isum[r][h], s.mul_i(acc[r], scale));
            }
        }
        // Sums of activations fit 16 bits, and so do scales times the offset.
        if let Offset::Shift(n) = B::OFFSET {
            let by = low(s.shl(scale, n));
            for r in 0..NR {
                let mut sum = minus.add(r).read_unaligned();
                if B::SUB == 32 {
                    sum += minus.add(stride + r).read_unaligned();
                }
                isum[r][h] = s.madd16(isum[r][h], by, s.splat_i(sum));
            }
        }
        if const { matches!(B::MINIMA, Minima::Each) } {
            let min = B::min(s, p, chunk, part, half + h);
            for r in 0..NR {
                let a = s.splat_i(minus.add(r).read_unaligned());
                jsum[r][h] = s.madd16(jsum[r][h], min, a);
            }
        }
    }
}
