//! What all panel kernels share: the walk over panels and tiles, and the way out.

use std::marker::PhantomData;

use firth_simd::{Kernel, LANES, Level, Simd, prefetch_far};

use crate::panel::layout::PANEL;

/// Where results go: row `i`, output `j` at `ptr[i * stride + j]`, or with an index at `ptr[index[i] * stride + j]`.
///
/// A value may be copied to several threads (it is made by [`OutRows::from_raw`] for that); they must
/// then compute different panels or different rows.
#[derive(Clone, Copy)]
pub struct OutRows<'a> {
    ptr: *mut f32,
    len: usize,
    stride: usize,
    index: Option<&'a [u32]>,
    life: PhantomData<&'a mut [f32]>,
}

impl<'a> OutRows<'a> {
    /// Rows `stride` floats apart in `out`.
    pub fn new(out: &'a mut [f32], stride: usize) -> Self {
        Self { ptr: out.as_mut_ptr(), len: out.len(), stride, index: None, life: PhantomData }
    }

    /// Rows `stride` floats apart in the `len` floats at `ptr`.
    ///
    /// # Safety
    /// The floats are writable for `'a`, and no one else touches the rows and panels that are computed
    /// into this value while they are.
    pub unsafe fn from_raw(ptr: *mut f32, len: usize, stride: usize) -> Self {
        Self { ptr, len, stride, index: None, life: PhantomData }
    }

    /// Row `i` in the place of row `index[i]`. No row stands twice.
    pub fn at_rows(self, index: &'a [u32]) -> Self {
        Self { index: Some(index), ..self }
    }

    /// Panics unless `rows` rows of `n` outputs fit.
    pub(crate) fn check(&self, rows: usize, n: usize) {
        let rows = match self.index {
            Some(index) => {
                assert!(index.len() >= rows, "{} places of {rows} rows", index.len());
                index[..rows].iter().map(|i| *i as usize + 1).max().unwrap_or(0)
            }
            None => rows,
        };
        assert!(
            rows == 0 || (rows == 1 || self.stride >= n) && (rows - 1) * self.stride + n <= self.len,
            "{rows} rows of {n} outputs at stride {} in {} floats",
            self.stride,
            self.len
        );
    }

    /// Where output `j` of `row` goes.
    ///
    /// # Safety
    /// `row` and more than `j` outputs passed [`OutRows::check`].
    #[inline(always)]
    unsafe fn place(&self, row: usize, j: usize) -> *mut f32 {
        // SAFETY: the row has a place, and j lies in the checked extent.
        unsafe {
            let row = self.index.map_or(row, |index| *index.get_unchecked(row) as usize);
            self.ptr.add(row * self.stride + j)
        }
    }

    /// Writes the outputs `j..n` of `row` that `values` holds, fewer than it has.
    ///
    /// # Safety
    /// `row` and `n` passed [`OutRows::check`].
    #[cold]
    #[inline(never)]
    unsafe fn put_edge(&self, row: usize, j: usize, n: usize, values: &[f32; LANES]) {
        let len = n.saturating_sub(j);
        // SAFETY: the checked extent holds `len` floats from there.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), self.place(row, j), len.min(LANES)) }
    }
}

/// A kind of panel and how a tile of it is computed.
pub(crate) trait TileFn: Sized + 'static {
    /// Whether a kernel of several rows takes both halves of a panel in one walk where there are 16 registers.
    const WHOLE: bool;
    /// Rows `row0..row0 + NR` of a tile of `stride` rows, halves `half..half + NH`: final sums.
    ///
    /// # Safety
    /// `panel` is a whole panel of `k` (padded) values, in memory that is readable up to `end`, and `tile` a whole
    /// activation tile of `stride` rows of `k` values of the kind's form.
    #[allow(clippy::too_many_arguments, reason = "one loop's operands")]
    unsafe fn tile<S: Simd, const NR: usize, const NH: usize>(
        s: S,
        panel: *const u8,
        end: *const u8,
        tile: *const u8,
        stride: usize,
        k: usize,
        row0: usize,
        half: usize,
    ) -> [[S::F; NH]; NR];
}

