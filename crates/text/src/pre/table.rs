//! The names that `tokenizer.ggml.pre` may hold, and what each stands for.

use super::pattern::{Pattern, *};

/// A pre-tokeniser: patterns in order and what else the name settles for a vocabulary.
///
/// Source: the names, patterns and settings of llama.cpp build b11434.
#[derive(Clone, Copy, Debug)]
pub struct PreTokeniser {
    names: &'static [&'static str],
    pub(super) patterns: &'static [Pattern],
    /// A word that is a token as a whole is not built by merges.
    pub whole_words: bool,
    /// The text of a sequence is cleaned of spaces before punctuation, where a caller asks for it.
    pub clean_spaces: bool,
    /// The start token is added where no key says otherwise.
    pub add_bos: bool,
    /// The start token is added whatever a key says.
    pub force_bos: bool,
    /// A separator is added where no key says otherwise.
    pub add_sep: bool,
    /// Without a key there is no start token.
    pub no_bos: bool,
    /// Token texts are plain UTF-8, not spelt in the byte alphabet.
    pub raw: bool,
    /// Spaces are U+2581 in token texts.
    pub escaped: bool,
    /// A word of line feeds that is a token is not built by merges.
    pub lines_whole: bool,
    /// Each word starts with U+2581, and is cut before every further one.
    pub spaced_words: bool,
    /// White space is dropped from the text.
    pub drop_spaces: bool,
}

const fn row(names: &'static [&'static str], patterns: &'static [Pattern]) -> PreTokeniser {
    PreTokeniser {
        names,
        patterns,
        whole_words: false,
        clean_spaces: true,
        add_bos: false,
        force_bos: false,
        add_sep: false,
        no_bos: false,
        raw: false,
        escaped: false,
        lines_whole: false,
        spaced_words: false,
        drop_spaces: false,
    }
}

macro_rules! setters {
    ($($name:ident: $($field:ident = $value:literal),*;)*) => {$(
        const fn $name(self) -> PreTokeniser {
            PreTokeniser { $($field: $value,)* ..self }
        }
    )*};
}

impl PreTokeniser {
    /// The row of a name, or `None` where nobody knows it.
    pub fn named(name: &str) -> Option<&'static PreTokeniser> {
        TABLE.iter().find(|row| row.names.contains(&name))
    }

    /// Every name of the table.
    pub fn names() -> impl Iterator<Item = &'static str> {
        TABLE.iter().flat_map(|row| row.names.iter().copied())
    }

    setters! {
        whole_words: whole_words = true;
        keep_spaces: clean_spaces = false;
        add_bos: add_bos = true;
        force_bos: force_bos = true;
        add_sep: add_sep = true;
        no_bos: no_bos = true;
        raw: raw = true;
        escaped: escaped = true;
        lines_whole: lines_whole = true;
        spaced_words: spaced_words = true;
        drop_spaces: drop_spaces = true;
    }
}

static TABLE: &[PreTokeniser] = &[
    row(&["default"], &[P45, P19, P8, P20]),
    row(
        &[
            "llama3",
            "llama-v3",
            "llama-bpe",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        &[P1],
    )
    .whole_words()
    .add_bos(),
    row(&["dbrx", "smaug-bpe"], &[P1]),
    row(&["chatglm-bpe"], &[P1]).no_bos(),
    row(&["glm4", "glm5"], &[P1]).whole_words().no_bos(),
    row(&["jais-2"], &[P2]),
    row(&["deepseek-llm"], &[P3, P4, P5, P6, P7, P8]).keep_spaces(),
    row(&["deepseek-coder"], &[P3, P16, P17, P7, P13]).keep_spaces(),
    row(&["deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"], &[P9, P10, P11]).keep_spaces(),
    row(&["spark2_5"], &[P9, P10, P12, P13]).keep_spaces(),
    row(&["youtu"], &[P14, P15]).keep_spaces().whole_words(),
    row(&["falcon"], &[P18, P19, P20]),
    row(
        &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "gigachat",
            "jina-v2-es",
            "jina-v2-de",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "exaone4",
            "mpt",
            "olmo",
            "jais",
        ],
        &[P19],
    ),
    row(&["trillion", "granite-docling"], &[P19]).keep_spaces(),
    row(&["jina-v1-en", "jina-v2-code", "roberta-bpe"], &[P19]).add_sep(),
    row(&["starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"], &[P13, P19]),
    row(&["command-r", "smollm"], &[P13, P19]).keep_spaces(),
    row(&["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "hunyuan", "grok-2", "solar-open"], &[P21])
        .keep_spaces(),
    row(&["megrez", "stablelm2"], &[P21]),
    row(&["qwen35"], &[P22]).keep_spaces(),
    row(&["poro-chat"], &[P23]).keep_spaces(),
    row(&["bloom", "gpt3-finnish"], &[P23]),
    row(&["viking"], &[P23, P13]).keep_spaces(),
    row(&["tekken"], &[P24]).keep_spaces().whole_words().add_bos(),
    row(&["chameleon"], &[P25, P26, P27, P13, P28, P19]).keep_spaces().add_bos(),
    row(&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], &[P29]).keep_spaces(),
    row(&["granite-embed-multi-97m"], &[P30]).keep_spaces().whole_words(),
    row(&["tiny_aya", "cohere2moe"], &[P31, P32]).keep_spaces(),
    row(&["kimi-k2"], &[P33]).keep_spaces(),
    row(&["superbpe"], &[P8, P34]).keep_spaces(),
    row(&["bailingmoe", "bailingmoe2", "llada-moe"], &[P35]).keep_spaces(),
    row(&["seed-coder"], &[P36]).keep_spaces(),
    row(&["ufakzeka"], &[P37]).keep_spaces(),
    row(&["afmoe"], &[P38, P39, P40]).keep_spaces(),
    row(&["laguna"], &[P41, P21]).keep_spaces(),
    row(&["gemma4", "granite-embed-multi-311m"], &[P41]).raw().escaped().force_bos().lines_whole(),
    row(&["mmbert"], &[P41]).raw().escaped().lines_whole().spaced_words(),
    row(&["sarvam-moe"], &[P41]).keep_spaces().raw().escaped(),
    row(&["exaone-moe"], &[P42]),
    row(&["minicpm5"], &[P9, P43]).whole_words(),
    row(&["whitespace"], &[P44]).raw().drop_spaces(),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names = PreTokeniser::names().collect::<Vec<_>>();
        assert_eq!(names.len(), 92);
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 92);
        assert!(PreTokeniser::named("llama4").is_some() && PreTokeniser::named("llama5").is_none());
    }
}
