//! The name of a pre-tokeniser, by the expressions that `tokenizer.json` cuts text with.

use super::{kind_of, steps};
use crate::json::Fields;
use crate::vocab::kinds::pattern;

/// `'s`, `'t` and so on, in whatever case.
const CONTRACTION: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
/// The same as some files spell it.
const SPELT: &str = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])";
/// What a step of kind `ByteLevel` cuts with.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const DIGIT: &str = r"\p{N}";
const DIGITS: &str = r"\p{N}+";

/// A row: the expressions in order, `C` for a contraction, and the pre-tokeniser that cuts so; another where words
/// that are tokens are not built by merges.
struct Row {
    cuts: &'static [&'static str],
    name: &'static str,
    whole_words: &'static str,
}

const fn row(cuts: &'static [&'static str], name: &'static str) -> Row {
    Row { cuts, name, whole_words: name }
}

const LINES: &str = r"\s*[\r\n]+|\s+(?!\S)|\s+";
const CASES: &str = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+";
const CASES_UP: &str = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*";

/// Words of letters, of `C`, a run of `N`, marks and lines: what most vocabularies of today differ little from.
macro_rules! words {
    ($digits:literal) => {
        concat!(
            r"C|[^\r\n\p{L}\p{N}]?\p{L}+|",
            $digits,
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    };
}

const TABLE: &[Row] = &[
    Row { whole_words: "llama-bpe", ..row(&[words!(r"\p{N}{1,3}")], "smaug-bpe") },
    row(&[words!(r"\p{N}")], "qwen2"),
    row(
        &[r"C|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
        "qwen35",
    ),
    row(&[GPT2], "gpt-2"),
    row(&[DIGIT, GPT2], "smollm"),
    row(
        &[
            r"\p{N}{1,3}",
            "[一-龥぀-ゟ゠-ヿ]+",
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
        ],
        "deepseek-v3",
    ),
    row(&[r" ?[^(\s|.,!?…。，、।۔،)]+"], "bloom"),
    row(&[r"\p{N}{1,3}", words!(r"\p{N}+")], "minicpm5"),
];

/// The name, or none where nobody is known to cut so.
pub(super) fn name(whole: Fields, model: Fields) -> Option<&'static str> {
    let found = cuts(whole)?;
    let whole_words = model.get("ignore_merges").and_then(|v| v.as_bool()).unwrap_or(false);
    let cased = |tail: &str| {
        let word = |cases: &str| format!(r"[^\r\n\p{{L}}\p{{N}}]?{cases}{tail}");
        let digits = if tail.is_empty() { DIGIT } else { r"\p{N}{1,3}" };
        format!(r"{}|{}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{LINES}", word(CASES), word(CASES_UP))
    };
    if found == [cased("")] {
        return Some("tekken");
    }
    if found == [cased("C?")] {
        return Some("gpt-4o");
    }
    let row = TABLE.iter().find(|row| row.cuts == found)?;
    Some(if whole_words { row.whole_words } else { row.name })
}

/// The expressions in order; none where a step is of an unknown kind.
fn cuts(whole: Fields) -> Option<Vec<String>> {
    let mut out = Vec::new();
    for step in steps(whole, "pre_tokenizer") {
        match kind_of(&step) {
            "Split" => out.push(pattern(&step)?.replace(SPELT, "C").replace(CONTRACTION, "C")),
            "Digits" => {
                let single = step.get("individual_digits").and_then(|v| v.as_bool()).unwrap_or(false);
                out.push(if single { DIGIT } else { DIGITS }.to_owned());
            }
            "ByteLevel" => {
                if step.get("use_regex").and_then(|v| v.as_bool()).unwrap_or(true) {
                    out.push(GPT2.to_owned());
                }
            }
            _ => return None,
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use firth_text::pre::PreTokeniser;

    use super::*;

    #[test]
    fn every_name_is_one() {
        for row in TABLE {
            for name in [row.name, row.whole_words] {
                assert!(PreTokeniser::named(name).is_some(), "{name}");
            }
        }
    }
}
