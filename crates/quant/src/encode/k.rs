//! The K formats: groups are fitted one by one, then their scales are rounded to a common one, then the codes follow
//! from what the block will decode to.

use super::affine::{self, Affine, Search};
use super::{group_weights, inverse, nearest, put_half, signed, twice_mean_square};

/// The weights of a block, group by group.
fn weights(x: &[f32], importance: Option<&[f32]>, group: usize) -> [f32; 256] {
    let (mut w, around) = ([0.0; 256], twice_mean_square(x));
    for (j, (w, x)) in w.chunks_exact_mut(group).zip(x.chunks_exact(group)).enumerate() {
        group_weights(x, around, importance.map(|i| &i[group * j..][..group]), w);
    }
    w
}

/// Codes `0..=top` of a group under its decoded scale and minimum.
fn affine_codes(x: &[f32], scale: f32, min: f32, top: f32, out: &mut [u8]) {
    let inverse = inverse(scale);
    for (o, x) in out.iter_mut().zip(x) {
        *o = nearest(((x + min) * inverse).clamp(0.0, top)) as u8;
    }
}

/// Codes of a group under its decoded scale, shifted to start at 0.
fn signed_codes(x: &[f32], scale: f32, half: f32, out: &mut [u8]) {
    let inverse = inverse(scale);
    for (o, x) in out.iter_mut().zip(x) {
        *o = (nearest((x * inverse).clamp(-half, half - 1.0)) + half) as u8;
    }
}

/// Groups under two halves: scale and minimum of each as whole multiples of the block's.
struct Shared<const N: usize> {
    step: f32,
    min_step: f32,
    scales: [u8; N],
    mins: [u8; N],
}

impl<const N: usize> Shared<N> {
    /// Fits the groups and writes the two halves at byte `at`.
    fn fit(x: &[f32], w: &[f32; 256], search: &Search, top: f32, b: &mut [u8], at: usize) -> Shared<N> {
        let len = 256 / N;
        let mut fits = [Affine::default(); N];
        for (fit, (x, w)) in fits.iter_mut().zip(x.chunks_exact(len).zip(w.chunks_exact(len))) {
            *fit = affine::fit(x, w, search);
        }
        let (scales, mins) = (fits.map(|f| f.scale), fits.map(|f| f.min));
        let step = put_half(b, at, largest(&scales) / top);
        let min_step = put_half(b, at + 2, largest(&mins) / top);
        let (scales, mins) = (multiples(scales, step, top), multiples(mins, min_step, top));
        let mut shared = Shared { step, min_step, scales, mins };
        for (j, (x, w)) in x.chunks_exact(len).zip(w.chunks_exact(len)).enumerate() {
            shared.improve(j, x, w, search.levels, top);
        }
        shared
    }

    /// Of the multiples next to those of group `j`, takes the pair that leaves the least error: rounding a scale moves
    /// the best minimum, and the other way round.
    fn improve(&mut self, j: usize, x: &[f32], w: &[f32], levels: f32, top: f32) {
        let (s0, m0) = (f32::from(self.scales[j]), f32::from(self.mins[j]));
        let mut least = f32::INFINITY;
        for s in [s0, s0 - 1.0, s0 + 1.0] {
            for m in [m0, m0 - 1.0, m0 + 1.0] {
                if s.min(m) < 0.0 || s.max(m) > top {
                    continue;
                }
                let error = affine::error(x, w, self.step * s, self.min_step * m, levels);
                if error < least {
                    least = error;
                    (self.scales[j], self.mins[j]) = (s as u8, m as u8);
                }
            }
        }
    }

    /// The codes `0..=top` of all values.
    fn codes(&self, x: &[f32], top: f32) -> [u8; 256] {
        let mut codes = [0; 256];
        let groups = codes.chunks_exact_mut(256 / N).zip(x.chunks_exact(256 / N));
        for ((out, x), (s, m)) in groups.zip(self.scales.iter().zip(&self.mins)) {
            affine_codes(x, self.step * f32::from(*s), self.min_step * f32::from(*m), top, out);
        }
        codes
    }
}

fn largest(values: &[f32]) -> f32 {
    values.iter().copied().fold(0.0, f32::max)
}

/// Multiples `0..=top` of a step that come nearest to numbers that are not negative.
fn multiples<const N: usize>(values: [f32; N], step: f32, top: f32) -> [u8; N] {
    let inverse = inverse(step);
    values.map(|v| nearest((v * inverse).clamp(0.0, top)) as u8)
}

/// Eight scales and minima of six bits in twelve bytes.
fn pack_scales_mins(scales: &[u8; 8], mins: &[u8; 8], b: &mut [u8]) {
    for j in 0..4 {
        b[j] = scales[j] | scales[j + 4] >> 4 << 6;
        b[j + 4] = mins[j] | mins[j + 4] >> 4 << 6;
        b[j + 8] = scales[j + 4] & 15 | mins[j + 4] << 4;
    }
}

/// The low nibbles of 64 codes in 32 bytes, the first 32 codes low.
fn pack_nibbles(codes: &[u8; 256], b: &mut [u8]) {
    for (b, q) in b.chunks_exact_mut(32).zip(codes.chunks_exact(64)) {
        for (l, b) in b.iter_mut().enumerate() {
            *b = q[l] & 15 | q[l + 32] << 4;
        }
    }
}

