//! Decoders with layer norm and a plain feed-forward: GPT-2, GPT-NeoX (Pythia), Falcon, StarCoder 1 and 2, CodeShell,
//! Nemotron, Jais 2, and the text side of Pocket TTS.
//!
//! Layer:  x += attention(norm(x));  x += down(act(up(norm(x)))); or both halves side by side
//! Rope:   half-split pairs over all or part of the head (adjacent in Pocket TTS); GPT-2 and StarCoder learn positions
//!         instead.
//! Source: transformers `modeling_gpt2.py`, `modeling_gpt_neox.py`, `modeling_falcon.py`, `modeling_gpt_bigcode.py`,
//! `modeling_starcoder2.py`, `modeling_nemotron.py`; GGUF keys by name. Biases count where the file has them.

use firth_graph::{ActKind, Part, RopePairs};

use crate::blocks::{Block, Chain, Decoder, Embedding, Head, Layer, Mlp, NormKind, Residual, Rope, Sum};
use crate::config::Config;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

use ActKind::{GeluTanh, ReluSquared};

/// GPT-2.
pub const GPT2: Arch = Arch { name: "gpt2", load: learned };
/// StarCoder 1.
pub const STARCODER: Arch = Arch { name: "starcoder", load: learned };
/// StarCoder 2.
pub const STARCODER2: Arch = Arch { name: "starcoder2", load: |w| turned(w, RopePairs::Half, GeluTanh) };
/// CodeShell.
pub const CODESHELL: Arch = Arch { name: "codeshell", load: |w| turned(w, RopePairs::Half, GeluTanh) };
/// Nemotron 3 and 4.
pub const NEMOTRON: Arch = Arch { name: "nemotron", load: |w| turned(w, RopePairs::Half, ReluSquared) };
/// Jais 2.
pub const JAIS2: Arch = Arch { name: "jais2", load: |w| turned(w, RopePairs::Half, ReluSquared) };
/// Pocket TTS: the head is the embedding, and its logits mean nothing.
pub const POCKETTTS: Arch = Arch { name: "pockettts", load: |w| turned(w, RopePairs::Adjacent, GeluTanh) };
/// GPT-NeoX.
pub const NEOX: Arch = Arch { name: "gptneox", load: neox };
/// Falcon.
pub const FALCON: Arch = Arch { name: "falcon", load: falcon };

fn mlp(l: &Layer, act: ActKind) -> Mlp {
    Mlp::plain(&l.ffn, "", l.c.width, l.c.hidden[l.i], act)
}

/// Positions learned, `position_embd {width, context}`.
fn learned(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Layer)?;
    let mut embed = Embedding::new(w, &c);
    embed.positions = Some(w.table("position_embd.weight", &[c.width, c.context], Part::Embedding));
    let head = Head::new(w, &c, &embed);
    Decoder::with(w, &c, embed, head, |l| l.pre_norm(l.attention(), mlp(l, GeluTanh))).boxed()
}

fn turned(w: &Weights, pairs: RopePairs, act: ActKind) -> Loaded {
    let c = Config::read(w, NormKind::Layer)?;
    let rope = Rope::new(&c, pairs);
    Decoder::new(w, &c, |l| l.pre_norm(l.attention().rope(&rope), mlp(l, act))).boxed()
}

/// One half after the other, or side by side over norms of their own.
fn neox(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Layer)?;
    let rope = Rope::new(&c, RopePairs::Half);
    let parallel = w.metadata().require_bool(&w.key("use_parallel_residual"))?;
    Decoder::new(w, &c, |l| {
        let attention = l.attention().rope(&rope);
        if !parallel {
            return l.pre_norm(attention, mlp(l, GeluTanh));
        }
        let norm = |name: &str| l.mixer.norm(name, c.width);
        beside(Chain::of(norm("attn_norm"), attention), Chain::of(norm("ffn_norm"), mlp(l, GeluTanh)))
    })
    .boxed()
}

/// Side by side over one norm, or (40B) with a norm of the attention's own.
fn falcon(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Layer)?;
    let rope = Rope::new(&c, RopePairs::Half);
    Decoder::new(w, &c, |l| {
        let attention = l.attention().rope(&rope);
        let norm = |name: &str| l.mixer.norm(name, c.width);
        let own = if l.mixer.has("attn_norm_2.weight") { "attn_norm_2" } else { "attn_norm" };
        beside(Chain::of(norm(own), attention), Chain::of(norm("attn_norm"), mlp(l, GeluTanh)))
    })
    .boxed()
}

/// `x += a(x) + b(x)`.
fn beside(a: impl Block + 'static, b: impl Block + 'static) -> Chain {
    Chain(vec![Box::new(Residual::plain(Sum(a, b)))])
}
