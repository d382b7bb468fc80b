//! Decoders with recurrent layers: gated delta nets, short convolutions.

use firth_gguf::{Array, Value};
use serde_json::json;

use super::{ATTENTION, EXPERTS, Family, MLP, SHARED_EXPERT, WHOLE, WHOLE_PLUS_ONE};
use crate::change::Change::{self, Keep, NegExp, PlusOne, Squeeze, ValueColumns};
use crate::change::ValueRows::{AfterKeys, Heads, Single};
use crate::error::ConvertError;
use crate::json::Fields;
use crate::keys::{Keys, count, expect};
use crate::tensors::Row;

/// Qwen 3.5.
pub(super) const QWEN35: Family = Family {
    classes: &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
    arch: "qwen35",
    defaults: r#"{}"#,
    keys: delta_net,
    layer: &[TILED, NORMS, ATTENTION, MLP],
    whole: &[WHOLE_PLUS_ONE, WHOLE],
};

/// Qwen 3.5 with experts.
pub(super) const QWEN35MOE: Family = Family {
    classes: &["Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"],
    arch: "qwen35moe",
    defaults: r#"{}"#,
    keys: experts,
    layer: &[TILED, NORMS, ATTENTION, EXPERTS, SHARED_EXPERT],
    whole: &[WHOLE_PLUS_ONE, WHOLE],
};

/// Qwen3-Next: value heads stay grouped.
pub(super) const QWEN3NEXT: Family = Family {
    classes: &["Qwen3NextForCausalLM"],
    arch: "qwen3next",
    defaults: r#"{}"#,
    keys: |arch, c| {
        let k = experts(arch, c)?;
        expect(c, "decoder_sparse_step", &json!(1))?;
        expect(c, "mlp_only_layers", &json!([]))?;
        expect(c, "norm_topk_prob", &json!(true))?;
        Ok(k)
    },
    layer: &[GROUPED, NORMS, ATTENTION, EXPERTS, SHARED_EXPERT],
    whole: &[WHOLE_PLUS_ONE, WHOLE],
};

/// LFM2: short convolutions.
pub(super) const LFM2: Family = Family {
    classes: &["Lfm2ForCausalLM"],
    arch: "lfm2",
    defaults: r#"{"rope_theta": 1000000.0, "norm_eps": 1e-5}"#,
    keys: lfm2,
    layer: &[LFM2_ROWS],
    whole: &[LFM2_WHOLE],
};

const NORMS: &[Row] = &[
    ("input_layernorm.weight", "attn_norm.weight", PlusOne),
    ("post_attention_layernorm.weight", "post_attention_norm.weight", PlusOne),
    ("self_attn.q_norm.weight", "attn_q_norm.weight", PlusOne),
    ("self_attn.k_norm.weight", "attn_k_norm.weight", PlusOne),
];

const TILED: &[Row] = &[
    ("linear_attn.in_proj_qkv.weight", "attn_qkv.weight", Change::ValueRows(AfterKeys)),
    ("linear_attn.in_proj_z.weight", "attn_gate.weight", Change::ValueRows(Heads)),
    ("linear_attn.in_proj_a.weight", "ssm_alpha.weight", Change::ValueRows(Single)),
    ("linear_attn.in_proj_b.weight", "ssm_beta.weight", Change::ValueRows(Single)),
    ("linear_attn.conv1d.weight", "ssm_conv1d.weight", Change::ValueRows(AfterKeys)),
    ("linear_attn.dt_bias", "ssm_dt.bias", Change::ValueRows(Single)),
    ("linear_attn.A_log", "ssm_a", Change::ValueRows(Single)),
    ("linear_attn.norm.weight", "ssm_norm.weight", Keep),
    ("linear_attn.out_proj.weight", "ssm_out.weight", ValueColumns),
];

const GROUPED: &[Row] = &[
    ("linear_attn.in_proj_qkvz.weight", "attn_qkv.weight", Change::QueryKeyValueGate),
    ("linear_attn.in_proj_ba.weight", "ssm_ba.weight", Keep),
    ("linear_attn.conv1d.weight", "ssm_conv1d.weight", Squeeze),
    ("linear_attn.dt_bias", "ssm_dt.bias", Keep),
    ("linear_attn.A_log", "ssm_a", NegExp),
    ("linear_attn.norm.weight", "ssm_norm.weight", Keep),
    ("linear_attn.out_proj.weight", "ssm_out.weight", Keep),
];

