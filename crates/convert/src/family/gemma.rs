//! Gemma.

use super::{ATTENTION, Family, MLP, WHOLE, WHOLE_PLUS_ONE};
use crate::change::Change::PlusOne;
use crate::error::ConvertError;
use crate::json::Fields;
use crate::keys::Keys;
use crate::tensors::Row;

/// Gemma.
pub(super) const FIRST: Family = Family {
    classes: &["GemmaForCausalLM"],
    arch: "gemma",
    defaults: r#"{"head_dim": 256}"#,
    keys: Keys::decoder,
    layer: &[FIRST_NORMS, ATTENTION, MLP],
    whole: &[WHOLE_PLUS_ONE, WHOLE],
};

/// Gemma 2.
pub(super) const SECOND: Family = Family {
    classes: &["Gemma2ForCausalLM"],
    arch: "gemma2",
    defaults: r#"{"head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096}"#,
    keys: |arch, c| {
        let mut k = windowed(arch, c)?;
        k.copy_f32(c, "attn_logit_softcapping", "attn_logit_softcapping")?;
        Ok(k)
    },
    layer: &[NORMS, ATTENTION, MLP],
    whole: &[WHOLE_PLUS_ONE, WHOLE],
};

/// Gemma 3, and the text of its models with images.
pub(super) const THIRD: Family = Family {
    classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
    arch: "gemma3",
    defaults: GEMMA3,
    keys: |arch, c| {
        let mut k = windowed(arch, c)?;
        if c.get("layer_types").is_none() {
            let period = c.u32("sliding_window_pattern")?.unwrap_or(6);
            k.set("attention.sliding_window_pattern", period);
        }
        let windowed =
            match c.object("rope_parameters")?.map(|p| p.object("sliding_attention")).transpose()? {
                Some(Some(p)) => p.f32("rope_theta")?,
                _ => c.f32("rope_local_base_freq")?,
            };
        k.set("rope.freq_base_swa", windowed.unwrap_or(10000.0));
        Ok(k)
    },
    layer: &[NORMS, ATTENTION, MLP],
    whole: &[WHOLE_PLUS_ONE, WHOLE],
};

/// Published configurations leave out what does not differ from the class.
const GEMMA3: &str = r#"{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208,
    "max_position_embeddings": 131072, "rope_theta": 1000000.0, "query_pre_attn_scalar": 256}"#;

fn windowed(arch: &'static str, c: Fields) -> Result<Keys, ConvertError> {
    let mut k = Keys::decoder(arch, c)?;
    k.windows(c)?;
    // 0 says that there is none; a missing key would say what the architecture has as a rule.
    k.set("final_logit_softcapping", c.f32("final_logit_softcapping")?.unwrap_or(0.0));
    check_scale(&k, c)?;
    Ok(k)
}

/// The architectures know two scales of scores, by the number of layers.
fn check_scale(k: &Keys, c: Fields) -> Result<(), ConvertError> {
    let Some(found) = c.f32("query_pre_attn_scalar")? else { return Ok(()) };
    let large = k.n_blocks == 46 || k.n_blocks == 62;
    let width = c.require_u32("hidden_size")? as usize;
    let expected = if large { width / k.n_heads } else { k.head_dim };
    match found == expected as f32 {
        true => Ok(()),
        false => {
            Err(c.wrong("query_pre_attn_scalar", format!("{expected} in a model of {} layers", k.n_blocks)))
        }
    }
}

const FIRST_NORMS: &[Row] = &[
    ("input_layernorm.weight", "attn_norm.weight", PlusOne),
    ("post_attention_layernorm.weight", "ffn_norm.weight", PlusOne),
];

const NORMS: &[Row] = &[
    ("input_layernorm.weight", "attn_norm.weight", PlusOne),
    ("post_attention_layernorm.weight", "post_attention_norm.weight", PlusOne),
    ("pre_feedforward_layernorm.weight", "ffn_norm.weight", PlusOne),
    ("post_feedforward_layernorm.weight", "post_ffw_norm.weight", PlusOne),
    ("self_attn.q_norm.weight", "attn_q_norm.weight", PlusOne),
    ("self_attn.k_norm.weight", "attn_k_norm.weight", PlusOne),
];
