//! The list of architectures.

use firth_gguf::Gguf;

use crate::arch::*;
use crate::error::ModelError;
use crate::{Model, Weights};

/// What making a model of a file gives.
pub type Loaded = Result<Box<dyn Model>, ModelError>;

/// One architecture.
pub struct Arch {
    /// The value of `general.architecture`.
    pub name: &'static str,
    /// Makes the model of a file.
    pub load: fn(&Weights) -> Loaded,
}

/// Every architecture. A new one is a file in `arch/` and a line here.
pub const ARCHS: &[Arch] = &[
    afmoe::ARCH,
    alibi::BLOOM,
    alibi::MPT,
    alibi::JAIS,
    alibi::REFACT,
    alibi::BAICHUAN,
    arcee::ARCH,
    arctic::ARCH,
    bailingmoe3::ARCH,
    bert::BERT,
    bert::JINA2,
    bert::JINA3,
    bert::NOMIC,
    bert::NOMIC_EXPERTS,
    classic::GPT2,
    classic::STARCODER,
    classic::STARCODER2,
    classic::CODESHELL,
    classic::NEMOTRON,
    classic::JAIS2,
    classic::POCKETTTS,
    classic::NEOX,
    classic::FALCON,
    cohere2moe::ARCH,
    command_r::COMMAND_R,
    command_r::COHERE2,
    dbrx::DBRX,
    dbrx::OLMO,
    deci::ARCH,
    deepseek::FIRST,
    deepseek::DOTS1,
    deepseek::BAILING,
    deepseek::BAILING2,
    deepseek::GLM,
    deepseek::HUNYUAN3,
    deepseek::MINIMAX2,
    deepseek::EXAONE,
    deepseek::ERNIE,
    deepseek2::DEEPSEEK,
    deepseek2::MISTRAL,
    deepseek32::DEEPSEEK,
    deepseek32::GLM,
    deepseek4::ARCH,
    diffusion::DREAM,
    diffusion::LLADA,
    diffusion::LLADA_MOE,
    diffusion::RND1,
    dots3note::ARCH,
    exaone4::ARCH,
    falcon_h1::ARCH,
    gemma::FIRST,
    gemma::SECOND,
    gemma3::ARCH,
    gemma3::EMBEDDING,
    gemma3n::ARCH,
    gemma4::ARCH,
    glm4::CHATGLM,
    glm4::GLM4,
    glm5_next::ARCH,
    gpt_oss::ARCH,
    granite::DENSE,
    granite::EXPERTS,
    granite::HYBRID,
    granite::MINICPM,
    granite_swa::ARCH,
    grok::ARCH,
    grovemoe::ARCH,
    hrm_text::ARCH,
    hunyuan::DENSE,
    hunyuan::VISION,
    hunyuan::EXPERTS,
    hunyuan::MAINCODER,
    hy_v4::ARCH,
    jamba::ARCH,
    kimi_k3::ARCH,
    kimi_linear::ARCH,
    laguna::ARCH,
    lfm2::DENSE,
    lfm2::EXPERTS,
    llama::ARCH,
    llama::EMBED,
    llama4::ARCH,
    mamba::FIRST,
    mamba::SECOND,
    maple::MAPLE,
    maple::SMALLTHINKER,
    mimo2::ARCH,
    minicpm3::ARCH,
    minimax01::ARCH,
    minimax_m3::ARCH,
    mistral3::ARCH,
    modern_bert::ARCH,
    muse_glimmer::ARCH,
    nanbeige::ARCH,
    nemotron_h::DENSE,
    nemotron_h::EXPERTS,
    olmo2::ARCH,
    openelm::ARCH,
    phi::SECOND,
    phi::THIRD,
    phi::EXPERTS,
    plain::INTERNLM2,
    plain::XVERSE,
    plain::EXAONE,
    plain::QWEN2,
    plain::QWEN2VL,
    plain::PADDLEOCR,
    plain::ORION,
    plain::PANGU,
    plain::ERNIE,
    plain::COGVLM,
    plain::QWEN,
    plamo::FIRST,
    plamo::THIRD,
    plamo2::ARCH,
    qwen3::ARCH,
    qwen3::VISION,
    qwen35::DENSE,
    qwen35::EXPERTS,
    qwen3next::ARCH,
    qwen3tts::ARCH,
    qwen4exp::ARCH,
    qwen_moe::QWEN2,
    qwen_moe::QWEN3,
    qwen_moe::QWEN3VL,
    qwen_moe::MELLUM,
    qwen_moe::OLMOE,
    seed_oss::ARCH,
    smollm3::ARCH,
    spark2_5::ARCH,
    stablelm::ARCH,
    t5::ENCODER,
    t5::ARCH,
    talkie::ARCH,
];

/// Their names.
pub fn architectures() -> impl Iterator<Item = &'static str> {
    ARCHS.iter().map(|a| a.name)
}

/// The model of a file.
///
/// # Errors
/// An unknown architecture, keys out of range, and all missing or misshapen tensors at once.
pub fn load(file: &Gguf) -> Loaded {
    let name = file.metadata().require_str("general.architecture")?;
    let arch = ARCHS
        .iter()
        .find(|a| a.name == name)
        .ok_or_else(|| ModelError::Unknown { name: name.into(), nearest: nearest(name) })?;
    let w = Weights::new(file, name);
    let model = (arch.load)(&w)?;
    w.finish()?;
    if model.info().both_ways && model.info().slots {
        let expected = "true: some layers are recurrent";
        return Err(ModelError::value(w.key("attention.causal"), false, expected));
    }
    Ok(model)
}

/// The three most similar names.
fn nearest(name: &str) -> String {
    let mut names: Vec<&str> = architectures().collect();
    names.sort_by_key(|n| (distance(name, n), *n));
    names.truncate(3);
    names.join(", ")
}

/// Levenshtein's distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert!(nearest("qwen33").starts_with("qwen3,"));
    }
}
