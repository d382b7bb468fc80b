//! Gemma 3n and 4: rows of each token for every layer, keys that layers lend one another. Nothing is added to norms.

use firth_gguf::{Array, Value};
use serde_json::json;

use super::{ATTENTION, Family, MLP, WHOLE};
use crate::change::Change::{Keep, TokenRows};
use crate::error::ConvertError;
use crate::json::Fields;
use crate::keys::{Keys, expect};
use crate::tensors::Row;

/// Gemma 3n.
pub(super) const THIRD_N: Family = Family {
    classes: &["Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"],
    arch: "gemma3n",
    defaults: r#"{"head_dim": 256, "sliding_window": 512, "final_logit_softcapping": 30.0, "altup_num_inputs": 4,
        "hidden_size_per_layer_input": 256, "num_kv_shared_layers": 15, "rope_theta": 1000000.0}"#,
    keys: gemma3n,
    layer: &[STREAMS, LAYER_ROWS, NORMS, ATTENTION, MLP],
    whole: &[STREAM_ENDS, TOKEN_ROWS, WHOLE],
};

/// Gemma 4.
pub(super) const FOURTH: Family = Family {
    classes: &["Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"],
    arch: "gemma4",
    defaults: r#"{"head_dim": 256, "sliding_window": 512, "hidden_size_per_layer_input": 256}"#,
    keys: gemma4,
    layer: &[SIDE_EXPERTS, LAYER_ROWS, NORMS, ATTENTION, MLP],
    whole: &[TOKEN_ROWS, WHOLE],
};

const NORMS: &[Row] = &[
    ("input_layernorm.weight", "attn_norm.weight", Keep),
    ("post_attention_layernorm.weight", "post_attention_norm.weight", Keep),
    ("pre_feedforward_layernorm.weight", "ffn_norm.weight", Keep),
    ("post_feedforward_layernorm.weight", "post_ffw_norm.weight", Keep),
];

const LAYER_ROWS: &[Row] = &[
    ("per_layer_input_gate.weight", "inp_gate.weight", Keep),
    ("per_layer_projection.weight", "proj.weight", Keep),
    ("post_per_layer_input_norm.weight", "post_norm.weight", Keep),
    ("layer_scalar", "layer_output_scale.weight", Keep),
];

const TOKEN_ROWS: &[Row] = &[
    ("embed_tokens_per_layer.weight", "per_layer_token_embd.weight", TokenRows),
    ("per_layer_model_projection.weight", "per_layer_model_proj.weight", Keep),
    ("per_layer_projection_norm.weight", "per_layer_proj_norm.weight", Keep),
];

const SIDE_EXPERTS: &[Row] = &[
    ("router.proj.weight", "ffn_gate_inp.weight", Keep),
    ("router.scale", "ffn_gate_inp.scale", Keep),
    ("router.per_expert_scale", "ffn_down_exps.scale", Keep),
    ("experts.gate_up_proj", "ffn_gate_up_exps.weight", Keep),
    ("experts.down_proj", "ffn_down_exps.weight", Keep),
    ("post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight", Keep),
    ("pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight", Keep),
    ("post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight", Keep),
];

const STREAMS: &[Row] = &[
    ("altup.correct_output_scale", "altup_correct_scale.weight", Keep),
    ("altup.correction_coefs.weight", "altup_correct_coef.weight", Keep),
    ("altup.prediction_coefs.weight", "altup_predict_coef.weight", Keep),
    ("altup.modality_router.weight", "altup_router.weight", Keep),
    ("altup.router_norm.weight", "altup_router_norm.weight", Keep),
    ("laurel.linear_left.weight", "laurel_l.weight", Keep),
    ("laurel.linear_right.weight", "laurel_r.weight", Keep),
    ("laurel.post_laurel_norm.weight", "laurel_post_norm.weight", Keep),
];

const STREAM_ENDS: &[Row] = &[
    ("altup_projections.*.weight", "altup_proj.weight", Keep),
    ("altup_unembed_projections.*.weight", "altup_unembd_proj.weight", Keep),
];

