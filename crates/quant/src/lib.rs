//! Number types of model files: sizes, decoding and encoding of blocks. The only place that knows the bits of
//! Q4_K.
#![forbid(unsafe_code)]

mod dtype;
mod encode;
mod finite;
mod fp4;
mod grids;
mod integers;
mod iq;
mod k;
mod simple;
mod ternary;

pub use dtype::{Dtype, DtypeError};
pub use finite::first_not_finite;
pub use integers::{Integers, IntegersOf, integers};
pub use simple::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

/// Why values cannot be encoded.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EncodeError {
    /// A type without an encoder.
    #[error("{0} has no encoder in this build")]
    NoEncoder(&'static str),
    /// A NaN or infinity, which a block cannot hold.
    #[error("value {index} is {value}, which a block of {dtype} cannot hold")]
    NotFinite {
        /// The type.
        dtype: &'static str,
        /// Which value.
        index: usize,
        /// The value.
        value: f32,
    },
    /// Values so large that the scale of their block overflows its half.
    #[error("the block of value {index} needs a scale beyond the largest half, which {dtype} cannot hold")]
    TooLarge {
        /// The type.
        dtype: &'static str,
        /// The first value of the block.
        index: usize,
    },
}

/// Decodes whole blocks: `src` holds `dst.len()` values of `dtype`. Total over all bit patterns; integers
/// convert. Panics when the lengths do not fit each other.
pub fn decode(dtype: Dtype, src: &[u8], dst: &mut [f32]) {
    assert_eq!(
        dtype.row_bytes(dst.len()),
        Some(src.len()),
        "bytes of {} values of {}",
        dst.len(),
        dtype.name()
    );
    let f = dtype::decoder(dtype);
    if dtype.block_len() == 1 {
        return f(src, dst);
    }
    for (block, out) in src.chunks_exact(dtype.block_bytes()).zip(dst.chunks_exact_mut(dtype.block_len())) {
        f(block, out);
    }
}

/// Whether [`encode`] takes the type.
pub fn can_encode(dtype: Dtype) -> bool {
    dtype::encoder(dtype).is_some()
}

/// Encodes values into whole blocks. Panics when the lengths do not fit each other.
///
/// # Errors
/// A type without an encoder; for a block type a value that is not finite, or too large for a scale in half
/// precision. `dst` is then unspecified.
pub fn encode(dtype: Dtype, src: &[f32], dst: &mut [u8]) -> Result<(), EncodeError> {
    encode_blocks(dtype, src, None, dst)
}

/// As [`encode`] where the squared error of column `i` counts `importance[i]` times, so that what matters to the
/// model keeps its value; `src` holds rows of `importance.len()` values. Factors are finite and not negative. Types
/// whose codes follow from extremes alone ignore it. Panics as [`encode`], and where a row is no whole number of
/// blocks.
///
/// # Errors
/// As [`encode`].
pub fn encode_weighted(
    dtype: Dtype,
    src: &[f32],
    importance: &[f32],
    dst: &mut [u8],
) -> Result<(), EncodeError> {
    let n = importance.len();
    assert!(n.is_multiple_of(dtype.block_len()), "rows of {n} values of {}", dtype.name());
    assert!(n > 0 && src.len().is_multiple_of(n), "{} values in rows of {n}", src.len());
    encode_blocks(dtype, src, Some(importance), dst)
}

fn encode_blocks(
    dtype: Dtype,
    src: &[f32],
    importance: Option<&[f32]>,
    dst: &mut [u8],
) -> Result<(), EncodeError> {
    assert_eq!(
        dtype.row_bytes(src.len()),
        Some(dst.len()),
        "bytes of {} values of {}",
        src.len(),
        dtype.name()
    );
    let f = dtype::encoder(dtype).ok_or(EncodeError::NoEncoder(dtype.name()))?;
    let len = dtype.block_len();
    if len == 1 {
        f(src, None, dst);
        return Ok(());
    }
    if let Some(index) = src.iter().position(|v| !v.is_finite()) {
        return Err(EncodeError::NotFinite { dtype: dtype.name(), index, value: src[index] });
    }
    for (i, (x, b)) in src.chunks_exact(len).zip(dst.chunks_exact_mut(dtype.block_bytes())).enumerate() {
        f(x, importance.map(|w| &w[i * len % w.len()..][..len]), b);
        if first_not_finite(dtype, b).is_some() {
            return Err(EncodeError::TooLarge { dtype: dtype.name(), index: i * len });
        }
    }
    Ok(())
}
