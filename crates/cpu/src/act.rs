//! The forms in which activations meet a weight: f32, or int8 in blocks of 32 or 256.
//!
//! Rows are packed in tiles of at most six, as many in each as can be (the last tile has what is left): of eight rows
//! two tiles of four, whose first meets its panel while memory is still bringing it. Inside a tile the rows are
//! interleaved, so that a kernel walks one pointer. A tile is one stretch of memory and is filled by
//! one call, so tiles can be shared out to threads.

use firth_simd::{Kernel, LANES, Level, Simd, dispatch};

/// Rows of a tile at most.
pub const TILE_ROWS: usize = 6;

/// Below this a block's largest magnitude counts as zero.
const TINY: f32 = f32::from_bits(7 << 23); // 2^-120

/// How activations are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// f32 as they are: for F32, F16, BF16 and decoded weights.
    F32,
    /// int8 in blocks of 32, each with an f32 scale and the sum of its integers.
    Q32,
    /// int8 in blocks of 256, each with an f32 scale and sums of 16 and 32 integers.
    Q256,
}

impl Form {
    /// Values that share a scale.
    pub const fn block(self) -> usize {
        match self {
            Self::F32 => 1,
            Self::Q32 => 32,
            Self::Q256 => 256,
        }
    }
}

/// The rows of a quantised (or copied) activation matrix `[k, rows]` and where they lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActLayout {
    /// How values are held.
    pub form: Form,
    /// Values of a row; padded with zeros to a whole block.
    pub k: usize,
    /// Rows of this step.
    pub rows: usize,
}

impl ActLayout {
    /// Bytes that [`ActLayout`]s of up to `max_rows` rows need.
    pub fn bytes(form: Form, k: usize, max_rows: usize) -> usize {
        Self { form, k, rows: max_rows }.row_words() * 4 * max_rows
    }

    /// Tiles of these rows.
    pub fn tiles(&self) -> usize {
        self.rows.div_ceil(self.height())
    }

    /// Rows of every tile but the last, 1 to 6.
    pub fn height(&self) -> usize {
        self.rows.div_ceil(self.rows.div_ceil(TILE_ROWS).max(1)).max(1)
    }

    /// Rows of tile `tile`, 1 to 6.
    pub fn tile_rows(&self, tile: usize) -> usize {
        (self.rows - tile * self.height()).min(self.height())
    }

    /// Where tile `tile` lies in the buffer, in bytes.
    pub fn tile_range(&self, tile: usize) -> std::ops::Range<usize> {
        let start = tile * self.height() * self.row_words() * 4;
        start..start + self.tile_rows(tile) * self.row_words() * 4
    }

    /// `k` padded to a whole block.
    pub(crate) fn padded_k(&self) -> usize {
        self.k.next_multiple_of(self.form.block())
    }

    /// 32-bit words of one row.
    pub(crate) fn row_words(&self) -> usize {
        let k = self.padded_k();
        match self.form {
            Form::F32 => k,
            // Integers; scale, minus the sum, scale times sum.
            Form::Q32 => k / 4 + 3 * (k / 32),
            // Integers; scale; minus the sums of 16; pairs of sums of 32.
            Form::Q256 => k / 4 + k / 256 + k / 16 + k / 64,
        }
    }
}

/// Where the rows of an f32 matrix come from: row `i` is `data[index[i] * stride..][..k]`, or
/// `data[i * stride..][..k]` without an index.
#[derive(Clone, Copy)]
pub struct RowSource<'a> {
    /// The matrix.
    pub data: &'a [f32],
    /// Floats from one row to the next.
    pub stride: usize,
    /// Which rows, where not all in order.
    pub index: Option<&'a [u32]>,
}

impl<'a> RowSource<'a> {
    #[inline(always)]
    fn row(&self, i: usize, k: usize) -> &'a [f32] {
        let i = self.index.map_or(i, |index| index[i] as usize);
        &self.data[i * self.stride..][..k]
    }
}

