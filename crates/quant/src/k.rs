//! The K formats: super-blocks of 256.

use crate::simple::half_at;

/// Scales of 16, 2-bit values; `x = d * sc * q - dmin * m`.
pub(crate) fn q2_k(b: &[u8], out: &mut [f32]) {
    let (scales, qs) = (&b[..16], &b[16..80]);
    let (d, dmin) = (half_at(b, 80), half_at(b, 82));
    for (group, (o, s)) in out.chunks_exact_mut(16).zip(scales).enumerate() {
        let (half, round, part) = (group / 8, group % 8 / 2, group % 2);
        let (scale, min) = (d * f32::from(s & 15), dmin * f32::from(s >> 4));
        for (l, o) in o.iter_mut().enumerate() {
            let q = qs[half * 32 + part * 16 + l] >> (2 * round) & 3;
            *o = scale * f32::from(q) - min;
        }
    }
}

/// Scales of 16 with 6 bits, 3-bit values whose high bit lies apart.
pub(crate) fn q3_k(b: &[u8], out: &mut [f32]) {
    let (high, qs, packed, d) = (&b[..32], &b[32..96], &b[96..108], half_at(b, 108));
    for (group, o) in out.chunks_exact_mut(16).enumerate() {
        let (half, round, part) = (group / 8, group % 8 / 2, group % 2);
        let low = if group < 8 { packed[group] & 15 } else { packed[group - 8] >> 4 };
        let top = packed[8 + group % 4] >> (2 * (group / 4)) & 3;
        let scale = d * (f32::from(low | top << 4) - 32.0);
        for (l, o) in o.iter_mut().enumerate() {
            let at = part * 16 + l;
            let q = qs[half * 32 + at] >> (2 * round) & 3;
            let borrow = if high[at] >> (half * 4 + round) & 1 == 1 { 0.0 } else { 4.0 };
            *o = scale * (f32::from(q) - borrow);
        }
    }
}

/// Scale and minimum `j` of 8, six bits each, from their twelve bytes.
fn scale_min(s: &[u8], j: usize) -> (f32, f32) {
    let (scale, min) = match j < 4 {
        true => (s[j] & 63, s[j + 4] & 63),
        false => (s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4),
    };
    (f32::from(scale), f32::from(min))
}

pub(crate) fn q4_k(b: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(b, 0), half_at(b, 2));
    for (j, o) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_min(&b[4..16], j);
        let (scale, min) = (d * scale, dmin * min);
        for (o, q) in o.iter_mut().zip(&b[16 + j / 2 * 32..]) {
            *o = scale * f32::from(q >> (4 * (j % 2)) & 15) - min;
        }
    }
}

pub(crate) fn q5_k(b: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(b, 0), half_at(b, 2));
    let (high, qs) = (&b[16..48], &b[48..176]);
    for (j, o) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_min(&b[4..16], j);
        let (scale, min) = (d * scale, dmin * min);
        for (l, o) in o.iter_mut().enumerate() {
            let q = qs[j / 2 * 32 + l] >> (4 * (j % 2)) & 15 | (high[l] >> j & 1) << 4;
            *o = scale * f32::from(q) - min;
        }
    }
}

pub(crate) fn q6_k(b: &[u8], out: &mut [f32]) {
    let (scales, d) = (&b[192..208], half_at(b, 208));
    for (half, o) in out.chunks_exact_mut(128).enumerate() {
        let (low, high) = (&b[half * 64..half * 64 + 64], &b[128 + half * 32..128 + half * 32 + 32]);
        for (i, o) in o.iter_mut().enumerate() {
            let (quarter, l) = (i / 32, i % 32);
            let nibble = low[l + 32 * (quarter % 2)] >> (4 * (quarter / 2)) & 15;
            let q = nibble | (high[l] >> (2 * quarter) & 3) << 4;
            let scale = d * f32::from(scales[half * 8 + quarter * 2 + l / 16] as i8);
            *o = scale * (f32::from(q) - 32.0);
        }
    }
}
