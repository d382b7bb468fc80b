#!/usr/bin/env python3
"""Goldens of embedding models: small models with random weights, run by Hugging Face transformers.

usage: embedding_goldens.py OUT        (needs the PyPI packages torch, transformers and numpy)

Each NAME.json describes a GGUF file (metadata, tensors, tokens, seed) whose weights come from a generator keyed by tensor name,
so that none are kept; NAME.f32 has the outputs that the description lists, little-endian f32, one behind the other. What
transformers does not have (Jina BERT 2, Nomic BERT with experts) is written out below after the models' published code.
"""
import json
import math
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import transformers as hf

MASK = (1 << 64) - 1
SEED = 7
WIDTH, HEADS, HIDDEN, VOCAB, LAYERS = 32, 4, 48, 100, 3
NONE, MEAN, CLS, LAST = 0, 1, 2, 3
POOLING = ["none", "mean", "cls", "last", "rank"]


def weights(name, n, seed=SEED):
    """The generator of the architecture fixtures: splitmix64 over the name's hash."""
    state = 0xCBF29CE484222325
    for byte in name.encode():
        state = ((state ^ byte) * 0x100000001B3) & MASK
    state ^= (seed * 0x9E3779B97F4A7C15) & MASK
    i = np.arange(1, n + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        z = np.uint64(state) + i * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    w = ((z >> np.uint64(40)).astype(np.float64) / float(1 << 24) - 0.5) * 2.0 * 0.17320508
    if name.endswith("norm.weight"):
        w = 1.0 + w
    return torch.tensor(w.astype(np.float32))


class File:
    """A description while it is made."""

    def __init__(self, arch, keys, pooling, n_tokens=80):
        self.arch, self.tensors = arch, []
        self.meta = {"general.architecture": arch, "tokenizer.ggml.model": "no_vocab"}
        usual = {
            "context_length": 256, "embedding_length": WIDTH, "block_count": LAYERS,
            "feed_forward_length": HIDDEN, "attention.head_count": HEADS, "pooling_type": pooling,
        }
        for key, value in {**usual, **keys}.items():
            self.meta[f"{arch}.{key}"] = value
        rng = np.random.default_rng(len(arch))
        self.tokens = [int(t) for t in rng.integers(3, VOCAB, n_tokens)]
        self.ids = torch.tensor([self.tokens])
        self.pooling = pooling

    def tensor(self, name, *shape):
        """The values of a tensor of this shape, slowest axis first."""
        self.tensors.append({"name": name, "shape": list(reversed(shape)), "type": "f32"})
        return weights(name, math.prod(shape)).reshape(shape)

    def fill(self, module, names, change=lambda w: w):
        """Gives parameters the values of tensors: `tensor: parameter`, or a list of those whose rows follow each other."""
        params = dict(module.named_parameters())
        for name, of in names.items():
            of = [of] if isinstance(of, str) else of
            parts = [params[p] for p in of]
            rows = [p.shape[0] for p in parts]
            value = self.tensor(name, sum(rows), *parts[0].shape[1:])
            for p, v in zip(parts, value.split(rows)):
                p.data = change(v) if name.endswith("norm.weight") else v

    def pooled(self, rows, pooling=None):
        pooling = self.pooling if pooling is None else pooling
        return {MEAN: rows.mean(0), CLS: rows[0], LAST: rows[-1]}[pooling]

    def write(self, out, name, rows, embedding=None, scores=None):
        """`rows [n][width]`; the normalised embedding, by the file's pooling where none is given; scores of a classifier."""
        embedding = self.pooled(rows) if embedding is None else embedding
        outputs = [("none", rows), (POOLING[self.pooling], F.normalize(embedding, dim=-1))]
        outputs += [] if scores is None else [("rank", scores)]
        listed = [{"pooling": p, "n": v.numel()} for p, v in outputs]
        kinds = {bool: "bool", int: "uint32", float: "float32", str: "string"}
        entry = lambda v: {"type": kinds[type(v)], "value": v}
        meta = {key: entry(v) for key, v in self.meta.items()}
        text = {"seed": SEED, "metadata": meta, "tokens": self.tokens, "outputs": listed, "tensors": self.tensors}
        (out / f"{name}.json").write_text(json.dumps(text) + "\n")
        flat = torch.cat([v.detach().float().flatten() for _, v in outputs])
        (out / f"{name}.f32").write_bytes(flat.numpy().astype("<f4").tobytes())
        print(f"{name}: {len(self.tokens)} tokens, {flat.numel()} numbers")


def layers(names):
    """`names` of every layer, with `{i}` for its number."""
    put = lambda p, i: p.format(i=i) if isinstance(p, str) else [q.format(i=i) for q in p]
    return {put(k, i): put(v, i) for i in range(LAYERS) for k, v in names.items()}


def both(names):
    """`names` with weight and bias."""
    put = lambda p, s: f"{p}.{s}" if isinstance(p, str) else [f"{q}.{s}" for q in p]
    return {put(k, s): put(v, s) for k, v in names.items() for s in ("weight", "bias")}


def weight(names):
    put = lambda p: f"{p}.weight" if isinstance(p, str) else [f"{q}.weight" for q in p]
    return {put(k): put(v) for k, v in names.items()}


def config(kind, **more):
    usual = dict(hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=HIDDEN,
                 vocab_size=VOCAB, attn_implementation="eager", pad_token_id=0)
    return kind(**{**usual, **more})


def bert(out):
    f = File("bert", {"attention.causal": False, "attention.layer_norm_epsilon": 1e-12}, CLS)
    model = hf.BertForSequenceClassification(config(hf.BertConfig, max_position_embeddings=256, num_labels=3)).eval()
    f.fill(model.bert.embeddings, weight({
        "token_embd": "word_embeddings", "token_types": "token_type_embeddings", "position_embd": "position_embeddings",
    }) | both({"token_embd_norm": "LayerNorm"}))
    f.fill(model.bert.encoder, layers(both({
        "blk.{i}.attn_q": "layer.{i}.attention.self.query", "blk.{i}.attn_k": "layer.{i}.attention.self.key",
        "blk.{i}.attn_v": "layer.{i}.attention.self.value", "blk.{i}.attn_output": "layer.{i}.attention.output.dense",
        "blk.{i}.attn_output_norm": "layer.{i}.attention.output.LayerNorm",
        "blk.{i}.ffn_up": "layer.{i}.intermediate.dense", "blk.{i}.ffn_down": "layer.{i}.output.dense",
        "blk.{i}.layer_output_norm": "layer.{i}.output.LayerNorm",
    })))
    f.fill(model, both({"cls": "bert.pooler.dense", "cls.output": "classifier"}))
    rows = model.bert(f.ids).last_hidden_state[0]
    f.write(out, "bert", rows, scores=model(f.ids).logits[0])


def jina3(out):
    f = File("jina-bert-v3", {"attention.causal": False, "attention.layer_norm_epsilon": 1e-5,
                              "rope.freq_base": 20000.0}, MEAN)
    kind = hf.models.jina_embeddings_v3
    model = kind.JinaEmbeddingsV3Model(config(kind.JinaEmbeddingsV3Config)).eval()
    f.fill(model.embeddings, weight({
        "token_embd": "word_embeddings", "token_types": "token_type_embeddings",
    }) | both({"token_embd_norm": "LayerNorm"}))
    f.fill(model, layers(both({
        "blk.{i}.attn_qkv": [f"layers.{{i}}.self_attn.{p}_proj" for p in "qkv"],
        "blk.{i}.attn_output": "layers.{i}.self_attn.o_proj",
        "blk.{i}.attn_output_norm": "layers.{i}.post_attention_layernorm",
        "blk.{i}.ffn_up": "layers.{i}.mlp.fc1", "blk.{i}.ffn_down": "layers.{i}.mlp.fc2",
        "blk.{i}.layer_output_norm": "layers.{i}.post_mlp_layernorm",
    })))
    f.write(out, "jina-bert-v3", model(f.ids).last_hidden_state[0])


def nomic(out):
    f = File("nomic-bert", {"attention.causal": False, "attention.layer_norm_epsilon": 1e-12,
                            "rope.freq_base": 1000.0}, MEAN)
    model = hf.NomicBertModel(config(hf.NomicBertConfig)).eval()
    f.fill(model.embeddings, weight({
        "token_embd": "word_embeddings", "token_types": "token_type_embeddings",
    }) | both({"token_embd_norm": "LayerNorm"}))
    f.fill(model, layers(weight({
        "blk.{i}.attn_qkv": [f"layers.{{i}}.self_attn.{p}_proj" for p in "qkv"],
        "blk.{i}.attn_output": "layers.{i}.self_attn.o_proj",
        "blk.{i}.ffn_gate": "layers.{i}.mlp.gate_proj", "blk.{i}.ffn_up": "layers.{i}.mlp.up_proj",
        "blk.{i}.ffn_down": "layers.{i}.mlp.down_proj",
    }) | both({
        "blk.{i}.attn_output_norm": "layers.{i}.post_attention_layernorm",
        "blk.{i}.layer_output_norm": "layers.{i}.post_mlp_layernorm",
    })))
    f.write(out, "nomic-bert", model(f.ids).last_hidden_state[0])


def modern(out):
    f = File("modern-bert", {"attention.causal": False, "attention.layer_norm_epsilon": 1e-5, "rope.freq_base": 160000.0,
                             "rope.freq_base_swa": 10000.0, "attention.sliding_window": 16}, CLS)
    model = hf.ModernBertForSequenceClassification(config(
        hf.ModernBertConfig, local_attention=16, num_labels=2, classifier_pooling="mean", bos_token_id=1, eos_token_id=2,
        cls_token_id=1, sep_token_id=2)).eval()
    f.fill(model.model, weight({
        "token_embd": "embeddings.tok_embeddings", "token_embd_norm": "embeddings.norm", "output_norm": "final_norm"}))
    f.fill(model.model, layers(weight({
        "blk.{i}.attn_qkv": "layers.{i}.attn.Wqkv", "blk.{i}.attn_output": "layers.{i}.attn.Wo",
        "blk.{i}.ffn_norm": "layers.{i}.mlp_norm", "blk.{i}.ffn_up": "layers.{i}.mlp.Wi",
        "blk.{i}.ffn_down": "layers.{i}.mlp.Wo",
    })))
    f.fill(model.model, {f"blk.{i}.attn_norm.weight": f"layers.{i}.attn_norm.weight" for i in range(1, LAYERS)})
    f.fill(model, weight({"cls": "head.dense", "cls.norm": "head.norm"}) | both({"cls.output": "classifier"}))
    rows = model.model(f.ids).last_hidden_state[0]
    f.write(out, "modern-bert", rows, scores=model(f.ids).logits[0])


def gemma(out):
    f = File("gemma-embedding", {
        "attention.layer_norm_rms_epsilon": 1e-6, "attention.head_count_kv": 1, "attention.key_length": 16,
        "attention.value_length": 16, "attention.sliding_window": 24, "rope.freq_base": 1000000.0,
        "block_count": 6, "dense_2_feat_in": WIDTH, "dense_2_feat_out": 64, "dense_3_feat_in": 64,
        "dense_3_feat_out": WIDTH}, MEAN)
    model = hf.Gemma3TextModel(config(
        hf.Gemma3TextConfig, num_hidden_layers=6, num_key_value_heads=1, head_dim=16, query_pre_attn_scalar=16,
        sliding_window=24, use_bidirectional_attention=True)).eval()
    names = {"token_embd": "embed_tokens", "output_norm": "norm"}
    for i in range(6):
        names |= {f"blk.{i}.{k}": f"layers.{i}.{v}" for k, v in {
            "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
            "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
            "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
            "attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm",
            "ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}.items()}
    # Files have 1 added to the weights of norms.
    f.fill(model, weight(names), change=lambda w: w - 1.0)
    rows = model(f.ids).last_hidden_state[0]
    dense = [f.tensor("dense_2.weight", 64, WIDTH), f.tensor("dense_3.weight", WIDTH, 64)]
    f.write(out, "gemma-embedding", rows, embedding=dense[1] @ (dense[0] @ f.pooled(rows)))


def t5(out, arch, gated):
    f = File(arch, {"attention.layer_norm_rms_epsilon": 1e-6, "attention.relative_buckets_count": 32,
                    "attention.key_length": 16, "attention.value_length": 16}, MEAN, n_tokens=170)
    model = hf.T5EncoderModel(hf.T5Config(
        d_model=WIDTH, d_kv=16, d_ff=HIDDEN, num_layers=LAYERS, num_heads=HEADS, vocab_size=VOCAB,
        feed_forward_proj="gated-gelu" if gated else "relu", attn_implementation="eager")).eval()
    f.fill(model, {"token_embd.weight": "shared.weight", "enc.output_norm.weight": "encoder.final_layer_norm.weight",
                   "enc.blk.0.attn_rel_b.weight":
                       "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"})
    block = "encoder.block.{i}.layer."
    ffn = {"ffn_gate": "wi_0", "ffn_up": "wi_1"} if gated else {"ffn_up": "wi"}
    f.fill(model, layers(weight(
        {f"enc.blk.{{i}}.attn_{p}": f"{block}0.SelfAttention.{p}" for p in "qkvo"}
        | {"enc.blk.{i}.attn_norm": f"{block}0.layer_norm", "enc.blk.{i}.ffn_norm": f"{block}1.layer_norm"}
        | {f"enc.blk.{{i}}.{k}": f"{block}1.DenseReluDense.{v}" for k, v in {**ffn, "ffn_down": "wo"}.items()})))
    f.write(out, arch, model(f.ids).last_hidden_state[0])


def qwen3(out):
    f = File("qwen3", {"attention.layer_norm_rms_epsilon": 1e-6, "attention.head_count_kv": 2,
                       "attention.key_length": 16, "attention.value_length": 16, "rope.freq_base": 1000000.0}, LAST)
    model = hf.Qwen3Model(config(hf.Qwen3Config, num_key_value_heads=2, head_dim=16,
                                 rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})).eval()
    f.fill(model, weight({"token_embd": "embed_tokens", "output_norm": "norm"}) | layers(weight({
        f"blk.{{i}}.{k}": f"layers.{{i}}.{v}" for k, v in {
            "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
            "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
            "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
            "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}.items()})))
    rows = model(f.ids).last_hidden_state[0]
    # A reranker's rows of the head for yes and no.
    yes_no = f.tensor("cls.output.weight", 2, WIDTH)
    f.write(out, "qwen3", rows, scores=torch.softmax(yes_no @ rows[-1], 0))


def norm(f, name, x, eps):
    n = x.shape[-1]
    return F.layer_norm(x, (n,), f.tensor(f"{name}.weight", n), f.tensor(f"{name}.bias", n), eps)


def linear(f, name, x, n_out, bias=True):
    w = f.tensor(f"{name}.weight", n_out, x.shape[-1])
    return F.linear(x, w, f.tensor(f"{name}.bias", n_out) if bias else None)


def heads(x):
    return x.reshape(x.shape[0], HEADS, -1).transpose(0, 1)


def attend(q, k, v, bias=0.0):
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]) + bias
    y = torch.softmax(scores, -1) @ v
    return y.transpose(0, 1).reshape(q.shape[1], -1)


def embedded(f, eps):
    x = f.tensor("token_embd.weight", VOCAB, WIDTH)[f.tokens] + f.tensor("token_types.weight", 2, WIDTH)[0]
    return norm(f, "token_embd_norm", x, eps)


def jina2(out, name, code):
    """jinaai/jina-bert-implementation, and with `code` jinaai/jina-bert-v2-qk-post-norm."""
    f = File("jina-bert-v2", {"attention.causal": False, "attention.layer_norm_epsilon": 1e-12}, MEAN)
    eps, n = 1e-12, len(f.tokens)
    slopes = torch.tensor([2.0 ** (-8.0 * (h + 1) / HEADS) for h in range(HEADS)])
    at = torch.arange(n)
    alibi = -slopes[:, None, None] * (at[:, None] - at[None, :]).abs()
    x = embedded(f, eps)
    for i in range(LAYERS):
        b = f"blk.{i}."
        q, k, v = (linear(f, f"{b}attn_{p}", x, WIDTH) for p in "qkv")
        if code:
            q, k = norm(f, f"{b}attn_q_norm", q, eps), norm(f, f"{b}attn_k_norm", k, eps)
        y = attend(heads(q), heads(k), heads(v), alibi)
        y = norm(f, f"{b}attn_output_norm", linear(f, f"{b}attn_output", y, WIDTH) + x, eps)
        if code:
            y = norm(f, f"{b}attn_norm_2", y + x, eps)
            both = linear(f, f"{b}ffn_up", y, 2 * HIDDEN, bias=False)
            h = F.gelu(both[:, :HIDDEN]) * both[:, HIDDEN:]
        else:
            gate = linear(f, f"{b}ffn_gate", y, HIDDEN, bias=False)
            h = F.gelu(gate) * linear(f, f"{b}ffn_up", y, HIDDEN, bias=False)
        x = norm(f, f"{b}layer_output_norm", linear(f, f"{b}ffn_down", h, WIDTH) + y, eps)
    f.write(out, name, x)


def turned(x, base):
    """Half-split pairs, all of a head."""
    d = x.shape[-1]
    angles = torch.outer(torch.arange(x.shape[1]).float(), base ** (-torch.arange(0, d, 2).float() / d))
    cos, sin = (torch.cat([t, t], -1) for t in (angles.cos(), angles.sin()))
    return x * cos + torch.cat([-x[..., d // 2:], x[..., :d // 2]], -1) * sin


def nomic_moe(out):
    """nomic-ai/nomic-bert-2048 with experts in every second layer: softmax over all, the best two as they are."""
    experts, used, eps = 4, 2, 1e-5
    f = File("nomic-bert-moe", {"attention.causal": False, "attention.layer_norm_epsilon": eps, "rope.freq_base": 10000.0,
                                "expert_count": experts, "expert_used_count": used, "moe_every_n_layers": 2}, MEAN)
    x = embedded(f, eps)
    for i in range(LAYERS):
        b = f"blk.{i}."
        q, k, v = (heads(p) for p in linear(f, f"{b}attn_qkv", x, 3 * WIDTH).split(WIDTH, -1))
        y = attend(turned(q, 10000.0), turned(k, 10000.0), v)
        y = norm(f, f"{b}attn_output_norm", linear(f, f"{b}attn_output", y, WIDTH) + x, eps)
        if i % 2 == 1:
            share, chosen = torch.softmax(linear(f, f"{b}ffn_gate_inp", y, experts, bias=False), -1).topk(used, -1)
            up = f.tensor(f"{b}ffn_up_exps.weight", experts, HIDDEN, WIDTH)
            down = f.tensor(f"{b}ffn_down_exps.weight", experts, WIDTH, HIDDEN)
            h = torch.stack([
                sum(s * (down[e] @ F.gelu(up[e] @ row)) for s, e in zip(shares, es))
                for row, shares, es in zip(y, share, chosen)])
        else:
            h = linear(f, f"{b}ffn_down", F.gelu(linear(f, f"{b}ffn_up", y, HIDDEN)), WIDTH)
        x = norm(f, f"{b}layer_output_norm", h + y, eps)
    f.write(out, "nomic-bert-moe", x)


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    with torch.no_grad():
        bert(out)
        jina2(out, "jina-bert-v2", code=False)
        jina2(out, "jina-bert-v2-code", code=True)
        jina3(out)
        nomic(out)
        nomic_moe(out)
        modern(out)
        gemma(out)
        t5(out, "t5", gated=False)
        t5(out, "t5encoder", gated=True)
        qwen3(out)


main()
