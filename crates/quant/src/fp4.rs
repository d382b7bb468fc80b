//! Formats whose values are 4-bit floats (E2M1).

/// Twice the values of E2M1, so that they are whole and fit integer kernels (which have no -0); scales are halved
/// to match.
pub(crate) const E2M1_DOUBLED: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

/// Half of the power of two of an E8M0 byte: `2^(e - 128)`. 255 is NaN.
fn e8m0_half(e: u8) -> f32 {
    match e {
        255 => f32::NAN,
        // Below the normal range: 2^-128 and 2^-127.
        0 | 1 => f32::from_bits(0x0020_0000 << e),
        _ => f32::from_bits(u32::from(e - 1) << 23),
    }
}

/// Half of the value of an unsigned E4M3 byte; 0x7f means zero, and bit 7 is not read.
fn ue4m3_half(x: u8) -> f32 {
    let (exponent, mantissa) = (x >> 3 & 15, f32::from(x & 7));
    match (x, exponent) {
        (0x7f, _) => 0.0,
        (_, 0) => mantissa * 2f32.powi(-10),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(i32::from(exponent) - 8),
    }
}

/// Blocks of 32 under a power of two.
pub(crate) fn mxfp4(b: &[u8], out: &mut [f32]) {
    let d = e8m0_half(b[0]);
    crate::simple::nibbles(&b[1..], out, |_, q| d * E2M1_DOUBLED[usize::from(q)]);
}

/// Four blocks of 16 with a scale each, low nibbles first within a block.
pub(crate) fn nvfp4(b: &[u8], out: &mut [f32]) {
    for (s, o) in out.chunks_exact_mut(16).enumerate() {
        let d = ue4m3_half(b[s]);
        let qs = &b[4 + 8 * s..12 + 8 * s];
        for (j, o) in o.iter_mut().enumerate() {
            *o = d * E2M1_DOUBLED[usize::from(qs[j % 8] >> (4 * (j / 8)) & 15)];
        }
    }
}