pub(crate) fn q4_k(x: &[f32], importance: Option<&[f32]>, b: &mut [u8]) {
    let search = Search { levels: 15.0, first: -1.0, step: 0.1, n: 21, below_zero: true };
    let w = weights(x, importance, 32);
    let shared = Shared::<8>::fit(x, &w, &search, 63.0, b, 0);
    pack_scales_mins(&shared.scales, &shared.mins, &mut b[4..16]);
    pack_nibbles(&shared.codes(x, 15.0), &mut b[16..144]);
}

pub(crate) fn q5_k(x: &[f32], importance: Option<&[f32]>, b: &mut [u8]) {
    let search = Search { levels: 31.0, first: -0.9, step: 0.1, n: 20, below_zero: true };
    let w = weights(x, importance, 32);
    let shared = Shared::<8>::fit(x, &w, &search, 63.0, b, 0);
    pack_scales_mins(&shared.scales, &shared.mins, &mut b[4..16]);
    let codes = shared.codes(x, 31.0);
    for (l, high) in b[16..48].iter_mut().enumerate() {
        *high = (0..8).fold(0, |bits, j| bits | codes[32 * j + l] >> 4 << j);
    }
    pack_nibbles(&codes, &mut b[48..176]);
}

/// The scales of 16 groups as whole multiples, of `half` values each sign, of a half that is written at byte `at`.
/// The largest meets `-half`; of the multiples next to a scale the one that leaves the least error is taken.
fn signed_scales(
    x: &[f32],
    w: &[f32; 256],
    codes: f32,
    half: f32,
    b: &mut [u8],
    at: usize,
) -> (f32, [f32; 16]) {
    let groups = || x.chunks_exact(16).zip(w.chunks_exact(16));
    let mut scales = [0.0; 16];
    for (s, (x, w)) in scales.iter_mut().zip(groups()) {
        *s = signed::fit(x, w, codes);
    }
    let step = put_half(b, at, super::extreme(&scales) / -half);
    let inverse = inverse(step);
    for (s, (x, w)) in scales.iter_mut().zip(groups()) {
        let s0 = nearest((*s * inverse).clamp(-half, half - 1.0));
        let mut least = f32::INFINITY;
        for near in [s0, s0 - 1.0, s0 + 1.0] {
            let error = signed::error(x, w, step * near, codes);
            if near >= -half && near < half && error < least {
                (*s, least) = (near, error);
            }
        }
    }
    (step, scales)
}

/// The codes of 16 groups, shifted to start at 0.
fn signed_block(x: &[f32], step: f32, scales: &[f32; 16], half: f32) -> [u8; 256] {
    let mut codes = [0; 256];
    for ((out, x), s) in codes.chunks_exact_mut(16).zip(x.chunks_exact(16)).zip(scales) {
        signed_codes(x, step * s, half, out);
    }
    codes
}

pub(crate) fn q6_k(x: &[f32], importance: Option<&[f32]>, b: &mut [u8]) {
    let w = weights(x, importance, 16);
    let (step, scales) = signed_scales(x, &w, 32.0, 128.0, b, 208);
    b[192..208].iter_mut().zip(&scales).for_each(|(b, s)| *b = *s as i8 as u8);
    let codes = signed_block(x, step, &scales, 32.0);
    for (half, q) in codes.chunks_exact(128).enumerate() {
        for l in 0..32 {
            let (a, b_, c, d) = (q[l], q[l + 32], q[l + 64], q[l + 96]);
            b[half * 64 + l] = a & 15 | c << 4;
            b[half * 64 + l + 32] = b_ & 15 | d << 4;
            b[128 + half * 32 + l] = a >> 4 | b_ >> 4 << 2 | c >> 4 << 4 | d >> 4 << 6;
        }
    }
}

/// Two bits of each code in 64 bytes, as Q2_K and Q3_K lay them.
fn pack_pairs(codes: &[u8; 256], b: &mut [u8]) {
    for (b, q) in b.chunks_exact_mut(32).zip(codes.chunks_exact(128)) {
        for (l, b) in b.iter_mut().enumerate() {
            *b = (0..4).fold(0, |bits, round| bits | (q[32 * round + l] & 3) << (2 * round));
        }
    }
}

pub(crate) fn q2_k(x: &[f32], importance: Option<&[f32]>, b: &mut [u8]) {
    let search = Search { levels: 3.0, first: -0.5, step: 0.1, n: 16, below_zero: true };
    let w = weights(x, importance, 16);
    let shared = Shared::<16>::fit(x, &w, &search, 15.0, b, 80);
    for (b, (s, m)) in b[..16].iter_mut().zip(shared.scales.iter().zip(&shared.mins)) {
        *b = s | m << 4;
    }
    pack_pairs(&shared.codes(x, 3.0), &mut b[16..80]);
}

pub(crate) fn q3_k(x: &[f32], importance: Option<&[f32]>, b: &mut [u8]) {
    let w = weights(x, importance, 16);
    let (step, scales) = signed_scales(x, &w, 4.0, 32.0, b, 108);
    let packed = scales.map(|s| (s + 32.0) as u8);
    for k in 0..8 {
        b[96 + k] = packed[k] & 15 | packed[k + 8] << 4;
    }
    for k in 0..4 {
        b[104 + k] = (0..4).fold(0, |bits, j| bits | packed[4 * j + k] >> 4 << (2 * j));
    }
    let codes = signed_block(x, step, &scales, 4.0);
    for (l, high) in b[..32].iter_mut().enumerate() {
        *high = (0..8).fold(0, |bits, j| bits | codes[32 * j + l] >> 2 << j);
    }
    pack_pairs(&codes, &mut b[32..96]);
}