/// Tiles of `stride` rows against panels. The pointers were checked by whoever made the value.
///
/// With AVX-512 the rows of a tile are a constant `R`, one kernel each; elsewhere `R` is 0, one kernel
/// serves all and walks the rows of a tile in smaller steps.
pub(crate) struct Tiles<'a, T, const R: usize> {
    pub panels: *const u8,
    pub panel_bytes: usize,
    /// End of the memory that the panels lie in.
    pub end: *const u8,
    /// Which panels of the weight; `panels` points at the first of them.
    pub range: std::ops::Range<usize>,
    pub tiles: *const u8,
    pub tile_bytes: usize,
    pub n_tiles: usize,
    /// Rows of a tile.
    pub stride: usize,
    /// Row of the first tile.
    pub row0: usize,
    pub k: usize,
    pub n: usize,
    pub out: OutRows<'a>,
    pub kind: PhantomData<T>,
}

impl<T: TileFn, const R: usize> Kernel for Tiles<'_, T, R> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (i, panel) in self.range.clone().enumerate() {
            for t in 0..self.n_tiles {
                // SAFETY: the maker checked that the panels and tiles are whole and that `out` fits.
                unsafe { self.one(s, self.panels.add(i * self.panel_bytes), panel, t) }
            }
        }
    }
}

/// Whether registers are real and worth unrolling for.
pub(crate) const fn unrolls(level: Level) -> bool {
    matches!(level, Level::Avx512 | Level::Avx2)
}

impl<T: TileFn, const R: usize> Tiles<'_, T, R> {
    /// # Safety
    /// As [`TileFn::tile`]; the rows and outputs passed [`OutRows::check`].
    #[inline(always)]
    unsafe fn one<S: Simd>(&self, s: S, p: *const u8, panel: usize, t: usize) {
        // Only one of the three shapes is compiled for a level.
        assert!((R > 0) == matches!(S::LEVEL, Level::Avx512), "kernel of {R} rows at {}", S::LEVEL);
        // SAFETY: handed on to the caller.
        unsafe {
            let tile = self.tiles.add(t * self.tile_bytes);
            if const { R > 0 && matches!(S::LEVEL, Level::Avx512) } {
                self.piece::<S, R, 2>(s, p, panel, tile, R, t, 0, 0);
            } else if const { R == 0 && !matches!(S::LEVEL, Level::Avx512) } {
                // Sixteen registers: three rows at most, of half a panel at a time.
                let mut row = 0;
                while row < self.stride {
                    row += match self.stride - row {
                        2 | 4 if const { unrolls(S::LEVEL) } => self.rows::<S, 2>(s, p, panel, tile, t, row),
                        3.. if const { unrolls(S::LEVEL) } => self.rows::<S, 3>(s, p, panel, tile, t, row),
                        _ => self.rows::<S, 1>(s, p, panel, tile, t, row),
                    };
                }
            }
        }
    }

    /// `NR` rows from `row` on of a whole panel where there are 16 registers. Returns `NR`.
    ///
    /// # Safety
    /// As [`TileFn::tile`]; the rows and outputs passed [`OutRows::check`].
    #[inline(always)]
    unsafe fn rows<S: Simd, const NR: usize>(
        &self,
        s: S,
        p: *const u8,
        panel: usize,
        tile: *const u8,
        t: usize,
        row: usize,
    ) -> usize {
        // SAFETY: handed on to the caller.
        unsafe {
            // One stream where it can be: memory is then read in order.
            if const { NR == 1 || T::WHOLE } {
                self.piece::<S, NR, 2>(s, p, panel, tile, self.stride, t, row, 0);
            } else {
                self.piece::<S, NR, 1>(s, p, panel, tile, self.stride, t, row, 0);
                self.piece::<S, NR, 1>(s, p, panel, tile, self.stride, t, row, 1);
            }
        }
        NR
    }

    /// # Safety
    /// As [`TileFn::tile`]; the rows and outputs passed [`OutRows::check`].
    #[inline(always)]
    unsafe fn piece<S: Simd, const NR: usize, const NH: usize>(
        &self,
        s: S,
        p: *const u8,
        panel: usize,
        tile: *const u8,
        stride: usize,
        t: usize,
        row0: usize,
        half: usize,
    ) {
        // SAFETY: handed on to the caller.
        unsafe {
            let sums = T::tile::<S, NR, NH>(s, p, self.end, tile, stride, self.k, row0, half);
            let first = self.row0 + t * self.stride + row0;
            let j = panel * PANEL + half * LANES;
            // No call on the common way: the sums would have to lie in memory across it, and the compiler would
            // keep them there in the loop that makes them.
            if j + NH * LANES <= self.n {
                for r in 0..NR {
                    for h in 0..NH {
                        s.store_ptr(self.out.place(first + r, j + h * LANES), sums[r][h]);
                    }
                }
                return;
            }
            for r in 0..NR {
                for h in 0..NH {
                    self.out.put_edge(first + r, j + h * LANES, self.n, &s.to_array(sums[r][h]));
                }
            }
        }
    }
}