fn gemma3n(arch: &'static str, c: Fields) -> Result<Keys, ConvertError> {
    let mut k = Keys::decoder(arch, c)?;
    shared(&mut k, c)?;
    expect(c, "altup_active_idx", &json!(0))?;
    expect(c, "altup_correct_scale", &json!(true))?;
    let streams = c.require_u32("altup_num_inputs")?;
    if !(2..=8).contains(&streams) {
        return Err(c.wrong("altup_num_inputs", "2 to 8"));
    }
    k.n_streams = streams as usize - 1;
    k.set("altup.num_inputs", streams);
    k.set("altup.active_idx", 0u32);
    if let Some(shut) = c.f32s("activation_sparsity_pattern")? {
        k.set("activation_sparsity_scale", Value::Array(Array::F32(deviations(c, &shut)?)));
    }
    Ok(k)
}

/// How many deviations above the mean a gate opens, for the part of gates that stay shut.
fn deviations(c: Fields, shut: &[f32]) -> Result<Vec<f32>, ConvertError> {
    let one = |part: &f32| match part {
        0.0 => Ok(0.0),
        0.95 => Ok(1.644_853_6),
        _ => Err(c.wrong("activation_sparsity_pattern", "0 or 0.95 for each layer")),
    };
    shut.iter().map(one).collect()
}

fn gemma4(arch: &'static str, c: Fields) -> Result<Keys, ConvertError> {
    let types = c.strs("layer_types")?.unwrap_or_default();
    let full: Vec<bool> = types.iter().map(|t| *t == "full_attention").collect();
    let sizes = full.iter().position(|full| *full).map(|i| full_layer(c, i)).transpose()?.flatten();
    let near_dim = c.require_u32("head_dim")?;
    let own = |name: &'static str, old: &str| match sizes.map(|s| s.u32(name)).transpose()?.flatten() {
        Some(n) => Ok::<_, ConvertError>(Some(n)),
        None => c.u32(old),
    };
    let full_dim = own("head_dim", "global_head_dim")?.unwrap_or(512);
    let mut k = Keys::with_heads(arch, c, Some(full_dim))?;
    if full.len() != k.n_blocks {
        return Err(c.wrong("layer_types", format!("{} entries", k.n_blocks)));
    }
    shared(&mut k, c)?;
    k.set("attention.key_length_swa", near_dim);
    k.set("attention.value_length_swa", near_dim);
    k.set("rope.dimension_count_swa", near_dim);
    let near_heads = k.n_kv_heads as u32;
    // Only models whose keys are values have another number of them on full layers.
    let key_is_value = c.bool("attention_k_eq_v")?.unwrap_or(false);
    let full_heads = own("num_key_value_heads", "num_global_key_value_heads")?;
    let full_heads = full_heads.filter(|_| key_is_value).unwrap_or(near_heads);
    let heads = full.iter().map(|full| if *full { full_heads } else { near_heads }).collect();
    k.set_list("attention.head_count_kv", heads);
    if c.bool("use_double_wide_mlp")?.unwrap_or(false) {
        let width = c.require_u32("intermediate_size")?;
        let first = k.n_blocks - (c.u32("num_kv_shared_layers")?.unwrap_or(0) as usize).min(k.n_blocks);
        let wide = |i| if i < first { width } else { width.saturating_mul(2) };
        k.set_list("feed_forward_length", (0..k.n_blocks).map(wide).collect());
    }
    if c.bool("enable_moe_block")?.unwrap_or(false) {
        k.experts(c, "num_experts", "moe_intermediate_size")?;
    }
    Ok(k)
}

/// What the configuration says of one layer.
fn full_layer(c: Fields, i: usize) -> Result<Option<Fields>, ConvertError> {
    let Some(all) = c.object("per_layer_config")? else { return Ok(None) };
    Ok(all.value().get(i.to_string()).map(|own| c.entry("per_layer_config", own)))
}

/// Windows, lent keys, rows of each token, the cap of logits.
fn shared(k: &mut Keys, c: Fields) -> Result<(), ConvertError> {
    k.windows(c)?;
    let near = c.object("rope_parameters")?.map(|p| p.object("sliding_attention")).transpose()?.flatten();
    let base = match near {
        Some(p) => p.f32("rope_theta")?,
        None => c.f32("rope_local_base_freq")?,
    };
    k.set("rope.freq_base_swa", base.unwrap_or(10000.0));
    k.set("attention.shared_kv_layers", c.u32("num_kv_shared_layers")?.unwrap_or(0));
    k.set("embedding_length_per_layer_input", c.u32("hidden_size_per_layer_input")?.unwrap_or(0));
    k.set("final_logit_softcapping", c.f32("final_logit_softcapping")?.unwrap_or(0.0));
    Ok(())
}
