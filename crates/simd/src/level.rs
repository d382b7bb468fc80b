//! Which instruction sets this machine has, and running a kernel at one of them.

use std::fmt;
use std::str::FromStr;

use crate::plain::{Emulated4, Scalar};
use crate::token::Simd;

/// An instruction set, or a way of running as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// Plain loops over sixteen lanes: the definition of every operation.
    Scalar,
    /// Four quarters of four lanes, as NEON would hold them; runs anywhere.
    Emulated4,
    /// Two 256-bit registers; needs AVX2, FMA and F16C.
    Avx2,
    /// One 512-bit register; needs AVX-512 F, BW, VL, DQ and VNNI.
    Avx512,
}

/// Why a level could not be chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LevelError {
    /// The word names no level.
    Unknown(String),
    /// The level exists but this machine lacks it.
    Lacking(Level),
}

impl fmt::Display for LevelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(word) => {
                write!(f, "unknown instruction set `{word}`, expected scalar, emulated4, avx2 or avx512")
            }
            Self::Lacking(level) => {
                write!(f, "this machine lacks instruction set `{level}`, it has ")?;
                for (i, has) in Level::available().enumerate() {
                    write!(f, "{}{has}", if i == 0 { "" } else { ", " })?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for LevelError {}

impl Level {
    /// Every level, slowest first.
    pub const ALL: [Self; 4] = [Self::Scalar, Self::Emulated4, Self::Avx2, Self::Avx512];

    /// The fastest level of this machine.
    pub fn detect() -> Self {
        if Self::Avx512.is_available() {
            Self::Avx512
        } else if Self::Avx2.is_available() {
            Self::Avx2
        } else if cfg!(target_arch = "aarch64") {
            Self::Emulated4
        } else {
            Self::Scalar
        }
    }

    /// The level that the environment variable `FIRTH_ISA` names, or [`Level::detect`] when it is
    /// unset or empty.
    ///
    /// # Errors
    /// The word names no level, or one that this machine lacks.
    pub fn from_env() -> Result<Self, LevelError> {
        match std::env::var_os("FIRTH_ISA") {
            None => Ok(Self::detect()),
            Some(word) if word.is_empty() => Ok(Self::detect()),
            Some(word) => word.to_string_lossy().parse::<Self>()?.checked(),
        }
    }

    /// This level, if the machine has it.
    ///
    /// # Errors
    /// [`LevelError::Lacking`] when it has not.
    pub fn checked(self) -> Result<Self, LevelError> {
        if self.is_available() { Ok(self) } else { Err(LevelError::Lacking(self)) }
    }

    /// The levels of this machine, slowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|level| level.is_available())
    }

    /// Whether this machine can run this level.
    pub fn is_available(self) -> bool {
        match self {
            Self::Scalar | Self::Emulated4 => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => crate::avx2::Avx2::detect().is_some(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => crate::avx512::Avx512::detect().is_some(),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 => false,
        }
    }

    /// The word of `FIRTH_ISA` that names this level.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Emulated4 => "emulated4",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Level {
    type Err = LevelError;

    fn from_str(word: &str) -> Result<Self, LevelError> {
        Self::ALL
            .into_iter()
            .find(|level| level.name() == word)
            .ok_or_else(|| LevelError::Unknown(word.to_owned()))
    }
}

/// Code that is written once and runs at any level.
///
/// Mark `run`, and every generic function below it, `#[inline(always)]`: the body must end up inside
/// the one function that enables the instruction set. Closures are not inlined for certain; write
/// loops.
pub trait Kernel {
    /// What the kernel returns.
    type Out;
    /// The body.
    fn run<S: Simd>(self, s: S) -> Self::Out;
}

/// Runs `kernel` at `level`, in a function of its own that enables the instruction set.
///
/// # Panics
/// When this machine lacks `level`; ask [`Level::checked`] first.
#[inline]
pub fn dispatch<K: Kernel>(level: Level, kernel: K) -> K::Out {
    match level {
        Level::Scalar => plain(Scalar::default(), kernel),
        Level::Emulated4 => plain(Emulated4::default(), kernel),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => crate::avx2::Avx2::detect().expect("the machine has avx2").run(kernel),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => crate::avx512::Avx512::detect().expect("the machine has avx512").run(kernel),
        #[cfg(not(target_arch = "x86_64"))]
        Level::Avx2 | Level::Avx512 => panic!("level {level} on a machine without it"),
    }
}

/// Runs a plain token.
#[inline(never)]
fn plain<S: Simd, K: Kernel>(s: S, kernel: K) -> K::Out {
    kernel.run(s)
}