/// Runs a step for g = 0..8, with `g` a constant where that is worth it.
macro_rules! eight {
    ($level:expr, $g:ident => $step:block) => {
        if const { crate::panel::tiles::unrolls($level) } {
            eight!(@ 0, $g, $step); eight!(@ 1, $g, $step); eight!(@ 2, $g, $step); eight!(@ 3, $g, $step);
            eight!(@ 4, $g, $step); eight!(@ 5, $g, $step); eight!(@ 6, $g, $step); eight!(@ 7, $g, $step);
        } else {
            for $g in 0..8usize $step
        }
    };
    (@ $v:literal, $g:ident, $step:block) => {{ let $g: usize = $v; $step }};
}
pub(crate) use eight;

/// Bytes that a prefetch runs ahead of the kernel.
const FAR: usize = 8192;

/// Where arithmetic hides most of a load: asks for the lines that step `step` of `steps` fetches of the
/// `bytes` well ahead of the block at `p`. Spread over the steps: a burst at the start of a block would stall the core.
/// Each line once, into the second-level cache, which takes more requests at a time than the first.
#[inline(always)]
pub(crate) fn prefetch_ahead(p: *const u8, step: usize, steps: usize, bytes: usize) {
    let mut line = step;
    while line < bytes.div_ceil(64) {
        prefetch_far(p.wrapping_add(FAR + 64 * line));
        line += steps;
    }
}

/// Bytes that the loads of a kernel of one row run ahead of their use.
pub(crate) const AHEAD: usize = 512;

/// Whether a kernel of `rows` rows loads lines ahead ([`Ahead`]) rather than ask for them: it waits for memory alone. In 16
/// registers one row is bound by arithmetic.
pub(crate) const fn loads_ahead(level: Level, rows: usize) -> bool {
    rows == 1 && matches!(level, Level::Avx512)
}

/// Where lines are loaded ahead of a block. In the order of memory such loads set the hardware's own reading ahead going,
/// which keeps more lines in flight than prefetches do.
#[derive(Clone, Copy)]
pub(crate) struct Ahead(*const u8);

impl Ahead {
    /// `ahead` bytes from the block of `bytes` at `p`, in memory that ends at `end`: at its end a block loads its own lines.
    #[inline(always)]
    pub fn of(p: *const u8, bytes: usize, ahead: usize, end: *const u8) -> Self {
        let far = (end as usize).wrapping_sub(p as usize) >= bytes + ahead;
        Ahead(p.wrapping_add(if far { ahead } else { 0 }))
    }

    /// Loads the lines that step `step` of `steps` has of the `lines` from `at` on: all steps in turn load each line
    /// once, and in the order of memory, without which the hardware recognises nothing.
    ///
    /// # Safety
    /// The lines lie in the block.
    #[inline(always)]
    pub unsafe fn load<S: Simd>(self, s: S, at: usize, step: usize, steps: usize, lines: usize) {
        for line in step * lines / steps..(step + 1) * lines / steps {
            // SAFETY: a line of the block, or as far from its start in the same memory further on.
            unsafe { s.touch(self.0.wrapping_add(at + 64 * line)) };
        }
    }
}

/// The same pointer, to the compiler another one: parts of a chunk then load the bytes they share again
/// from the nearest cache, where the compiler would keep them all and spill.
#[inline(always)]
pub(crate) fn opaque(p: *const u8) -> *const u8 {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    {
        let mut p = p;
        // SAFETY: no instruction; the pointer comes out as it went in.
        unsafe { std::arch::asm!("/* {0} */", inout(reg) p, options(readonly, nostack, preserves_flags)) };
        p
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    p
}
