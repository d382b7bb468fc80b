//! The arithmetic of attention: a tile of rows against blocks of keys, and the merge of blocks.
//!
//! Every row is computed as if it were alone, in the sequence that `docs/numerics.md` gives; how many rows share a
//! pass over the keys never shows.

use std::marker::PhantomData;

use firth_graph::PAGE;
use firth_simd::{LANES, Level, Simd, math, prefetch_far};

use super::source::Source;

/// Rows of a tile at most.
pub const TILE: usize = 12;
/// Registers of keys in a block.
const KEY_REGISTERS: usize = PAGE / LANES;
/// log2 e: scores are taken to base 2.
pub const LOG2_E: f32 = std::f32::consts::LOG2_E;

/// What a query is multiplied by, once: scores are powers of two, unless a cap comes between.
pub fn query_factor(scale: f32, softcap: f32) -> f32 {
    if softcap == 0.0 { scale * LOG2_E } else { scale }
}

/// A score as a power of two where scores are capped; as it is where they are not (`softcap` 0).
#[inline(always)]
pub fn soft_cap<S: Simd>(s: S, v: S::F, softcap: f32) -> S::F {
    if softcap == 0.0 {
        return v;
    }
    let cap = s.splat(softcap);
    s.mul(s.mul(cap, math::tanh(s, s.div(v, cap))), s.splat(LOG2_E))
}

/// One row of a tile: the keys it sees are `first ..= last` by index in the sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Query<'a> {
    /// First key.
    pub first: usize,
    /// Last key.
    pub last: usize,
    /// Its own index.
    pub index: usize,
    /// What its scores lose per key of distance, in units of log2 e.
    pub slope: f32,
    /// What is added to the scores of near keys, from those before it to those behind; empty for nothing.
    pub near: &'a [f32],
}

impl Query<'_> {
    /// The keys of a block that it sees, by position; empty when it sees none.
    fn visible(&self, block: usize) -> (usize, usize) {
        let base = block * PAGE;
        let to = (self.last + 1).clamp(base, base + PAGE) - base;
        ((self.first.clamp(base, base + PAGE) - base).min(to), to)
    }
}

/// What a block says of each row: its maximum and the sum of its weights.
#[derive(Clone, Copy)]
pub struct Sums {
    /// Maxima.
    pub m: [f32; LANES],
    /// Sums.
    pub l: [f32; LANES],
}

impl Sums {
    /// Nothing seen.
    pub const NONE: Sums = Sums { m: [f32::NEG_INFINITY; LANES], l: [0.0; LANES] };
}

/// A tile's memory, for [`TILE`] rows.
pub struct Space<'a> {
    /// Queries times the scale, `[TILE]` of each of `key_dim` elements.
    pub q: &'a mut [f32],
    /// Scores, then weights of a block, `[64]` a row.
    pub p: &'a mut [f32],
    /// Weighted values of a block, `[value_dim]` a row.
    pub ob: &'a mut [f32],
    /// Weighted values so far, `[value_dim]` a row.
    pub o: &'a mut [f32],
}

/// Floats of a tile's memory.
pub const fn space(key_dim: usize, value_dim: usize) -> usize {
    TILE * (key_dim + PAGE + 2 * value_dim)
}

impl<'a> Space<'a> {
    /// Divides `floats`, at least [`space`] of them.
    pub fn new(floats: &'a mut [f32], key_dim: usize, value_dim: usize) -> Self {
        let (q, rest) = floats.split_at_mut(TILE * key_dim);
        let (p, rest) = rest.split_at_mut(TILE * PAGE);
        let (ob, rest) = rest.split_at_mut(TILE * value_dim);
        Space { q, p, ob, o: &mut rest[..TILE * value_dim] }
    }
}

/// Keys and values of one head in one page.
#[derive(Clone, Copy)]
pub struct Page {
    /// Its keys.
    pub keys: *const u8,
    /// Its values.
    pub values: *const u8,
}

/// Shapes and constants of one op.
#[derive(Clone, Copy)]
pub struct Shape<K> {
    /// Width of a key.
    pub key_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// `c tanh(x / c)` over the scores, where not 0.
    pub softcap: f32,
    /// Whether distance counts, by slope or by what stands for near keys.
    pub biased: bool,
    /// Type of the pages.
    pub source: PhantomData<K>,
}

/// Rows that share a pass at a level: its registers decide.
const fn rows_at_once(level: Level, most: usize) -> usize {
    if matches!(level, Level::Avx512) { most } else { 3 }
}

