//! What a tensor is in a model, by its name, and whether it is quantised at all.

/// What the rules tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Role {
    Output,
    Embedding,
    /// Queries, keys and values in one.
    Qkv,
    KvB,
    Value,
    Key,
    Query,
    AttentionOutput,
    Up,
    Gate,
    Down,
    Other,
}

impl Role {
    /// The first test that a name meets.
    pub(super) fn of(name: &str) -> Role {
        const CONTAINS: &[(&str, Role)] = &[
            ("attn_qkv.weight", Role::Qkv),
            ("attn_kv_b.weight", Role::KvB),
            ("attn_v.weight", Role::Value),
            ("attn_k.weight", Role::Key),
            ("attn_q.weight", Role::Query),
            ("attn_output.weight", Role::AttentionOutput),
            ("ffn_up", Role::Up),
            ("ffn_gate", Role::Gate),
            ("ffn_down", Role::Down),
        ];
        match name {
            "output.weight" => Role::Output,
            "token_embd.weight" | "per_layer_token_embd.weight" => Role::Embedding,
            _ => CONTAINS.iter().find(|c| name.contains(c.0)).map_or(Role::Other, |c| c.1),
        }
    }

    /// Values, alone or joined with others.
    pub(super) fn is_value_like(self) -> bool {
        matches!(self, Role::Value | Role::Qkv | Role::KvB)
    }
}

/// Parts of names of tensors that are never quantised: small, or too sensitive.
const KEPT: &[&str] = &[
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "time_mix_first.weight",
    "time_mix_w0.weight",
    "time_mix_w1.weight",
    "time_mix_w2.weight",
    "time_mix_v0.weight",
    "time_mix_v1.weight",
    "time_mix_v2.weight",
    "time_mix_a0.weight",
    "time_mix_a1.weight",
    "time_mix_a2.weight",
    "time_mix_g1.weight",
    "time_mix_g2.weight",
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    "attn_rel_b.weight",
    ".position_embd",
    "sam.pos_embd",
    "sam.neck.",
    "sam.net_",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
    "a.rvq.codebook",
    "mm.a.code_embd",
];

/// More of them in glm5-next.
const KEPT_GLM5_NEXT: &[&str] = &[
    "hc_",
    "indexer.attn_q_b",
    "indexer.attn_k",
    "indexer.proj",
    "indexer_compressor_gate",
    "indexer_compressor_ape",
    "ssm_f_a.weight",
    "ssm_f_b.weight",
    "ssm_g_a.weight",
    "ssm_g_b.weight",
    "ssm_beta.weight",
    "attn_kv_a_mqa.weight",
    "attn_k_b.weight",
    "attn_v_b.weight",
];

/// Whether a tensor of `shape`, fastest axis first, may change its type. Trailing axes of 1 do not count.
pub(super) fn may_quantise(arch: &str, name: &str, shape: &[u64]) -> bool {
    let n_axes = shape.iter().rposition(|n| *n != 1).map_or(0, |last| last + 1);
    let kept = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    n_axes >= 2
        && name.ends_with("weight")
        && !matches!(name, "position_embd.weight" | "token_types.weight")
        && !kept(KEPT)
        && !(arch == "glm5-next" && kept(KEPT_GLM5_NEXT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles() {
        let cases = [
            ("output.weight", Role::Output),
            ("blk.0.attn_output.weight", Role::AttentionOutput),
            ("blk.3.ffn_down_exps.weight", Role::Down),
            ("blk.3.ffn_gate_up_exps.weight", Role::Gate),
            ("enc.blk.1.attn_v.weight", Role::Value),
            ("dec.blk.1.cross_attn_v.weight", Role::Value),
            ("blk.0.attn_q_a.weight", Role::Other),
            ("blk.0.ssm_out.weight", Role::Other),
        ];
        for (name, role) in cases {
            assert_eq!(Role::of(name), role, "{name}");
        }
    }

    #[test]
    fn what_is_kept() {
        assert!(may_quantise("llama", "blk.0.attn_q.weight", &[256, 256]));
        for (name, shape) in [
            ("blk.0.attn_norm.weight", &[256][..]),
            ("blk.0.ffn_gate_inp.weight", &[256, 8]),
            ("blk.0.attn_q.bias", &[256, 256]),
            ("blk.0.attn_q.weight", &[256, 1, 1]),
            ("position_embd.weight", &[256, 512]),
            ("blk.0.ssm_conv1d.weight", &[4, 256]),
        ] {
            assert!(!may_quantise("llama", name, shape), "{name} {shape:?}");
        }
        assert!(may_quantise("kimi-linear", "blk.0.attn_k_b.weight", &[256, 64, 2]));
        assert!(!may_quantise("glm5-next", "blk.0.attn_k_b.weight", &[256, 64, 2]));
    }
}
