"""Writes small random checkpoints with Hugging Face transformers, and the logits it gives for a list of ids.

Usage: checkpoints.py OUT [NAME...]. Each NAME becomes a folder OUT/NAME with config.json, model.safetensors (or shards),
tokens.json (a list of ids) and logits.f32 (`[len(ids)][vocab]`, little-endian);
some have a vocabulary, and texts.json with the ids of texts. Weights are drawn so that every part matters: norms
differ from 1, biases from 0, decays from their defaults.
"""

import json
import os
import sys

import torch
import transformers

import vocabularies

VOCAB = 64
IDS = [(7 * i * i + 3 * i + 5) % VOCAB for i in range(20)]

BASE = dict(
    vocab_size=VOCAB,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=256,
    tie_word_embeddings=False,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, norm_topk_prob=True)
LINEAR = dict(
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=8,
    linear_value_head_dim=8,
    linear_conv_kernel_dim=4,
    num_hidden_layers=4,
    layer_types=["linear_attention"] * 3 + ["full_attention"],
)
LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=500000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)
GEMMA = dict(head_dim=16, tie_word_embeddings=True)
WINDOWS = dict(sliding_window=8, layer_types=["sliding_attention", "full_attention"])
GEMMA4 = dict(head_dim=8, global_head_dim=16, sliding_window=8, tie_word_embeddings=True)

# Name: class, fields of the configuration, options of saving.
CASES = {
    "llama": ("Llama", dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8, rope_parameters=LLAMA3, attention_bias=True), {}),
    "mistral": ("Mistral", dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8, sliding_window=None), dict(max_shard_size="4KB")),
    "mixtral": ("Mixtral", dict(num_local_experts=4, num_experts_per_tok=2), {}),
    "smollm3": ("SmolLM3", dict(num_hidden_layers=4, no_rope_layers=[1, 1, 1, 0]), {}),
    "granite": (
        "Granite",
        dict(num_attention_heads=4, num_key_value_heads=2, embedding_multiplier=3.0, residual_multiplier=0.5, attention_multiplier=0.2, logits_scaling=2.0),
        {},
    ),
    "qwen2": ("Qwen2", dict(num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True), {}),
    "qwen2moe": ("Qwen2Moe", EXPERTS | dict(norm_topk_prob=False, shared_expert_intermediate_size=12), {}),
    "qwen3": ("Qwen3", dict(head_dim=16, rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=16)), {}),
    "qwen3moe": ("Qwen3Moe", EXPERTS | dict(head_dim=16), {}),
    "gemma": ("Gemma", GEMMA, {}),
    "gemma2": ("Gemma2", GEMMA | WINDOWS | dict(query_pre_attn_scalar=16), {}),
    "gemma3": (
        "Gemma3",
        GEMMA | WINDOWS | dict(
            query_pre_attn_scalar=16,
            rope_parameters=dict(
                full_attention=dict(rope_type="linear", rope_theta=1000000.0, factor=8.0),
                sliding_attention=dict(rope_type="default", rope_theta=10000.0),
            ),
        ),
        {},
    ),
    "gemma3n": (
        "Gemma3n",
        GEMMA | dict(
            num_hidden_layers=4,
            intermediate_size=24,
            sliding_window=8,
            layer_types=["sliding_attention", "full_attention"] * 2,
            num_kv_shared_layers=2,
            activation_sparsity_pattern=[0.95, 0.0, 0.95, 0.0],
            hidden_size_per_layer_input=8,
            vocab_size_per_layer_input=60,
            laurel_rank=4,
        ),
        {},
    ),
    "gemma4": (
        "Gemma4",
        GEMMA4 | dict(num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2, num_kv_shared_layers=2,
            use_double_wide_mlp=True, hidden_size_per_layer_input=8, vocab_size_per_layer_input=448),
        {},
    ),
    "gemma4moe": (
        "Gemma4",
        GEMMA4 | dict(layer_types=["sliding_attention", "full_attention"], hidden_size_per_layer_input=0, attention_k_eq_v=True,
            num_attention_heads=4, num_key_value_heads=2, num_global_key_value_heads=1, final_logit_softcapping=20.0,
            enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=8),
        {},
    ),
    "phi3": (
        "Phi3",
        dict(
            original_max_position_embeddings=128,
            rope_parameters=dict(
                rope_type="longrope",
                rope_theta=10000.0,
                short_factor=[1.0, 1.1, 1.3, 2.0],
                long_factor=[1.0, 2.0, 4.0, 8.0],
                original_max_position_embeddings=128,
            ),
        ),
        {},
    ),
    "olmo2": ("Olmo2", {}, {}),
    "qwen35": ("Qwen3_5", LINEAR | dict(head_dim=16), {}),
    "qwen35moe": ("Qwen3_5Moe", LINEAR | EXPERTS | dict(head_dim=16, shared_expert_intermediate_size=12), {}),
    "qwen3next": ("Qwen3Next", LINEAR | EXPERTS | dict(head_dim=16, shared_expert_intermediate_size=12), {}),
    "lfm2": ("Lfm2", dict(num_hidden_layers=3, full_attn_idxs=[1], block_multiple_of=8), {}),
}


def config_class(name):
    for suffix in ["TextConfig", "Config"]:
        if hasattr(transformers, name + suffix):
            return getattr(transformers, name + suffix)
    raise SystemExit(f"transformers has no configuration for {name}")


def randomise(model):
    """Draws all weights, of numbers that bf16 holds: what is computed in f32 then is what the file says."""
    generator = torch.Generator().manual_seed(7)
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        if p.dim() > 1:
            p.data = noise * p.shape[-1] ** -0.5
        elif name.endswith("A_log"):
            p.data = noise * 0.3
        else:
            p.data = p.data + noise * 0.2
        p.data = p.data.bfloat16().float()
    for name, b in model.named_buffers():
        if name.endswith("layer_scalar"):
            b.fill_(0.75)


def main(out, names):
    transformers.logging.set_verbosity_error()
    for name in names or CASES:
        cls, fields, saving = CASES[name]
        with_text = name in vocabularies.KINDS
        if with_text:
            fields = fields | dict(vocab_size=448)
        config = config_class(cls)(**(BASE | fields))
        config._attn_implementation = "eager"
        config._experts_implementation = "eager"
        torch.manual_seed(0)
        model = getattr(transformers, cls + "ForCausalLM")(config).eval().float()
        randomise(model)
        model.tie_weights()
        # In f64: transformers' own f32 sums are up to 2e-4 off where a small norm magnifies them.
        with torch.no_grad():
            logits = model.double()(torch.tensor([IDS]), use_cache=False).logits[0]
        folder = os.path.join(out, name)
        model.bfloat16().save_pretrained(folder, **saving)
        if with_text:
            vocabularies.KINDS[name](folder)
        with open(os.path.join(folder, "tokens.json"), "w") as f:
            json.dump(IDS, f)
        logits.float().numpy().astype("<f4").tofile(os.path.join(folder, "logits.f32"))
        print(name, sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder)), "bytes", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
