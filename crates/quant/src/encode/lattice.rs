//! The IQ formats of two and three bits: vectors of magnitudes come from a codebook, signs beside them.
//!
//! A group has one scale, an odd multiple of the block's step. Candidates of the scale are tried; for each the
//! nearest vector of the codebook is looked up by trying all, and the scale follows by least squares.

use super::{TINY, group_weights, inverse, nearest, put_half, twice_mean_square};
use crate::grids;

/// A codebook with its vectors element by element, so that lanes run along vectors.
pub(crate) struct Codebook<const N: usize, const R: usize> {
    rows: &'static [[i8; N]; R],
    planes: [[f32; R]; N],
}

impl<const N: usize, const R: usize> Codebook<N, R> {
    const fn new(rows: &'static [[i8; N]; R]) -> Codebook<N, R> {
        let mut planes = [[0.0; R]; N];
        let mut r = 0;
        while r < R {
            let mut i = 0;
            while i < N {
                planes[i][r] = rows[r][i] as f32;
                i += 1;
            }
            r += 1;
        }
        Codebook { rows, planes }
    }

    /// The vector nearest to `y` under weights, the first of equals.
    fn nearest(&self, y: &[f32], w: &[f32]) -> usize {
        let mut far = [0.0f32; R];
        for i in 0..N {
            let (wi, twice) = (w[i], 2.0 * w[i] * y[i]);
            for (far, g) in far.iter_mut().zip(&self.planes[i]) {
                *far += (wi * g - twice) * g;
            }
        }
        let least = far.iter().copied().fold(f32::INFINITY, f32::min);
        far.iter().position(|f| *f == least).unwrap_or(0)
    }
}

static IQ2_XXS: Codebook<8, 256> = Codebook::new(&grids::IQ2_XXS);
static IQ2_XS: Codebook<8, 512> = Codebook::new(&grids::IQ2_XS);
static IQ2_S: Codebook<8, 1024> = Codebook::new(&grids::IQ2_S);
static IQ3_XXS: Codebook<4, 256> = Codebook::new(&grids::IQ3_XXS);
static IQ3_S: Codebook<4, 512> = Codebook::new(&grids::IQ3_S);

/// A group of values: magnitudes, the sign bits of each eight, and weights.
struct Group {
    len: usize,
    magnitudes: [f32; 32],
    signs: [u8; 4],
    w: [f32; 32],
}

impl Group {
    /// With `even` the number of signs in each eight is even: where it is not, the value that costs least is taken as
    /// of the other sign, its magnitude negative.
    fn new(x: &[f32], around: f32, importance: Option<&[f32]>, even: bool) -> Group {
        let mut group = Group { len: x.len(), magnitudes: [0.0; 32], signs: [0; 4], w: [0.0; 32] };
        group_weights(x, around, importance, &mut group.w[..x.len()]);
        for (l, x) in x.chunks_exact(8).enumerate() {
            let magnitudes = &mut group.magnitudes[8 * l..8 * l + 8];
            magnitudes.iter_mut().zip(x).for_each(|(m, x)| *m = x.abs());
            let mut signs = x.iter().enumerate().fold(0, |bits, (j, x)| bits | u8::from(*x < 0.0) << j);
            if even && signs.count_ones() % 2 == 1 {
                let w = &group.w[8 * l..8 * l + 8];
                let cost = |j: usize| w[j] * x[j] * x[j];
                let cheapest = (1..8).fold(0, |best, j| if cost(j) < cost(best) { j } else { best });
                signs ^= 1 << cheapest;
                magnitudes[cheapest] = -magnitudes[cheapest];
            }
            group.signs[l] = signs;
        }
        group
    }

    /// The vectors nearest under a scale's inverse, and the sums of their least-squares scale.
    fn vectors<const N: usize, const R: usize>(
        &self,
        book: &Codebook<N, R>,
        inverse: f32,
    ) -> ([u16; 8], f32, f32) {
        let (mut indices, mut qq, mut qx) = ([0; 8], 0.0, 0.0);
        for (l, index) in indices[..self.len / N].iter_mut().enumerate() {
            let at = N * l..N * l + N;
            let (m, w) = (&self.magnitudes[at.clone()], &self.w[at]);
            let y: [f32; N] = std::array::from_fn(|j| m[j] * inverse);
            let row = book.nearest(&y, w);
            *index = row as u16;
            for (j, g) in book.rows[row].iter().enumerate() {
                let g = f32::from(*g);
                qq += w[j] * g * g;
                qx += w[j] * g * m[j];
            }
        }
        (indices, qq, qx)
    }

    /// The scale that leaves the least weighted squared error.
    fn fit<const N: usize, const R: usize>(&self, book: &Codebook<N, R>) -> f32 {
        let largest = self.magnitudes.iter().copied().fold(0.0, f32::max);
        if largest < TINY {
            return 0.0;
        }
        let top = f32::from(book.rows.iter().flatten().copied().fold(0, i8::max));
        let (mut best, mut most) = (largest / top, 0.0);
        let mut consider = |inverse: f32| {
            let (_, qq, qx) = self.vectors(book, inverse);
            if qq > 0.0 && qx > 0.0 && qx * qx > most * qq {
                (best, most) = (qx / qq, qx * qx / qq);
            }
            best
        };
        let mut scale = largest / top;
        for i in 0..7 {
            scale = consider(top / largest * (0.7 + 0.1 * i as f32));
        }
        // The vectors of the best scale are not those it was fitted for.
        scale = consider(inverse(scale));
        consider(inverse(scale))
    }

