//! Plain decoders, dense and with experts.

use serde_json::json;

use super::{ATTENTION, EXPERTS, Family, MLP, PAIRS, PRE_NORMS, SHARED_EXPERT, WHOLE};
use crate::change::Change::Keep;
use crate::error::ConvertError;
use crate::json::Fields;
use crate::keys::{Keys, expect};
use crate::tensors::Row;

/// Llama, and Mistral with it.
pub(super) const LLAMA: Family = Family {
    classes: &["LlamaForCausalLM", "MistralForCausalLM"],
    arch: "llama",
    defaults: r#"{}"#,
    keys: llama,
    layer: &[PAIRS, ATTENTION, MLP, PRE_NORMS],
    whole: &[WHOLE],
};

/// Mixtral, a llama with experts.
pub(super) const MIXTRAL: Family = Family {
    classes: &["MixtralForCausalLM"],
    arch: "llama",
    defaults: r#"{"rms_norm_eps": 1e-5}"#,
    keys: |arch, c| {
        let mut k = llama(arch, c)?;
        k.experts(c, "num_local_experts", "intermediate_size")?;
        Ok(k)
    },
    layer: &[PAIRS, ATTENTION, MIXTRAL_EXPERTS, EXPERTS, PRE_NORMS],
    whole: &[WHOLE],
};

const MIXTRAL_EXPERTS: &[Row] = &[
    ("block_sparse_moe.gate.weight", "ffn_gate_inp.weight", Keep),
    ("block_sparse_moe.experts.*.w1.weight", "ffn_gate_exps.weight", Keep),
    ("block_sparse_moe.experts.*.w3.weight", "ffn_up_exps.weight", Keep),
    ("block_sparse_moe.experts.*.w2.weight", "ffn_down_exps.weight", Keep),
];

/// SmolLM 3, whose every fourth layer has no rope.
pub(super) const SMOLLM3: Family = Family {
    classes: &["SmolLM3ForCausalLM"],
    arch: "smollm3",
    defaults: r#"{}"#,
    keys: |arch, c| {
        let k = Keys::decoder(arch, c)?;
        expect(c, "no_rope_layer_interval", &json!(4))?;
        if let Some(on) = c.u32s("no_rope_layers")?
            && on.iter().enumerate().any(|(i, on)| (*on == 0) != (i % 4 == 3))
        {
            return Err(c.wrong("no_rope_layers", "0 for every fourth layer, 1 for the others"));
        }
        Ok(k)
    },
    layer: &[PAIRS, ATTENTION, MLP, PRE_NORMS],
    whole: &[WHOLE],
};

/// Granite, a llama with factors.
pub(super) const GRANITE: Family = Family {
    classes: &["GraniteForCausalLM"],
    arch: "granite",
    defaults: r#"{}"#,
    keys: |arch, c| {
        let mut k = Keys::decoder(arch, c)?;
        k.copy_f32(c, "embedding_multiplier", "embedding_scale")?;
        k.copy_f32(c, "residual_multiplier", "residual_scale")?;
        k.copy_f32(c, "attention_multiplier", "attention.scale")?;
        k.copy_f32(c, "logits_scaling", "logit_scale")?;
        Ok(k)
    },
    layer: &[PAIRS, ATTENTION, MLP, PRE_NORMS],
    whole: &[WHOLE],
};

/// Qwen 2 and 2.5.
pub(super) const QWEN2: Family = Family {
    classes: &["Qwen2ForCausalLM"],
    arch: "qwen2",
    defaults: r#"{}"#,
    keys: no_window,
    layer: &[ATTENTION, MLP, PRE_NORMS],
    whole: &[WHOLE],
};

/// Qwen 2 with experts, one of them shared.
pub(super) const QWEN2MOE: Family = Family {
    classes: &["Qwen2MoeForCausalLM"],
    arch: "qwen2moe",
    defaults: r#"{}"#,
    keys: |arch, c| {
        let mut k = experts(arch, c)?;
        expect(c, "norm_topk_prob", &json!(false))?;
        k.copy_u32(c, "shared_expert_intermediate_size", "expert_shared_feed_forward_length")?;
        Ok(k)
    },
    layer: &[ATTENTION, EXPERTS, SHARED_EXPERT, PRE_NORMS],
    whole: &[WHOLE],
};

/// Qwen 3.
pub(super) const QWEN3: Family = Family {
    classes: &["Qwen3ForCausalLM"],
    arch: "qwen3",
    defaults: r#"{}"#,
    keys: no_window,
    layer: &[ATTENTION, MLP, PRE_NORMS],
    whole: &[WHOLE],
};

/// Qwen 3 with experts.
pub(super) const QWEN3MOE: Family = Family {
    classes: &["Qwen3MoeForCausalLM"],
    arch: "qwen3moe",
    defaults: r#"{}"#,
    keys: |arch, c| {
        let k = experts(arch, c)?;
        expect(c, "norm_topk_prob", &json!(true))?;
        Ok(k)
    },
    layer: &[ATTENTION, EXPERTS, PRE_NORMS],
    whole: &[WHOLE],
};

/// Phi 3, 3.5 and 4: projections that are one tensor stay one.
pub(super) const PHI3: Family = Family {
    classes: &["Phi3ForCausalLM"],
    arch: "phi3",
    defaults: r#"{"rms_norm_eps": 1e-5}"#,
    keys: |arch, c| {
        let mut k = Keys::decoder(arch, c)?;
        within_window(&mut k, c)?;
        Ok(k)
    },
    layer: &[PHI3_ROWS, ATTENTION, MLP, PRE_NORMS],
    whole: &[WHOLE],
};

const PHI3_ROWS: &[Row] = &[
    ("self_attn.qkv_proj.weight", "attn_qkv.weight", Keep),
    ("mlp.gate_up_proj.weight", "ffn_up.weight", Keep),
];

/// OLMo 2: norms after each half.
pub(super) const OLMO2: Family = Family {
    classes: &["Olmo2ForCausalLM"],
    arch: "olmo2",
    defaults: r#"{}"#,
    keys: Keys::decoder,
    layer: &[ATTENTION, MLP, POST_NORMS],
    whole: &[WHOLE],
};

const POST_NORMS: &[Row] = &[
    ("post_attention_layernorm.weight", "post_attention_norm.weight", Keep),
    ("post_feedforward_layernorm.weight", "post_ffw_norm.weight", Keep),
];

fn llama(arch: &'static str, c: Fields) -> Result<Keys, ConvertError> {
    let mut k = Keys::decoder(arch, c)?;
    within_window(&mut k, c)?;
    Ok(k)
}

/// The architecture has no window: within it every token sees all before it, so the context ends there.
fn within_window(k: &mut Keys, c: Fields) -> Result<(), ConvertError> {
    let Some(window) = c.u32("sliding_window")?.filter(|w| *w > 0) else { return Ok(()) };
    if c.u32("max_position_embeddings")?.is_none_or(|context| context > window) {
        k.set("context_length", window);
    }
    Ok(())
}

fn no_window(arch: &'static str, c: Fields) -> Result<Keys, ConvertError> {
    let k = Keys::decoder(arch, c)?;
    expect(c, "use_sliding_window", &json!(false))?;
    Ok(k)
}

fn experts(arch: &'static str, c: Fields) -> Result<Keys, ConvertError> {
    let mut k = no_window(arch, c)?;
    k.experts(c, "num_experts", "moe_intermediate_size")?;
    expect(c, "decoder_sparse_step", &json!(1))?;
    expect(c, "mlp_only_layers", &json!([]))?;
    Ok(k)
}