const LFM2_ROWS: &[Row] = &[
    ("operator_norm.weight", "attn_norm.weight", Keep),
    ("ffn_norm.weight", "ffn_norm.weight", Keep),
    ("feed_forward.w1.weight", "ffn_gate.weight", Keep),
    ("feed_forward.w3.weight", "ffn_up.weight", Keep),
    ("feed_forward.w2.weight", "ffn_down.weight", Keep),
    ("self_attn.q_proj.weight", "attn_q.weight", Keep),
    ("self_attn.k_proj.weight", "attn_k.weight", Keep),
    ("self_attn.v_proj.weight", "attn_v.weight", Keep),
    ("self_attn.out_proj.weight", "attn_output.weight", Keep),
    ("self_attn.q_layernorm.weight", "attn_q_norm.weight", Keep),
    ("self_attn.k_layernorm.weight", "attn_k_norm.weight", Keep),
    ("conv.conv.weight", "shortconv.conv.weight", Squeeze),
    ("conv.in_proj.weight", "shortconv.in_proj.weight", Keep),
    ("conv.out_proj.weight", "shortconv.out_proj.weight", Keep),
];

const LFM2_WHOLE: &[Row] = &[
    ("embed_tokens.weight", "token_embd.weight", Keep),
    ("embedding_norm.weight", "token_embd_norm.weight", Keep),
    ("lm_head.weight", "output.weight", Keep),
];

fn delta_net(arch: &'static str, c: Fields) -> Result<Keys, ConvertError> {
    let mut k = Keys::decoder(arch, c)?;
    let of = |name| count(c, name).map(|n| n as usize);
    let l = &mut k.linear;
    l.n_key_heads = of("linear_num_key_heads")?;
    l.n_value_heads = of("linear_num_value_heads")?;
    l.key_dim = of("linear_key_head_dim")?;
    l.value_dim = of("linear_value_head_dim")?;
    if !l.n_value_heads.is_multiple_of(l.n_key_heads) {
        let expected = format!("a multiple of linear_num_key_heads, which is {}", l.n_key_heads);
        return Err(c.wrong("linear_num_value_heads", expected));
    }
    let sizes = [
        ("ssm.state_size", l.key_dim),
        ("ssm.group_count", l.n_key_heads),
        ("ssm.time_step_rank", l.n_value_heads),
        ("ssm.inner_size", l.value_dim * l.n_value_heads),
    ];
    for (name, n) in sizes {
        k.set(name, n as u32);
    }
    k.set("ssm.conv_kernel", count(c, "linear_conv_kernel_dim")?);
    let interval = c.u32("full_attention_interval")?.unwrap_or(4);
    k.set("full_attention_interval", interval);
    if let Some(types) = c.strs("layer_types")? {
        if types.len() != k.n_blocks {
            return Err(c.wrong("layer_types", format!("{} entries", k.n_blocks)));
        }
        let recurrent = types.iter().map(|t| *t == "linear_attention").collect();
        k.set("attention.recurrent_layers", Value::Array(Array::Bool(recurrent)));
    }
    Ok(k)
}

fn experts(arch: &'static str, c: Fields) -> Result<Keys, ConvertError> {
    let mut k = delta_net(arch, c)?;
    k.experts(c, "num_experts", "moe_intermediate_size")?;
    k.copy_u32(c, "shared_expert_intermediate_size", "expert_shared_feed_forward_length")?;
    Ok(k)
}

fn lfm2(arch: &'static str, c: Fields) -> Result<Keys, ConvertError> {
    let mut k = Keys::decoder(arch, c)?;
    k.set("shortconv.l_cache", c.u32("conv_L_cache")?.unwrap_or(3));
    let types = match (c.strs("layer_types")?, c.u32s("full_attn_idxs")?) {
        (Some(types), _) => types.iter().map(|t| *t == "full_attention").collect(),
        (None, Some(full)) => (0..k.n_blocks).map(|i| full.contains(&(i as u32))).collect::<Vec<bool>>(),
        (None, None) => return Err(c.wrong("layer_types", "a list of strings")),
    };
    if types.len() != k.n_blocks {
        return Err(c.wrong("layer_types", format!("{} entries", k.n_blocks)));
    }
    let kv_heads = k.n_kv_heads as u32;
    k.set_list(
        "attention.head_count_kv",
        types.iter().map(|full| if *full { kv_heads } else { 0 }).collect(),
    );
    let mut hidden = c.u32("block_ff_dim")?.or(c.u32("intermediate_size")?).unwrap_or(0);
    if c.bool("block_auto_adjust_ff_dim")?.unwrap_or(true) {
        let multiple = c.u32("block_multiple_of")?.unwrap_or(256).max(1);
        let multiplier = c.f32("block_ffn_dim_multiplier")?.unwrap_or(1.0);
        hidden = ((hidden as u64 * 2 / 3) as f32 * multiplier) as u32;
        hidden = hidden.checked_next_multiple_of(multiple).unwrap_or(hidden);
    }
    k.set("feed_forward_length", hidden);
    Ok(k)
}
