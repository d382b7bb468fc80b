//! Blocks of 256 whose values are, exactly, small integers times the integer scale of their sixteen times one number:
//! what the formats with codebooks and the ternary ones are, and what products work on.

use crate::Dtype;
use crate::{iq, ternary};

/// What [`Integers::values`] adds to each value.
pub(crate) const BIAS: u64 = 0x8080_8080_8080_8080;

/// A block: value `i` is `d * scales[i / 16] * q`, where `q` is between -127 and 127; no rounding on the way.
#[derive(Clone, Debug)]
pub struct Integers {
    /// What all values have in common.
    pub d: f32,
    /// Scales of sixteen values each.
    pub scales: [i8; 16],
    /// Eight values of a byte each, the first the lowest: q + 128.
    pub values: [u64; 32],
}

impl Integers {
    /// A block of zeros, to be filled.
    pub const ZERO: Integers = Integers { d: 0.0, scales: [0; 16], values: [BIAS; 32] };

    /// Sets the scale of sixteens `2 * i` and the next.
    pub(crate) fn scale_32(&mut self, i: usize, scale: i8) {
        self.scales[2 * i..2 * i + 2].fill(scale);
    }
}

/// Fills [`Integers`] from a block of the type.
pub type IntegersOf = fn(&[u8], &mut Integers);

/// How blocks of the type become integers, and how many values share a scale; `None` for other types.
pub fn integers(dtype: Dtype) -> Option<(IntegersOf, usize)> {
    Some(match dtype {
        Dtype::IQ1_S => (iq::iq1_s, 32),
        Dtype::IQ1_M => (iq::iq1_m, 16),
        Dtype::IQ2_XXS => (iq::iq2_xxs, 32),
        Dtype::IQ2_XS => (iq::iq2_xs, 16),
        Dtype::IQ2_S => (iq::iq2_s, 16),
        Dtype::IQ3_XXS => (iq::iq3_xxs, 32),
        Dtype::IQ3_S => (iq::iq3_s, 32),
        Dtype::TQ1_0 => (ternary::tq1_0, 32),
        Dtype::TQ2_0 => (ternary::tq2_0, 32),
        _ => return None,
    })
}

/// Decodes a block by its integers.
pub(crate) fn decode(of: IntegersOf, b: &[u8], out: &mut [f32]) {
    let mut block = Integers::ZERO;
    of(b, &mut block);
    for (i, (out, values)) in out.as_chunks_mut::<8>().0.iter_mut().zip(block.values).enumerate() {
        let scale = i32::from(block.scales[i / 2]);
        for (o, q) in out.iter_mut().zip(values.to_le_bytes()) {
            *o = block.d * (scale * (i32::from(q) - 128)) as f32;
        }
    }
}