    /// The weighted squared error of vectors under a scale, less that of all zeros.
    fn error(&self, scale: f32, qq: f32, qx: f32) -> f32 {
        scale * (scale * qq - 2.0 * qx)
    }

    /// Of the odd multiples of a step around a scale the one that leaves the least error (as `s` of `2 * s + 1`), and
    /// its vectors.
    fn quantise<const N: usize, const R: usize>(
        &self,
        book: &Codebook<N, R>,
        scale: f32,
        step: f32,
    ) -> (u8, [u16; 8]) {
        let s0 = nearest((0.5 * (scale * inverse(step) - 1.0)).clamp(0.0, 15.0));
        let (mut found, mut least) = ((0, [0; 8]), f32::INFINITY);
        for s in [s0, s0 - 1.0, s0 + 1.0] {
            if !(0.0..=15.0).contains(&s) {
                continue;
            }
            let scale = step * (2.0 * s + 1.0);
            let (indices, qq, qx) = self.vectors(book, inverse(scale));
            let error = self.error(scale, qq, qx);
            if error < least {
                (found, least) = ((s as u8, indices), error);
            }
        }
        found
    }
}

/// Groups of `len` values with their scale and vectors; writes the half, `factor` times the step, at byte 0.
fn encode<const N: usize, const R: usize>(
    book: &Codebook<N, R>,
    x: &[f32],
    importance: Option<&[f32]>,
    len: usize,
    even: bool,
    factor: f32,
    b: &mut [u8],
    mut put: impl FnMut(&mut [u8], usize, &Group, u8, &[u16; 8]),
) {
    let around = twice_mean_square(x);
    let group = |g: usize| {
        let importance = importance.map(|i| &i[g * len..][..len]);
        Group::new(&x[g * len..][..len], around, importance, even)
    };
    let mut scales = [0.0; 16];
    for (g, s) in scales[..256 / len].iter_mut().enumerate() {
        *s = group(g).fit(book);
    }
    let largest = scales.iter().copied().fold(0.0, f32::max);
    let step = put_half(b, 0, largest / 31.0 * factor) / factor;
    for (g, scale) in scales[..256 / len].iter().enumerate() {
        let group = group(g);
        let (s, indices) = group.quantise(book, *scale, step);
        put(b, g, &group, s, &indices);
    }
}

/// A word of four 7-bit sign indices and a scale.
fn word(group: &Group, s: u8) -> [u8; 4] {
    let signs = group.signs.iter().enumerate().fold(0, |bits, (l, s)| bits | u32::from(s & 127) << (7 * l));
    (signs | u32::from(s) << 28).to_le_bytes()
}

pub(crate) fn iq2_xxs(x: &[f32], importance: Option<&[f32]>, b: &mut [u8]) {
    encode(&IQ2_XXS, x, importance, 32, true, 8.0, b, |b, g, group, s, indices| {
        let b = &mut b[2 + 8 * g..10 + 8 * g];
        (0..4).for_each(|l| b[l] = indices[l] as u8);
        b[4..].copy_from_slice(&word(group, s));
    });
}

pub(crate) fn iq2_xs(x: &[f32], importance: Option<&[f32]>, b: &mut [u8]) {
    b[66..74].fill(0);
    encode(&IQ2_XS, x, importance, 16, true, 8.0, b, |b, g, group, s, indices| {
        for l in 0..2 {
            let q = indices[l] | u16::from(group.signs[l] & 127) << 9;
            b[2 + 4 * g + 2 * l..][..2].copy_from_slice(&q.to_le_bytes());
        }
        b[66 + g / 2] |= s << (4 * (g % 2));
    });
}

pub(crate) fn iq2_s(x: &[f32], importance: Option<&[f32]>, b: &mut [u8]) {
    b[66..82].fill(0);
    encode(&IQ2_S, x, importance, 16, false, 8.0, b, |b, g, group, s, indices| {
        for l in 0..2 {
            let i = 2 * g + l;
            b[2 + i] = indices[l] as u8;
            b[34 + i] = group.signs[l];
            b[66 + i / 4] |= ((indices[l] >> 8) as u8) << (2 * (i % 4));
        }
        b[74 + g / 2] |= s << (4 * (g % 2));
    });
}

pub(crate) fn iq3_xxs(x: &[f32], importance: Option<&[f32]>, b: &mut [u8]) {
    encode(&IQ3_XXS, x, importance, 32, true, 4.0, b, |b, g, group, s, indices| {
        (0..8).for_each(|l| b[2 + 8 * g + l] = indices[l] as u8);
        b[66 + 4 * g..70 + 4 * g].copy_from_slice(&word(group, s));
    });
}

pub(crate) fn iq3_s(x: &[f32], importance: Option<&[f32]>, b: &mut [u8]) {
    b[106..110].fill(0);
    encode(&IQ3_S, x, importance, 32, false, 1.0, b, |b, g, group, s, indices| {
        b[66 + g] = (0..8).fold(0, |bits, l| bits | ((indices[l] >> 8) as u8) << l);
        (0..8).for_each(|l| b[2 + 8 * g + l] = indices[l] as u8);
        b[74 + 4 * g..78 + 4 * g].copy_from_slice(&group.signs);
        b[106 + g / 2] |= s << (4 * (g % 2));
    });
}
