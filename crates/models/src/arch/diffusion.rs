//! Models that fill in masked tokens: Dream, LLaDA, LLaDA-MoE, RND1. Every token sees its whole sequence, which must be
//! in one step.
//!
//! Layer:  x += attention(norm(x));  x += ffn(norm(x)): that of Qwen 2, Llama, OLMoE and Qwen 3 with experts
//! Rope:   half-split pairs; adjacent in LLaDA.
//! Source: DreamLM `modeling_dream.py`, ML-GSAI `modeling_llada.py`, inclusionAI `modeling_lladamoe.py`; GGUF keys by
//! name. Biases count where the file has them, but for Dream's of the head and LLaDA's of output projection and
//! feed-forward. Row i speaks of position i in LLaDA (`diffusion.shift_logits` false), of position i + 1 in Dream.

use firth_graph::{ActKind, RopePairs};

use crate::blocks::{Attention, Decoder, Moe, NormKind, QkNorm, Rope, softmax};
use crate::config::{self, Config};
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

use RopePairs::{Adjacent, Half};

/// Dream.
pub const DREAM: Arch = Arch { name: "dream", load: dream };
/// LLaDA.
pub const LLADA: Arch = Arch { name: "llada", load: llada };
/// LLaDA with experts: weights as softmax gives them.
pub const LLADA_MOE: Arch = Arch { name: "llada-moe", load: |w| experts(w, false) };
/// RND1.
pub const RND1: Arch = Arch { name: "rnd1", load: |w| experts(w, true) };

fn dream(w: &Weights) -> Loaded {
    let c = Config::read_encoder(w, NormKind::Rms)?;
    let rope = Rope::new(&c, Half);
    let mut model =
        Decoder::new(w, &c, |l| l.pre_norm(l.attention().rope(&rope), l.gated_mlp(ActKind::Silu)));
    model.head.out = model.head.out.unbiased();
    model.boxed()
}

fn llada(w: &Weights) -> Loaded {
    let c = Config::read_encoder(w, NormKind::Rms)?;
    let rope = Rope::new(&c, Adjacent);
    Decoder::new(w, &c, |l| {
        let attention = l.attention().rope(&rope);
        let attention = Attention { out: attention.out.unbiased(), ..attention };
        l.pre_norm(attention, l.gated_mlp(ActKind::Silu).unbiased())
    })
    .boxed()
}

fn experts(w: &Weights, normalise: bool) -> Loaded {
    let c = Config::read_encoder(w, NormKind::Rms)?;
    let (rope, hidden) = (Rope::new(&c, Half), config::expert_width(w, &c)?);
    Decoder::new(w, &c, |l| {
        let attention = l.attention().rope(&rope).qk_norm(QkNorm::Head(QkNorm::heads(l)));
        l.pre_norm(attention, Moe::new(l, hidden, ActKind::Silu, softmax(&c, normalise)))
    })
    .boxed()
}