/// Calls `$f::<S, R, ..>` for pieces of `$n` rows: 6, 4, 3, 2 and 1 at a time, as the level's registers allow.
macro_rules! pieces {
    ($level:expr, $n:expr, $most:literal, |$row:ident, $r:ident| $call:expr) => {{
        let mut $row = 0;
        if const { rows_at_once($level, $most) >= 6 } {
            while $row + 6 <= $n {
                const $r: usize = 6;
                $call;
                $row += 6;
            }
        }
        if const { rows_at_once($level, $most) >= 4 } {
            while $row + 4 <= $n {
                const $r: usize = 4;
                $call;
                $row += 4;
            }
        }
        while $row + 3 <= $n {
            const $r: usize = 3;
            $call;
            $row += 3;
        }
        while $row + 2 <= $n {
            const $r: usize = 2;
            $call;
            $row += 2;
        }
        while $row < $n {
            const $r: usize = 1;
            $call;
            $row += 1;
        }
    }};
}

impl<K: Source> Shape<K> {
    /// One block against all rows: scores, weights in `space.p`, weighted values in `space.ob`. `next` is a page
    /// to fetch meanwhile.
    ///
    /// # Safety
    /// `page` is a whole page of this shape; visible positions of it are written.
    #[inline(always)]
    pub unsafe fn block<S: Simd>(
        &self,
        s: S,
        rows: &[Query],
        block: usize,
        page: Page,
        next: Option<Page>,
        space: &mut Space,
    ) -> Sums {
        // SAFETY: handed on to the caller.
        unsafe {
            self.scores(s, rows.len(), page, next, space);
            if self.biased {
                rows.iter().zip(space.p.chunks_exact_mut(PAGE)).for_each(|(row, p)| match row.near {
                    [] => bias(s, row, block, p),
                    near => nearness(s, row.index, near, block, p),
                });
            }
            let mut sums = Sums::NONE;
            // Keys that all rows see are weighed together.
            let (mut from, mut to) = (0, PAGE);
            for (r, row) in rows.iter().enumerate() {
                let (lo, hi) = row.visible(block);
                (from, to) = (from.max(lo), to.min(hi));
                (sums.m[r], sums.l[r]) = weigh(s, &mut space.p[r * PAGE..(r + 1) * PAGE], lo, hi);
            }
            if from >= to {
                for (r, row) in rows.iter().enumerate() {
                    let (lo, hi) = row.visible(block);
                    self.values::<S, 1>(s, page, space, r, lo, hi, true);
                }
                return sums;
            }
            let edge = rows.iter().any(|row| row.visible(block) != (from, to));
            if edge {
                for (r, row) in rows.iter().enumerate() {
                    self.values::<S, 1>(s, page, space, r, row.visible(block).0, from, true);
                }
            }
            pieces!(S::LEVEL, rows.len(), 6, |row, R| self
                .values::<S, R>(s, page, space, row, from, to, !edge));
            if edge {
                for (r, row) in rows.iter().enumerate() {
                    self.values::<S, 1>(s, page, space, r, to, row.visible(block).1, false);
                }
            }
            sums
        }
    }

    /// Scores of `n` rows with the 64 keys of a block.
    #[inline(always)]
    unsafe fn scores<S: Simd>(&self, s: S, n: usize, page: Page, next: Option<Page>, space: &mut Space) {
        // SAFETY: handed on to the caller.
        unsafe {
            if const { matches!(S::LEVEL, Level::Avx512) } {
                pieces!(S::LEVEL, n, 6, |row, R| self.score_rows::<S, R, 4>(s, page, next, space, row, 0));
            } else {
                // Half a block at a time: fewer registers.
                pieces!(S::LEVEL, n, 6, |row, R| self.score_rows::<S, R, 2>(s, page, next, space, row, 0));
                pieces!(S::LEVEL, n, 6, |row, R| self.score_rows::<S, R, 2>(s, page, None, space, row, 2));
            }
        }
    }

    /// Scores of rows `row .. row + R` with `W` registers of keys from `first`: chains of fma over the head,
    /// ascending.
    #[inline(always)]
    unsafe fn score_rows<S: Simd, const R: usize, const W: usize>(
        &self,
        s: S,
        page: Page,
        next: Option<Page>,
        space: &mut Space,
        row: usize,
        first: usize,
    ) {
        let q = &space.q[row..];
        assert!(q.len() >= (self.key_dim - 1) * TILE + R, "queries of a tile");
        let line = K::BYTES * PAGE;
        let mut acc = [[s.zero(); W]; R];
        for d in 0..self.key_dim {
            let mut k = [s.zero(); W];
            for i in 0..W {
                // SAFETY: `d` is below the head's width and the page is whole.
                k[i] = unsafe { K::keys(s, page.keys, self.key_dim, d, first + i) };
            }
            // The next block's keys, and about as much of its values: some lines each step, into the second-level
            // cache, since the first holds little more than one block.
            if const { R <= 4 }
                && let Some(next) = next
            {
                for at in (0..line).step_by(64) {
                    prefetch_far(next.keys.wrapping_add(d * line + at));
                    prefetch_far(next.values.wrapping_add(d * line + at));
                }
            }
            for r in 0..R {
                // SAFETY: checked above.
                let q = s.splat(unsafe { *q.get_unchecked(d * TILE + r) });
                for i in 0..W {
                    acc[r][i] = s.fma(q, k[i], acc[r][i]);
                }
            }
        }
        for (r, acc) in acc.iter().enumerate() {
            for (i, v) in acc.iter().enumerate() {
                let v = soft_cap(s, *v, self.softcap);
                s.store_first(&mut space.p[(row + r) * PAGE + (first + i) * LANES..], v);
            }
        }
    }

