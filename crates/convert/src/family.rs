//! The families of checkpoints that are converted, by the class that `config.json` names.

mod decoders;
mod gemma;
mod gemma4;
mod hybrid;

use crate::change::Change::{self, Keep};
use crate::error::ConvertError;
use crate::json::Fields;
use crate::keys::Keys;
use crate::tensors::Row;

/// A family: the classes of transformers, the architecture in GGUF, its keys and the tables of its tensors.
pub(crate) struct Family {
    /// Names in `architectures`.
    pub(crate) classes: &'static [&'static str],
    /// The value of `general.architecture`.
    pub(crate) arch: &'static str,
    /// What the class has where the configuration is silent, as JSON.
    pub(crate) defaults: &'static str,
    /// Reads the configuration of the text model.
    pub(crate) keys: fn(&'static str, Fields) -> Result<Keys, ConvertError>,
    /// Tensors of a layer; the first row of a name counts.
    pub(crate) layer: &'static [&'static [Row]],
    /// Tensors outside of layers.
    pub(crate) whole: &'static [&'static [Row]],
}

/// All families.
pub(crate) const FAMILIES: &[&Family] = &[
    &decoders::LLAMA,
    &decoders::MIXTRAL,
    &decoders::SMOLLM3,
    &decoders::GRANITE,
    &decoders::QWEN2,
    &decoders::QWEN2MOE,
    &decoders::QWEN3,
    &decoders::QWEN3MOE,
    &decoders::PHI3,
    &decoders::OLMO2,
    &gemma::FIRST,
    &gemma::SECOND,
    &gemma::THIRD,
    &gemma4::THIRD_N,
    &gemma4::FOURTH,
    &hybrid::QWEN35,
    &hybrid::QWEN35MOE,
    &hybrid::QWEN3NEXT,
    &hybrid::LFM2,
];

/// Embedding, final norm, head.
const WHOLE: &[Row] = &[
    ("embed_tokens.weight", "token_embd.weight", Keep),
    ("norm.weight", "output_norm.weight", Keep),
    ("lm_head.weight", "output.weight", Keep),
];

/// The same, with norms that are added to 1.
const WHOLE_PLUS_ONE: &[Row] = &[("norm.weight", "output_norm.weight", Change::PlusOne)];

/// Attention of three projections, with or without biases, rope on halves.
const ATTENTION: &[Row] = &[
    ("self_attn.q_proj.weight", "attn_q.weight", Keep),
    ("self_attn.k_proj.weight", "attn_k.weight", Keep),
    ("self_attn.v_proj.weight", "attn_v.weight", Keep),
    ("self_attn.o_proj.weight", "attn_output.weight", Keep),
    ("self_attn.q_proj.bias", "attn_q.bias", Keep),
    ("self_attn.k_proj.bias", "attn_k.bias", Keep),
    ("self_attn.v_proj.bias", "attn_v.bias", Keep),
    ("self_attn.o_proj.bias", "attn_output.bias", Keep),
    ("self_attn.q_norm.weight", "attn_q_norm.weight", Keep),
    ("self_attn.k_norm.weight", "attn_k_norm.weight", Keep),
];

/// Queries and keys of a model whose GGUF form turns adjacent elements.
const PAIRS: &[Row] = &[
    ("self_attn.q_proj.weight", "attn_q.weight", Change::QueryPairs),
    ("self_attn.k_proj.weight", "attn_k.weight", Change::KeyPairs),
    ("self_attn.q_proj.bias", "attn_q.bias", Change::QueryPairs),
    ("self_attn.k_proj.bias", "attn_k.bias", Change::KeyPairs),
];

/// A gated feed-forward.
const MLP: &[Row] = &[
    ("mlp.gate_proj.weight", "ffn_gate.weight", Keep),
    ("mlp.up_proj.weight", "ffn_up.weight", Keep),
    ("mlp.down_proj.weight", "ffn_down.weight", Keep),
    ("mlp.gate_proj.bias", "ffn_gate.bias", Keep),
    ("mlp.up_proj.bias", "ffn_up.bias", Keep),
    ("mlp.down_proj.bias", "ffn_down.bias", Keep),
];

/// Norms before each half.
const PRE_NORMS: &[Row] = &[
    ("input_layernorm.weight", "attn_norm.weight", Keep),
    ("post_attention_layernorm.weight", "ffn_norm.weight", Keep),
];

/// Experts, one tensor each or all of a layer in one.
const EXPERTS: &[Row] = &[
    ("mlp.gate.weight", "ffn_gate_inp.weight", Keep),
    ("mlp.experts.*.gate_proj.weight", "ffn_gate_exps.weight", Keep),
    ("mlp.experts.*.up_proj.weight", "ffn_up_exps.weight", Keep),
    ("mlp.experts.*.down_proj.weight", "ffn_down_exps.weight", Keep),
    ("mlp.experts.gate_up_proj", "ffn_gate_exps.weight", Change::GatesThenInputs),
    ("mlp.experts.down_proj", "ffn_down_exps.weight", Keep),
];

/// An expert that every token has, behind a gate.
const SHARED_EXPERT: &[Row] = &[
    ("mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight", Keep),
    ("mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight", Keep),
    ("mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight", Keep),
    ("mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", Change::Squeeze),
];
