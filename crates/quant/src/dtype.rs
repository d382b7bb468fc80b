//! The list of types.

use crate::encode as enc;
use crate::{fp4, integers, iq, k, simple, ternary};

/// Decodes one block of bytes, or any number of plain values.
pub(crate) type Decode = fn(&[u8], &mut [f32]);
/// Encodes finite values to one block of bytes, or any number of plain values; with the importance of each where the
/// caller has it.
pub(crate) type Encode = fn(&[f32], Option<&[f32]>, &mut [u8]);

macro_rules! dtypes {
    ($($name:ident = $id:literal, $len:literal, $bytes:literal, $decode:expr, $encode:expr;)*) => {
        /// A type that a tensor of a file may have.
        #[allow(non_camel_case_types, reason = "the names that everyone knows")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Dtype {
            $(#[doc = concat!(stringify!($name), ": ", stringify!($bytes), " bytes for ", stringify!($len), ".")]
            $name),*
        }

        impl Dtype {
            /// All types.
            pub const ALL: &[Dtype] = &[$(Dtype::$name),*];

            /// Its number in files.
            pub fn id(self) -> u32 {
                match self { $(Dtype::$name => $id),* }
            }

            /// Its name.
            pub fn name(self) -> &'static str {
                match self { $(Dtype::$name => stringify!($name)),* }
            }

            /// Elements of a block, 1 for plain types.
            pub fn block_len(self) -> usize {
                match self { $(Dtype::$name => $len),* }
            }

            /// Bytes of a block.
            pub fn block_bytes(self) -> usize {
                match self { $(Dtype::$name => $bytes),* }
            }
        }

        pub(crate) fn decoder(dtype: Dtype) -> Decode {
            match dtype { $(Dtype::$name => $decode),* }
        }

        pub(crate) fn encoder(dtype: Dtype) -> Option<Encode> {
            match dtype { $(Dtype::$name => $encode),* }
        }
    };
}

dtypes! {
    F32 = 0, 1, 4, simple::f32s, Some(enc::simple::f32s);
    F16 = 1, 1, 2, simple::f16s, Some(enc::simple::f16s);
    BF16 = 30, 1, 2, simple::bf16s, Some(enc::simple::bf16s);
    F64 = 28, 1, 8, simple::f64s, None;
    I8 = 24, 1, 1, simple::i8s, None;
    I16 = 25, 1, 2, simple::i16s, None;
    I32 = 26, 1, 4, simple::i32s, None;
    I64 = 27, 1, 8, simple::i64s, None;
    Q4_0 = 2, 32, 18, simple::q4_0, Some(enc::simple::q4_0);
    Q4_1 = 3, 32, 20, simple::q4_1, Some(enc::simple::q4_1);
    Q5_0 = 6, 32, 22, simple::q5_0, Some(enc::simple::q5_0);
    Q5_1 = 7, 32, 24, simple::q5_1, Some(enc::simple::q5_1);
    Q8_0 = 8, 32, 34, simple::q8_0, Some(enc::simple::q8_0);
    Q2_K = 10, 256, 84, k::q2_k, Some(enc::k::q2_k);
    Q3_K = 11, 256, 110, k::q3_k, Some(enc::k::q3_k);
    Q4_K = 12, 256, 144, k::q4_k, Some(enc::k::q4_k);
    Q5_K = 13, 256, 176, k::q5_k, Some(enc::k::q5_k);
    Q6_K = 14, 256, 210, k::q6_k, Some(enc::k::q6_k);
    IQ1_S = 19, 256, 50, |b, out| integers::decode(iq::iq1_s, b, out), None;
    IQ1_M = 29, 256, 56, |b, out| integers::decode(iq::iq1_m, b, out), None;
    IQ2_XXS = 16, 256, 66, |b, out| integers::decode(iq::iq2_xxs, b, out), Some(enc::lattice::iq2_xxs);
    IQ2_XS = 17, 256, 74, |b, out| integers::decode(iq::iq2_xs, b, out), Some(enc::lattice::iq2_xs);
    IQ2_S = 22, 256, 82, |b, out| integers::decode(iq::iq2_s, b, out), Some(enc::lattice::iq2_s);
    IQ3_XXS = 18, 256, 98, |b, out| integers::decode(iq::iq3_xxs, b, out), Some(enc::lattice::iq3_xxs);
    IQ3_S = 21, 256, 110, |b, out| integers::decode(iq::iq3_s, b, out), Some(enc::lattice::iq3_s);
    IQ4_NL = 20, 32, 18, iq::iq4_nl, Some(enc::iq4::iq4_nl);
    IQ4_XS = 23, 256, 136, iq::iq4_xs, Some(enc::iq4::iq4_xs);
    TQ1_0 = 34, 256, 54, |b, out| integers::decode(ternary::tq1_0, b, out), Some(enc::ternary::tq1_0);
    TQ2_0 = 35, 256, 66, |b, out| integers::decode(ternary::tq2_0, b, out), Some(enc::ternary::tq2_0);
    MXFP4 = 39, 32, 17, fp4::mxfp4, Some(enc::fp4::mxfp4);
    NVFP4 = 40, 64, 36, fp4::nvfp4, None;
    Q1_0 = 41, 128, 18, ternary::q1_0, Some(enc::ternary::q1_0);
    Q2_0 = 42, 64, 18, ternary::q2_0, Some(enc::ternary::q2_0);
}