    /// Weighted values of rows `row .. row + R` over keys `lo..hi`: chains of fma over the keys, from zero or from
    /// where keys before `lo` ended.
    #[inline(always)]
    unsafe fn values<S: Simd, const R: usize>(
        &self,
        s: S,
        page: Page,
        space: &mut Space,
        row: usize,
        lo: usize,
        hi: usize,
        from_zero: bool,
    ) {
        // SAFETY: handed on to the caller.
        unsafe {
            if const { matches!(S::LEVEL, Level::Avx512) } {
                self.strips::<S, R, 4>(s, page, space, row, lo, hi, from_zero);
            } else {
                self.strips::<S, R, 2>(s, page, space, row, lo, hi, from_zero);
            }
        }
    }

    /// The same, `W` registers of the value at a time.
    #[inline(always)]
    unsafe fn strips<S: Simd, const R: usize, const W: usize>(
        &self,
        s: S,
        page: Page,
        space: &mut Space,
        row: usize,
        lo: usize,
        hi: usize,
        from_zero: bool,
    ) {
        if lo >= hi && !from_zero {
            return;
        }
        let dim = self.value_dim;
        let p = &space.p[row * PAGE..(row + R) * PAGE];
        assert!(hi <= PAGE, "keys of a block");
        for j in (0..dim).step_by(W * LANES) {
            let n = (dim - j).div_ceil(LANES).min(W);
            let mut acc = [[s.zero(); W]; R];
            if !from_zero {
                for (r, acc) in acc.iter_mut().enumerate() {
                    for (i, acc) in acc.iter_mut().enumerate().take(n) {
                        let at = (row + r) * dim + j + i * LANES;
                        *acc = s.load_partial(&space.ob[at..at + (dim - j - i * LANES).min(LANES)], 0.0);
                    }
                }
            }
            for key in lo..hi {
                let mut v = [s.zero(); W];
                for i in 0..W {
                    // A strip that ends inside the row reads its first register again: never stored.
                    let at = if i < n { j + i * LANES } else { j };
                    // SAFETY: the key is in the page and the element below the width; lanes past the row are
                    // never stored.
                    v[i] = unsafe { K::values(s, page.values, dim, key, at) };
                }
                for r in 0..R {
                    // SAFETY: `key` is below 64, and `p` has 64 for each of R rows.
                    let p = s.splat(unsafe { *p.get_unchecked(r * PAGE + key) });
                    for i in 0..W {
                        acc[r][i] = s.fma(p, v[i], acc[r][i]);
                    }
                }
            }
            for (r, acc) in acc.iter().enumerate() {
                for (i, acc) in acc.iter().enumerate().take(n) {
                    let at = (row + r) * dim + j + i * LANES;
                    let len = (dim - j - i * LANES).min(LANES);
                    s.store_partial(&mut space.ob[at..at + len], *acc);
                }
            }
        }
    }

    /// Joins a block's sums and weighted values (`ob`, `[value_dim]` a row) to what its rows have so far.
    #[inline(always)]
    pub fn merge<S: Simd>(
        &self,
        s: S,
        rows: &[Query],
        block: usize,
        sums: &Sums,
        ob: &[f32],
        so_far: &mut Sums,
        o: &mut [f32],
    ) {
        let (new, a, b) = factors(s, &so_far.m, &sums.m);
        for (r, row) in rows.iter().enumerate() {
            let (lo, hi) = row.visible(block);
            if lo >= hi {
                continue;
            }
            let at = r * self.value_dim..(r + 1) * self.value_dim;
            let (o, ob) = (&mut o[at.clone()], &ob[at]);
            if block == row.first / PAGE {
                o.copy_from_slice(ob);
                (so_far.m[r], so_far.l[r]) = (sums.m[r], sums.l[r]);
                continue;
            }
            let (ar, br) = (s.splat(a[r]), s.splat(b[r]));
            for (o, ob) in o.chunks_mut(LANES).zip(ob.chunks(LANES)) {
                let v = s.load_partial(o, 0.0);
                s.store_partial(o, s.fma(s.load_partial(ob, 0.0), br, s.mul(v, ar)));
            }
            so_far.l[r] = sums.l[r].mul_add(b[r], so_far.l[r] * a[r]);
            so_far.m[r] = new[r];
        }
    }

