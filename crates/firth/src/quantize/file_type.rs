//! The file types: names for a choice of tensor types.

use firth_gguf::{Gguf, TensorInfo};
use firth_quant::Dtype;

macro_rules! file_types {
    ($($name:ident = $value:literal, $base:ident;)*) => {
        /// What a quantised file is called; most are mixes of a base type with larger ones where it matters.
        #[allow(non_camel_case_types, reason = "the names that everyone knows")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum FileType {
            $(#[doc = concat!("A file mostly of ", stringify!($base), ".")] $name),*
        }

        impl FileType {
            /// All file types.
            pub const ALL: &[FileType] = &[$(FileType::$name),*];

            /// Its number: `general.file_type` of a file.
            pub fn value(self) -> u32 {
                match self { $(FileType::$name => $value),* }
            }

            /// Its name.
            pub fn name(self) -> &'static str {
                match self { $(FileType::$name => stringify!($name)),* }
            }

            /// The type of tensors that no rule singles out.
            pub fn base(self) -> Dtype {
                match self { $(FileType::$name => Dtype::$base),* }
            }
        }
    };
}

file_types! {
    F32 = 0, F32;
    F16 = 1, F16;
    BF16 = 32, BF16;
    Q4_0 = 2, Q4_0;
    Q4_1 = 3, Q4_1;
    Q5_0 = 8, Q5_0;
    Q5_1 = 9, Q5_1;
    Q8_0 = 7, Q8_0;
    Q2_K = 10, Q2_K;
    Q2_K_S = 21, Q2_K;
    Q3_K_S = 11, Q3_K;
    Q3_K_M = 12, Q3_K;
    Q3_K_L = 13, Q3_K;
    Q4_K_S = 14, Q4_K;
    Q4_K_M = 15, Q4_K;
    Q5_K_S = 16, Q5_K;
    Q5_K_M = 17, Q5_K;
    Q6_K = 18, Q6_K;
    IQ1_S = 24, IQ1_S;
    IQ1_M = 31, IQ1_M;
    IQ2_XXS = 19, IQ2_XXS;
    IQ2_XS = 20, IQ2_XS;
    IQ2_S = 28, IQ2_XS;
    IQ2_M = 29, IQ2_S;
    IQ3_XXS = 23, IQ3_XXS;
    IQ3_XS = 22, IQ3_S;
    IQ3_S = 26, IQ3_S;
    IQ3_M = 27, IQ3_S;
    IQ4_NL = 25, IQ4_NL;
    IQ4_XS = 30, IQ4_XS;
    TQ1_0 = 36, TQ1_0;
    TQ2_0 = 37, TQ2_0;
    MXFP4_MOE = 38, MXFP4;
    Q1_0 = 40, Q1_0;
    Q2_0 = 41, Q2_0;
}

impl FileType {
    /// The unquantised type that most of a model's weights have, F32 where none has one.
    pub fn of_most(file: &Gguf) -> FileType {
        let elements = |t: FileType| {
            let tensors = file.tensors().iter().filter(|tensor| tensor.dtype == t.base());
            tensors.map(TensorInfo::n_elements).sum::<u64>()
        };
        [FileType::BF16, FileType::F16, FileType::F32]
            .into_iter()
            .max_by_key(|t| elements(*t))
            .unwrap_or(FileType::F32)
    }

    /// The file type of a name, case-blind, or of a number; `Q3_K`, `Q4_K` and `Q5_K` are their M mixes.
    pub fn from_name(name: &str) -> Option<FileType> {
        let alias = match name.to_ascii_uppercase().as_str() {
            "Q3_K" => "Q3_K_M",
            "Q4_K" => "Q4_K_M",
            "Q5_K" => "Q5_K_M",
            _ => name,
        };
        let number = name.parse().ok();
        let is = |t: &FileType| t.name().eq_ignore_ascii_case(alias) || Some(t.value()) == number;
        FileType::ALL.iter().copied().find(is)
    }

    /// Whether `t` is one of the mixes of two bits and fewer, whose rules are their own.
    pub(super) fn is_iq1_iq2(self) -> bool {
        use FileType::*;
        matches!(self, IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ2_M)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_go_both_ways() {
        for &t in FileType::ALL {
            assert_eq!(FileType::from_name(&t.name().to_lowercase()), Some(t));
            assert_eq!(FileType::from_name(&t.value().to_string()), Some(t));
        }
        assert_eq!(FileType::from_name("q4_k"), Some(FileType::Q4_K_M));
        assert_eq!(FileType::from_name("Q9_Z"), None);
        assert_eq!(FileType::from_name("39"), None);
    }
}
