//! Instruction sets behind one face: sixteen lanes, the same bits.
//!
//! A kernel is written once, generic over a token [`Simd`] of sixteen f32 or i32 lanes (the same
//! register is also 64 bytes). [`dispatch`] runs it at a [`Level`]: plain loops ([`Scalar`], the
//! definition), four quarters of four ([`Emulated4`], the shape of NEON), [`Avx2`] or [`Avx512`].
//! Every operation gives equal bits at every level; [`math`] holds the functions that others take
//! from libm, made of these operations alone.
//!
//! # NaN
//! An operation that yields NaN yields NaN at every level; the sign and payload of a NaN are not
//! specified, except that a NaN stored as f16 or bf16 becomes the one positive quiet NaN.
//! [`Simd::min`] and [`Simd::max`] return NaN when either operand is NaN.
//!
//! # Denormals
//! They are kept everywhere; callers run with the flush bits (FTZ, DAZ) off, which is the state in
//! which Rust starts threads.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub mod convert;
mod level;
pub mod math;
mod plain;
mod token;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;
pub use level::{Kernel, Level, LevelError, dispatch};
pub use plain::{Emulated4, Scalar};
pub use token::{LANES, Simd, prefetch_far};

#[cfg(test)]
mod tests;