/// A type id that cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DtypeError {
    /// A type that was removed from the format, or is never stored.
    #[error("type {name} (id {id}) {why}")]
    Refused {
        /// Its number.
        id: u32,
        /// Its name.
        name: &'static str,
        /// Why.
        why: &'static str,
    },
    /// A number that names nothing.
    #[error("unknown tensor type id {0}")]
    Unknown(u32),
}

/// Ids that once were types, or are types of intermediate values only.
const REFUSED: &[(u32, &str, &str)] = &[
    (4, "Q4_2", "was removed from the format; quantise the model again"),
    (5, "Q4_3", "was removed from the format; quantise the model again"),
    (9, "Q8_1", "is for activations and never stored"),
    (15, "Q8_K", "is for activations and never stored"),
    (31, "Q4_0_4_4", "was removed from the format; use Q4_0"),
    (32, "Q4_0_4_8", "was removed from the format; use Q4_0"),
    (33, "Q4_0_8_8", "was removed from the format; use Q4_0"),
    (36, "IQ4_NL_4_4", "was removed from the format; use IQ4_NL"),
    (37, "IQ4_NL_4_8", "was removed from the format; use IQ4_NL"),
    (38, "IQ4_NL_8_8", "was removed from the format; use IQ4_NL"),
];

impl Dtype {
    /// The type of a file's number.
    ///
    /// # Errors
    /// Removed and never-stored types are refused by name.
    pub fn from_id(id: u32) -> Result<Dtype, DtypeError> {
        if let Some(&(id, name, why)) = REFUSED.iter().find(|r| r.0 == id) {
            return Err(DtypeError::Refused { id, name, why });
        }
        Dtype::ALL.iter().copied().find(|d| d.id() == id).ok_or(DtypeError::Unknown(id))
    }

    /// The type of a name, case-blind.
    pub fn from_name(name: &str) -> Option<Dtype> {
        Dtype::ALL.iter().copied().find(|d| d.name().eq_ignore_ascii_case(name))
    }

    /// Whether values are quantised in blocks.
    pub fn is_quantised(self) -> bool {
        self.block_len() > 1
    }

    /// Bytes of a row of `n` elements; `None` when `n` is no whole number of blocks or the size overflows.
    pub fn row_bytes(self, n: usize) -> Option<usize> {
        if !n.is_multiple_of(self.block_len()) {
            return None;
        }
        (n / self.block_len()).checked_mul(self.block_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_names_go_both_ways() {
        for &d in Dtype::ALL {
            assert_eq!(Dtype::from_id(d.id()), Ok(d));
            assert_eq!(Dtype::from_name(&d.name().to_lowercase()), Some(d));
        }
    }

    #[test]
    fn removed_types_are_refused_by_name() {
        let message = Dtype::from_id(31).unwrap_err().to_string();
        assert_eq!(message, "type Q4_0_4_4 (id 31) was removed from the format; use Q4_0");
        assert_eq!(Dtype::from_id(99), Err(DtypeError::Unknown(99)));
    }

    #[test]
    fn rows_are_whole_blocks() {
        assert_eq!(Dtype::Q4_K.row_bytes(512), Some(288));
        assert_eq!(Dtype::Q4_K.row_bytes(100), None);
        assert_eq!(Dtype::F32.row_bytes(usize::MAX / 2), None);
    }
}
