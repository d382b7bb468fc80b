//! The definition of a matrix product, straight from file blocks: one output, one row, plain loops.

use firth_quant::{Dtype, decode};
use firth_simd::convert::f16_to_f32;

use super::layout::Kind;
use crate::act::Form;

const NL: [i32; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Integers and scale of one block of activations.
fn quantise(x: &[f32]) -> (Vec<i32>, f32) {
    let amax = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    if amax < 2.0f32.powi(-120) {
        return (vec![0; x.len()], 0.0);
    }
    let id = 127.0 / amax;
    (x.iter().map(|v| (v * id).round_ties_even() as i32).collect(), amax / 127.0)
}

fn f16(b: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([b[at], b[at + 1]]))
}

/// Nibbles of 16 bytes: low ones are values 0..16, high ones 16..32.
fn nibble(qs: &[u8], i: usize) -> i32 {
    (if i < 16 { qs[i] & 15 } else { qs[i - 16] >> 4 }) as i32
}

fn exponent(e: u8) -> f32 {
    f32::from_bits(match e {
        0 => 0x0020_0000,
        1 => 0x0040_0000,
        _ => (e as u32 - 1) << 23,
    })
}

/// Scale, minimum and integers of a 32-value block.
fn block32(kind: Kind, b: &[u8]) -> (f32, Option<f32>, Vec<i32>) {
    let fifth =
        |at: usize, i: usize| ((u32::from_le_bytes(b[at..at + 4].try_into().unwrap()) >> i) & 1) as i32 * 16;
    let all = |f: &dyn Fn(usize) -> i32| (0..32).map(f).collect();
    match kind {
        Kind::Q8_0 => (f16(b, 0), None, all(&|i| b[2 + i] as i8 as i32)),
        Kind::Q4_0 => (f16(b, 0), None, all(&|i| nibble(&b[2..], i) - 8)),
        Kind::Q4_1 => (f16(b, 0), Some(f16(b, 2)), all(&|i| nibble(&b[4..], i))),
        Kind::Q5_0 => (f16(b, 0), None, all(&|i| nibble(&b[6..], i) + fifth(2, i) - 16)),
        Kind::Q5_1 => (f16(b, 0), Some(f16(b, 2)), all(&|i| nibble(&b[8..], i) + fifth(4, i))),
        Kind::IQ4_NL => (f16(b, 0), None, all(&|i| NL[nibble(&b[2..], i) as usize])),
        Kind::MXFP4 => {
            let fp4 = [0, 1, 2, 3, 4, 6, 8, 12];
            let value = |q: usize| if q < 8 { fp4[q] } else { -fp4[q - 8] };
            (exponent(b[0]), None, all(&|i| value(nibble(&b[1..], i) as usize)))
        }
        _ => unreachable!("{kind:?} has no blocks of 32"),
    }
}

/// A 256-value block: scales and minima of its sixteens, integers.
struct Super {
    d: f32,
    dmin: Option<f32>,
    sc: [i32; 16],
    m: [i32; 16],
    q: Vec<i32>,
}