/// Fills one tile (`dst` is its [`ActLayout::tile_range`]) from the rows of `src`.
///
/// A block: `d = amax/127`, `q = rne(x * (127/amax))`, all zero when amax < 2^-120. Returns a mask of
/// the tile's rows that hold a NaN or an infinity; the blocks in question are zeros (form F32: as they
/// are), and the row must fail.
#[must_use = "rows with a NaN or infinity must fail"]
pub fn fill_tile(level: Level, layout: &ActLayout, tile: usize, src: RowSource, dst: &mut [u8]) -> u8 {
    let rows = layout.tile_rows(tile);
    assert_eq!(dst.len(), rows * layout.row_words() * 4, "bytes of a tile of {rows} rows");
    let mut bad = 0;
    for r in 0..rows {
        let x = src.row(tile * layout.height() + r, layout.k);
        // SAFETY: the tile is the caller's alone.
        let row_is_bad = unsafe { fill_row(level, layout, rows, r, 0, x, dst.as_mut_ptr()) };
        bad |= u8::from(row_is_bad) << r;
    }
    bad
}

/// Fills columns `first ..` of row `r` of a tile of `rows` rows with `x`, as [`fill_tile`] does. `first` is a multiple of the
/// form's block, and so is the end, unless it is that of the row. Returns whether they hold a NaN or an infinity.
///
/// # Safety
/// The tile lies at `dst`, and nobody else touches these columns of the row.
#[must_use = "rows with a NaN or infinity must fail"]
pub unsafe fn fill_row(
    level: Level,
    layout: &ActLayout,
    rows: usize,
    r: usize,
    first: usize,
    x: &[f32],
    dst: *mut u8,
) -> bool {
    let (end, block) = (first + x.len(), layout.form.block());
    assert!(r < rows && end <= layout.k, "columns {first} to {end} of {}, row {r} of {rows}", layout.k);
    assert!(first.is_multiple_of(block) && (end == layout.k || end.is_multiple_of(block)), "whole blocks");
    dispatch(level, Row { layout, rows, r, first, x, dst })
}

/// Columns of one row into its lane of the tile; returns whether they hold a NaN or an infinity.
struct Row<'a> {
    layout: &'a ActLayout,
    rows: usize,
    r: usize,
    first: usize,
    x: &'a [f32],
    dst: *mut u8,
}

impl Kernel for Row<'_> {
    type Out = bool;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> bool {
        match self.layout.form {
            Form::F32 => self.copy(s),
            Form::Q32 => self.blocks(
                #[inline(always)]
                |b, x| self.block_of_32(s, b, x),
            ),
            Form::Q256 => self.blocks(
                #[inline(always)]
                |b, x| self.block_of_256(s, b, x),
            ),
        }
    }
}