    /// Sinks, then the one division.
    #[inline(always)]
    pub fn finish<S: Simd>(
        &self,
        s: S,
        n: usize,
        so_far: &mut Sums,
        sinks: Option<&[f32; LANES]>,
        o: &mut [f32],
    ) {
        let mut keep = [1.0; LANES];
        if let Some(sinks) = sinks {
            let scores = s.to_array(s.mul(s.load(sinks), s.splat(LOG2_E)));
            let (_, a, b) = factors(s, &so_far.m, &scores);
            for r in 0..n {
                so_far.l[r] = b[r] + so_far.l[r] * a[r];
            }
            keep = a;
        }
        for r in 0..n {
            let (a, by) = (s.splat(keep[r]), s.splat(1.0 / so_far.l[r]));
            for o in o[r * self.value_dim..(r + 1) * self.value_dim].chunks_mut(LANES) {
                let v = s.mul(s.load_partial(o, 0.0), a);
                s.store_partial(o, s.mul(v, by));
            }
        }
    }
}

/// Takes from the scores of one row with the keys of a block what their distance costs.
#[inline(always)]
fn bias<S: Simd>(s: S, row: &Query, block: usize, p: &mut [f32]) {
    let mut far = [0.0f32; PAGE];
    for (at, far) in far.iter_mut().enumerate() {
        *far = row.index.abs_diff(block * PAGE + at) as f32;
    }
    for (p, far) in p.chunks_exact_mut(LANES).zip(far.chunks_exact(LANES)) {
        let v = s.fma(s.splat(-row.slope), s.load_first(far), s.load_first(p));
        s.store_first(p, v);
    }
}

/// Adds to the scores of the row at `index` with the keys of a block what stands for them in `near`.
#[inline(always)]
fn nearness<S: Simd>(s: S, index: usize, near: &[f32], block: usize, p: &mut [f32]) {
    let (reach, last) = (near.len() / 2, near.len() - 1);
    let mut by = [0.0f32; PAGE];
    for (at, by) in by.iter_mut().enumerate() {
        *by = near[(block * PAGE + at + reach).saturating_sub(index).min(last)];
    }
    for (p, by) in p.chunks_exact_mut(LANES).zip(by.chunks_exact(LANES)) {
        let v = s.fma(s.load_first(by), s.splat(LOG2_E), s.load_first(p));
        s.store_first(p, v);
    }
}

/// Turns the scores of one row into weights in place; keys outside `lo..hi` weigh nothing. Returns the block's
/// maximum and the sum of its weights.
#[inline(always)]
fn weigh<S: Simd>(s: S, p: &mut [f32], lo: usize, hi: usize) -> (f32, f32) {
    let whole = lo == 0 && hi == PAGE;
    if !whole {
        p[..lo].fill(f32::NEG_INFINITY);
        p[hi..].fill(f32::NEG_INFINITY);
    }
    let mut v = [s.zero(); KEY_REGISTERS];
    for (i, v) in v.iter_mut().enumerate() {
        *v = s.load_first(&p[i * LANES..]);
    }
    let max = s.reduce_max(s.max(s.max(v[0], v[1]), s.max(v[2], v[3])));
    let mb = s.splat(max);
    for (i, v) in v.iter_mut().enumerate() {
        *v = math::exp2(s, s.sub(*v, mb));
        s.store_first(&mut p[i * LANES..], *v);
    }
    if !whole {
        p[..lo].fill(0.0);
        p[hi..].fill(0.0);
        for (i, v) in v.iter_mut().enumerate() {
            *v = s.load_first(&p[i * LANES..]);
        }
    }
    // The tree over 64: i + 32, + 16, then the sixteen lanes.
    let sum = s.add(s.add(v[0], v[2]), s.add(v[1], v[3]));
    (max, s.sum_tree(sum))
}

/// Of each row `max(m, mb)` and the factors `exp2(m - max)`, `exp2(mb - max)`. NaN stays visible.
#[inline(always)]
fn factors<S: Simd>(s: S, m: &[f32; LANES], mb: &[f32; LANES]) -> ([f32; LANES], [f32; LANES], [f32; LANES]) {
    let (m, mb) = (s.load(m), s.load(mb));
    let new = s.max(m, mb);
    let (a, b) = (math::exp2(s, s.sub(m, new)), math::exp2(s, s.sub(mb, new)));
    (s.to_array(new), s.to_array(a), s.to_array(b))
}