fn block256(dtype: Dtype, b: &[u8]) -> Super {
    let kind = Kind::of(dtype);
    let (mut sc, mut m, mut q) = ([0; 16], [0; 16], vec![0; 256]);
    let (d, dmin) = match kind {
        Kind::Q4_K | Kind::Q5_K => {
            for j in 0..16 {
                let (scale, min) = scale_min(&b[4..16], j / 2);
                (sc[j], m[j]) = (scale as i32, min as i32);
            }
            let qs = if kind == Kind::Q4_K { 16 } else { 48 };
            for (i, q) in q.iter_mut().enumerate() {
                let byte = b[qs + i / 64 * 32 + i % 32];
                *q = (if i % 64 < 32 { byte & 15 } else { byte >> 4 }) as i32;
                if kind == Kind::Q5_K {
                    *q += ((b[16 + i % 32] >> (i / 32)) & 1) as i32 * 16;
                }
            }
            (f16(b, 0), Some(f16(b, 2)))
        }
        Kind::Q6_K => {
            for j in 0..16 {
                sc[j] = b[192 + j] as i8 as i32;
            }
            for (i, q) in q.iter_mut().enumerate() {
                let (half, quarter, l) = (i / 128, i % 128 / 32, i % 32);
                let low = b[64 * half + 32 * (quarter % 2) + l];
                let low = if quarter < 2 { low & 15 } else { low >> 4 };
                let high = (b[128 + 32 * half + l] >> (2 * quarter)) & 3;
                *q = (low | high << 4) as i32 - 32;
            }
            (f16(b, 208), None)
        }
        Kind::Q2_K => {
            for j in 0..16 {
                (sc[j], m[j]) = ((b[j] & 15) as i32, (b[j] >> 4) as i32);
            }
            for (i, q) in q.iter_mut().enumerate() {
                *q = ((b[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3) as i32;
            }
            (f16(b, 80), Some(f16(b, 82)))
        }
        Kind::Q3_K => {
            for (j, sc) in sc.iter_mut().enumerate() {
                let low = (b[96 + j % 8] >> (j / 8 * 4)) & 15;
                let high = (b[104 + j % 4] >> (j / 4 * 2)) & 3;
                *sc = (low | high << 4) as i32 - 32;
            }
            for (i, q) in q.iter_mut().enumerate() {
                let low = (b[32 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
                let high = (b[i % 32] >> (i / 32)) & 1;
                *q = low as i32 - if high == 1 { 0 } else { 4 };
            }
            (f16(b, 108), None)
        }
        Kind::IQ4_XS => {
            let high = u16::from_le_bytes([b[2], b[3]]);
            for (j, sc) in sc.iter_mut().enumerate() {
                let ib = j / 2;
                let low = (b[4 + ib / 2] >> (4 * (ib % 2))) & 15;
                *sc = (low as i32 | (((high >> (2 * ib)) & 3) as i32) << 4) - 32;
            }
            for (i, q) in q.iter_mut().enumerate() {
                *q = NL[nibble(&b[8 + i / 32 * 16..], i % 32) as usize];
            }
            (f16(b, 0), None)
        }
        Kind::Integers => {
            let mut block = firth_quant::Integers::ZERO;
            firth_quant::integers(dtype).unwrap().0(b, &mut block);
            for (i, q) in q.iter_mut().enumerate() {
                *q = block.values[i / 8].to_le_bytes()[i % 8] as i32 - 128;
            }
            for (sc, scale) in sc.iter_mut().zip(block.scales) {
                *sc = scale as i32;
            }
            (block.d, None)
        }
        _ => unreachable!("{kind:?} has no blocks of 256"),
    };
    Super { d, dmin, sc, m, q }
}

/// The product of a file row and a row of activations.
pub(crate) fn dot(dtype: Dtype, row: &[u8], x: &[f32]) -> f32 {
    let kind = Kind::of(dtype);
    let mut acc = 0.0f32;
    match kind.form() {
        Form::F32 => {
            let mut w = vec![0.0; x.len()];
            decode(dtype, row, &mut w);
            for (x, w) in x.iter().zip(w) {
                acc = x.mul_add(w, acc);
            }
        }
        Form::Q32 => {
            for (b, x) in row.chunks(dtype.block_bytes()).zip(x.chunks(32)) {
                let ((scale, min, w), (a, d)) = (block32(kind, b), quantise(x));
                let sum: i32 = w.iter().zip(&a).map(|(w, a)| w * a).sum();
                acc = (sum as f32).mul_add(scale * d, acc);
                if let Some(min) = min {
                    acc = min.mul_add(d * a.iter().sum::<i32>() as f32, acc);
                }
            }
        }
        Form::Q256 => {
            for (b, x) in row.chunks(dtype.block_bytes()).zip(x.chunks(256)) {
                let (s, (a, d)) = (block256(dtype, b), quantise(x));
                let (mut i_sum, mut j_sum) = (0i32, 0i32);
                for i in 0..256 {
                    i_sum += s.sc[i / 16] * s.q[i] * a[i];
                    j_sum += s.m[i / 16] * a[i];
                }
                if let Some(dmin) = s.dmin {
                    acc = (j_sum as f32).mul_add(-dmin * d, acc);
                }
                acc = (i_sum as f32).mul_add(s.d * d, acc);
            }
        }
    }
    acc
}

/// Scale and minimum of sub-block `j` from the twelve packed bytes of Q4_K and Q5_K.
fn scale_min(s: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (s[j] & 63, s[j + 4] & 63)
    } else {
        ((s[j + 4] & 15) | (s[j - 4] >> 6) << 4, (s[j + 4] >> 4) | (s[j] >> 6) << 4)
    }
}
