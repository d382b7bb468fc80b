//! A look for floats and scales that are not finite, before a model computes with them.

use crate::{Dtype, f16_to_f32};

/// The first block of `bytes` with a float or scale that is NaN or infinite: a half, or an E8M0 byte of 255.
/// Panics when `bytes` are no whole blocks.
pub fn first_not_finite(dtype: Dtype, bytes: &[u8]) -> Option<usize> {
    let size = dtype.block_bytes();
    assert!(bytes.len().is_multiple_of(size), "{} bytes of {}", bytes.len(), dtype.name());
    let position = |bad: fn(&[u8]) -> bool| bytes.chunks_exact(size).position(bad);
    match dtype {
        Dtype::F32 => position(|b| !float::<4, f32>(b, f32::from_le_bytes).is_finite()),
        Dtype::F64 => position(|b| !float::<8, f64>(b, f64::from_le_bytes).is_finite()),
        Dtype::F16 => position(|b| half(b, 0)),
        Dtype::BF16 => position(|b| u16::from_le_bytes([b[0], b[1]]) & 0x7f80 == 0x7f80),
        Dtype::I8 | Dtype::I16 | Dtype::I32 | Dtype::I64 | Dtype::NVFP4 => None,
        Dtype::Q4_0 | Dtype::Q5_0 | Dtype::Q8_0 | Dtype::IQ4_NL | Dtype::Q1_0 | Dtype::Q2_0 => {
            position(|b| half(b, 0))
        }
        Dtype::Q4_1 | Dtype::Q5_1 | Dtype::Q4_K | Dtype::Q5_K => position(|b| half(b, 0) || half(b, 2)),
        Dtype::Q2_K => position(|b| half(b, 80) || half(b, 82)),
        Dtype::Q3_K => position(|b| half(b, 108)),
        Dtype::Q6_K => position(|b| half(b, 208)),
        Dtype::IQ2_XXS | Dtype::IQ2_XS | Dtype::IQ2_S | Dtype::IQ3_XXS | Dtype::IQ3_S => {
            position(|b| half(b, 0))
        }
        Dtype::IQ1_S | Dtype::IQ4_XS => position(|b| half(b, 0)),
        Dtype::IQ1_M => position(|b| !f16_to_f32(crate::iq::iq1_m_scale(b)).is_finite()),
        Dtype::TQ1_0 => position(|b| half(b, 52)),
        Dtype::TQ2_0 => position(|b| half(b, 64)),
        Dtype::MXFP4 => position(|b| b[0] == 255),
    }
}

fn float<const N: usize, T>(b: &[u8], from: fn([u8; N]) -> T) -> T {
    from(b.try_into().expect("one number"))
}

/// Whether the half at byte `at` is NaN or infinite.
fn half(b: &[u8], at: usize) -> bool {
    u16::from_le_bytes([b[at], b[at + 1]]) & 0x7c00 == 0x7c00
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode;

    /// Whatever decodes to a value that is not finite is found, block by block, in bytes of all patterns.
    #[test]
    fn agrees_with_decoding() {
        let mut state = 3u32;
        for &dtype in Dtype::ALL.iter().filter(|d| **d != Dtype::F64) {
            for _ in 0..2000 {
                let mut next = || {
                    state = state.wrapping_mul(1664525).wrapping_add(1013904223);
                    (state >> 24) as u8
                };
                let bytes: Vec<u8> = (0..dtype.block_bytes()).map(|_| next()).collect();
                let mut values = vec![0.0; dtype.block_len()];
                decode(dtype, &bytes, &mut values);
                // Values past the range of f32 come of no half scale; they need MXFP4's largest exponents.
                let finite = values.iter().all(|v| v.is_finite()) || dtype == Dtype::MXFP4 && bytes[0] != 255;
                assert_eq!(first_not_finite(dtype, &bytes).is_none(), finite, "{}: {bytes:?}", dtype.name());
            }
        }
    }
}