impl Row<'_> {
    /// Writes words `at ..` of this row, words of all rows of the tile side by side.
    #[inline(always)]
    fn put<const N: usize>(&self, at: usize, words: &[i32; N]) {
        assert!(at + N <= self.layout.row_words(), "words of a row");
        // SAFETY: the last of them lies in the tile, and they are this row's.
        unsafe {
            let to = self.dst.cast::<i32>().add(at * self.rows + self.r);
            if self.rows == 1 {
                // A row alone: few wide stores. The lines are in another core's cache, and many stores would queue.
                return to.cast::<[i32; N]>().write_unaligned(*words);
            }
            for (i, word) in words.iter().enumerate() {
                to.add(i * self.rows).write_unaligned(*word);
            }
        }
    }

    #[inline(always)]
    fn copy<S: Simd>(&self, s: S) -> bool {
        let mut top = s.splat_i(0);
        let (whole, rest) = self.x.as_chunks::<LANES>();
        for (i, chunk) in whole.iter().enumerate() {
            let bits = s.bits(s.load(chunk));
            top = s.max_i(top, s.and(bits, s.splat_i(i32::MAX)));
            self.put(self.first + i * LANES, &s.to_array_i(bits));
        }
        top = s.max_i(top, s.bits(s.abs(s.load_partial(rest, 0.0))));
        for (i, x) in rest.iter().enumerate() {
            self.put(self.first + whole.len() * LANES + i, &[x.to_bits() as i32]);
        }
        s.reduce_max_i(top) >= 0x7f80_0000
    }

    /// Blocks of `B`, the last one padded with zeros; returns whether one is not finite.
    #[inline(always)]
    fn blocks<const B: usize>(&self, block: impl Fn(usize, &[f32; B]) -> bool) -> bool {
        let mut bad = false;
        for (i, x) in self.x.chunks(B).enumerate() {
            let b = self.first / B + i;
            bad |= match x.as_array::<B>() {
                Some(x) => block(b, x),
                None => {
                    let mut padded = [0.0; B];
                    padded[..x.len()].copy_from_slice(x);
                    block(b, &padded)
                }
            };
        }
        bad
    }

    /// Block `b` of 32: integers, scale and sum. Returns whether a value is not finite.
    #[inline(always)]
    fn block_of_32<S: Simd>(&self, s: S, b: usize, x: &[f32; 32]) -> bool {
        let k = self.layout.padded_k();
        let (scales, n_blocks) = (k / 4, k / 32);
        let Scale { d, inverse, finite } = Scale::of(s, x);
        let mut q = [s.splat_i(0); 2];
        if inverse != 0.0 {
            for (q, chunk) in q.iter_mut().zip(x.as_chunks().0) {
                *q = s.round_i(s.mul(s.load(chunk), s.splat(inverse)));
            }
        }
        for (i, q) in q.iter().enumerate() {
            // By 16 bytes, as they come out of the register: a wider load would wait for the stores.
            let mut bytes = [0i8; LANES];
            s.store_i8(&mut bytes, *q);
            self.put::<4>(b * 8 + i * 4, bytemuck::cast_ref(&bytes));
        }
        let sum = s.sum_i(s.add_i(q[0], q[1]));
        self.put(scales + b, &[d.to_bits() as i32]);
        self.put(scales + n_blocks + b, &[-sum]);
        self.put(scales + 2 * n_blocks + b, &[(d * sum as f32).to_bits() as i32]);
        !finite
    }

    /// Block `b` of 256: integers (in lines of 64 bytes), scale and sums. Returns whether a value is not finite.
    #[inline(always)]
    fn block_of_256<S: Simd>(&self, s: S, b: usize, x: &[f32; 256]) -> bool {
        let k = self.layout.padded_k();
        let scales = k / 4;
        let sums = scales + k / 256;
        let pair_sums = sums + k / 16;
        let Scale { d, inverse, finite } = Scale::of(s, x);
        let mut bytes = [[0i8; 64]; 4];
        if inverse != 0.0 {
            let inverse = s.splat(inverse);
            for (q, chunk) in bytes.as_flattened_mut().as_chunks_mut().0.iter_mut().zip(x.as_chunks().0) {
                s.store_i8(q, s.round_i(s.mul(s.load(chunk), inverse)));
            }
        }
        // Sums of four neighbours.
        let mut fours = [[0i32; LANES]; 4];
        for (line, (bytes, four)) in bytes.iter().zip(&mut fours).enumerate() {
            let words: &[i32; LANES] = bytemuck::cast_ref(bytes);
            s.store_i32(four, s.dot_u7(s.splat_i(0), s.splat_i(0x0101_0101), s.load_i32(words)));
            self.put(b * 64 + line * LANES, words);
        }
        let (mut minus, mut pairs) = ([0; 16], [0; 4]);
        for (minus, four) in minus.iter_mut().zip(fours.as_flattened().as_chunks::<4>().0) {
            *minus = -(four[0] + four[1] + four[2] + four[3]);
        }
        // Sums of 32, at most 4064 each, in pairs for a multiply-add of 16-bit pairs.
        for (pair, m) in pairs.iter_mut().zip(minus.as_chunks::<4>().0) {
            *pair = (-(m[0] + m[1]) & 0xffff) | (-(m[2] + m[3]) << 16);
        }
        self.put(scales + b, &[d.to_bits() as i32]);
        self.put(sums + b * 16, &minus);
        self.put(pair_sums + b * 4, &pairs);
        !finite
    }
}

/// What turns a block into integers.
struct Scale {
    d: f32,
    /// Zero for a block that is zeros: its values are not looked at, they need not be finite.
    inverse: f32,
    finite: bool,
}

impl Scale {
    #[inline(always)]
    fn of<S: Simd>(s: S, x: &[f32]) -> Scale {
        let mut top = s.splat_i(0);
        for chunk in x.as_chunks::<LANES>().0 {
            top = s.max_i(top, s.bits(s.abs(s.load(chunk))));
        }
        let amax = f32::from_bits(s.reduce_max_i(top) as u32);
        let finite = amax < f32::INFINITY;
        let (d, inverse) = if finite && amax >= TINY { (amax / 127.0, 127.0 / amax) } else { (0.0, 0.0) };
        Scale { d, inverse, finite }
    }
}

/// A filled activation matrix.
#[derive(Clone, Copy)]
pub struct Act<'a> {
    /// Its shape and form.
    pub layout: ActLayout,
    /// Its tiles.
    pub data: &'a [u8],
}
