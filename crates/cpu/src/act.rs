//! The forms in which activations meet a weight: f32, or int8 in blocks of 32 or 256.
//!
//! Rows are packed in tiles of six (the last tile has what is left), and inside a tile the rows are
//! interleaved, so that a kernel walks one pointer. A tile is one stretch of memory and is filled by
//! one call, so tiles can be shared out to threads.

use firth_simd::{Kernel, LANES, Level, Simd, dispatch};

/// Rows of a full tile.
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

    /// Tiles of these rows: sixes, then one of what is left.
    pub fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE_ROWS)
    }

    /// Rows of tile `tile`, 1 to 6.
    pub fn tile_rows(&self, tile: usize) -> usize {
        (self.rows - tile * TILE_ROWS).min(TILE_ROWS)
    }

    /// Where tile `tile` lies in the buffer, in bytes.
    pub fn tile_range(&self, tile: usize) -> std::ops::Range<usize> {
        let start = tile * TILE_ROWS * self.row_words() * 4;
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
        let x = src.row(tile * TILE_ROWS + r, layout.k);
        let row = Row { layout, rows, r, x, dst };
        if dispatch(level, row) {
            bad |= 1 << r;
        }
    }
    bad
}

/// One row into its lane of the tile; returns whether it holds a NaN or an infinity.
struct Row<'a> {
    layout: &'a ActLayout,
    rows: usize,
    r: usize,
    x: &'a [f32],
    dst: &'a mut [u8],
}

impl Kernel for Row<'_> {
    type Out = bool;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) -> bool {
        match self.layout.form {
            Form::F32 => self.copy(s),
            Form::Q32 => self.quantise::<S, 32>(s),
            Form::Q256 => self.quantise::<S, 256>(s),
        }
    }
}

impl Row<'_> {
    /// Writes word `at` of this row, where `base` words of each row come before.
    #[inline(always)]
    fn put(&mut self, at: usize, word: [u8; 4]) {
        let at = (at * self.rows + self.r) * 4;
        self.dst[at..at + 4].copy_from_slice(&word);
    }

    #[inline(always)]
    fn copy<S: Simd>(&mut self, s: S) -> bool {
        let mut top = s.splat_i(0);
        for (i, chunk) in self.x.chunks(LANES).enumerate() {
            top = s.max_i(top, s.bits(s.abs(s.load_partial(chunk, 0.0))));
            for (j, &x) in chunk.iter().enumerate() {
                self.put(i * LANES + j, x.to_ne_bytes());
            }
        }
        s.reduce_max_i(top) >= 0x7f80_0000
    }

    /// Writes sixteen integers, as words from `at`.
    #[inline(always)]
    fn put_bytes<S: Simd>(&mut self, s: S, at: usize, q: S::I) {
        let mut bytes = [0i8; LANES];
        s.store_i8(&mut bytes, q);
        let words = bytes.as_chunks::<4>().0;
        let step = self.rows * 4;
        let dst = &mut self.dst[(at * self.rows + self.r) * 4..][..3 * step + 4];
        for (i, word) in words.iter().enumerate() {
            dst[i * step..i * step + 4].copy_from_slice(&word.map(|b| b as u8));
        }
    }

    #[inline(always)]
    fn quantise<S: Simd, const B: usize>(&mut self, s: S) -> bool {
        let k = self.layout.padded_k();
        let n_blocks = k / B;
        let mut bad = false;
        for b in 0..n_blocks {
            let end = self.x.len().min(b * B + B);
            let x = &self.x[(b * B).min(end)..end];
            bad |= match x.len() == B {
                true => self.block::<S, B>(s, b, x),
                false => {
                    let mut padded = [0.0; B];
                    padded[..x.len()].copy_from_slice(x);
                    self.block::<S, B>(s, b, &padded)
                }
            };
        }
        bad
    }

    /// Block `b`: integers, scale and sums. Returns whether a value is not finite.
    #[inline(always)]
    fn block<S: Simd, const B: usize>(&mut self, s: S, b: usize, x: &[f32]) -> bool {
        let k = self.layout.padded_k();
        let n_blocks = k / B;
        let (scales, sums) = (k / 4, k / 4 + n_blocks);
        let more = sums + if B == 32 { n_blocks } else { k / 16 };
        let mut top = s.splat_i(0);
        for chunk in x.as_chunks::<LANES>().0 {
            top = s.max_i(top, s.bits(s.abs(s.load(chunk))));
        }
        let amax = f32::from_bits(s.reduce_max_i(top) as u32);
        let finite = amax < f32::INFINITY;
        // A block without a scale is zeros: its values are not looked at, they need not be finite.
        let live = finite && amax >= TINY;
        let (d, id) = if live { (amax / 127.0, 127.0 / amax) } else { (0.0, 0.0) };
        let (mut all, mut pair) = (s.splat_i(0), [0; 2]);
        for (v, chunk) in x.as_chunks::<LANES>().0.iter().enumerate() {
            let q = if live { s.round_i(s.mul(s.load(chunk), s.splat(id))) } else { s.splat_i(0) };
            self.put_bytes(s, (b * B + v * LANES) / 4, q);
            if B == 32 {
                all = s.add_i(all, q);
                continue;
            }
            let sum = s.sum_i(q);
            let i = b * (B / LANES) + v;
            self.put(sums + i, (-sum).to_ne_bytes());
            // Sums of 32, at most 4064 each, in pairs for a multiply-add of 16-bit pairs.
            pair[v / 2 % 2] = if v % 2 == 0 { sum } else { pair[v / 2 % 2] + sum };
            if v % 4 == 3 {
                self.put(more + i / 4, ((pair[0] & 0xffff) | (pair[1] << 16)).to_ne_bytes());
            }
        }
        self.put(scales + b, d.to_ne_bytes());
        if B == 32 {
            let sum = s.sum_i(all);
            self.put(sums + b, (-sum).to_ne_bytes());
            self.put(more + b, (d * sum as f32).to_ne_bytes());
        }
        !finite
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
