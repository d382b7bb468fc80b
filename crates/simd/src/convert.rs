//! Half floats in plain integer arithmetic, exact or rounded to nearest even, denormals kept.

/// The f16 with these bits as f32, exactly. A NaN stays a NaN.
#[inline(always)]
pub fn f16_to_f32(h: u16) -> f32 {
    let magnitude = (h as u32 & 0x7fff) << 13;
    // The exponent is biased by 15 in f16 and 127 in f32; the product is exact and makes denormals normal.
    let scaled = (f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23)).to_bits();
    let special = if magnitude >= 0x0f80_0000 { 0x7f80_0000 } else { 0 };
    f32::from_bits(scaled | special | ((h as u32 & 0x8000) << 16))
}

/// `x` rounded to the nearest f16, ties to even; NaN becomes 0x7e00.
#[inline(always)]
pub fn f32_to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let sign = ((bits >> 16) & 0x8000) as u16;
    if magnitude > 0x7f80_0000 {
        return 0x7e00;
    }
    if magnitude >= 0x4780_0000 {
        return sign | 0x7c00;
    }
    if magnitude < 0x3880_0000 {
        // Adding 0.5 leaves units of 2^-24, the step of f16 denormals, in the last mantissa bit.
        let rounded = (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5f32.to_bits();
        return sign | rounded as u16;
    }
    let odd = (magnitude >> 13) & 1;
    let rounded = (magnitude + 0xfff + odd - (112 << 23)) >> 13;
    sign | rounded as u16
}

/// The bf16 with these bits as f32, exactly.
#[inline(always)]
pub fn bf16_to_f32(b: u16) -> f32 {
    f32::from_bits((b as u32) << 16)
}

/// `x` rounded to the nearest bf16, ties to even; NaN becomes 0x7fc0.
#[inline(always)]
pub fn f32_to_bf16(x: f32) -> u16 {
    if x.is_nan() {
        return 0x7fc0;
    }
    let bits = x.to_bits();
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}
