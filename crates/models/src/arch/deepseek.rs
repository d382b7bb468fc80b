//! DeepSeek and what is built like it: first layers dense, the others with experts and mostly a shared one.
//!
//! Layer:  x += attention(norm(x));  x += ffn(norm(x))
//! Source: transformers `modeling_deepseek.py`, `modeling_dots1.py`, `modeling_bailing_moe.py`,
//! `modeling_glm4_moe.py`, `modeling_minimax_m2.py`, `modeling_exaone_moe.py`, `modeling_ernie4_5_moe.py`; GGUF keys by
//! name. Biases count where the file has them.

use firth_graph::{Gating, RopePairs, op};

use crate::blocks::{
    Attention, Decoder, FfnPlan, Layer, NextN, NormKind, QkNorm, Rope, by, by_keys, softmax,
};
use crate::config::{self, Config};
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

use Gating::{Sigmoid, Softmax};
use RopePairs::{Adjacent, Half};

/// DeepSeek 1.
pub const FIRST: Arch = Arch { name: "deepseek", load: first };
/// dots.llm1.
pub const DOTS1: Arch = Arch { name: "dots1", load: dots1 };
/// Ling 1.
pub const BAILING: Arch = Arch { name: "bailingmoe", load: bailing };
/// Ling 2.
pub const BAILING2: Arch = Arch { name: "bailingmoe2", load: bailing2 };
/// GLM-4.5 to 4.7.
pub const GLM: Arch = Arch { name: "glm4moe", load: glm };
/// Hunyuan 3.
pub const HUNYUAN3: Arch = Arch { name: "hy_v3", load: hunyuan3 };
/// MiniMax M2.
pub const MINIMAX2: Arch = Arch { name: "minimax-m2", load: minimax2 };
/// EXAONE MoE.
pub const EXAONE: Arch = Arch { name: "exaone-moe", load: exaone };
/// ERNIE 4.5 with experts.
pub const ERNIE: Arch = Arch { name: "ernie4_5-moe", load: ernie };

fn model(
    w: &Weights,
    c: &Config,
    second: &str,
    attention: impl Fn(&Layer) -> Attention,
    ffn: impl Fn(&Layer) -> FfnPlan,
) -> Loaded {
    let layer = |l: &Layer| (attention(l), ffn(l).block(l));
    let decoder = Decoder::new(w, c, |l| {
        let (attention, ffn) = layer(l);
        l.pre_norm_named(second, attention, ffn)
    });
    if !NextN::present(w, c) {
        return decoder.boxed();
    }
    let head = |l: &Layer, trunk: &Decoder| {
        let (attention, ffn) = layer(l);
        NextN::new(l, trunk, second, attention, ffn)
    };
    decoder.draft(w, c, c.width, head).boxed()
}

fn normed(l: &Layer, rope: &Rope) -> Attention {
    l.attention().qk_norm(QkNorm::Head(QkNorm::heads(l))).rope(rope)
}

/// Weights as softmax gives them, times a factor.
fn first(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let choice = op::Router { scale: by_keys(w, &c, Softmax)?.scale, ..softmax(&c, false) };
    let (rope, plan) = (Rope::new(&c, Adjacent), FfnPlan::read(w, &c, choice)?);
    model(w, &c, "ffn_norm", |l| l.attention().rope(&rope), |_| plan)
}

fn dots1(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let (rope, plan) = (Rope::new(&c, Half), FfnPlan::read(w, &c, by_keys(w, &c, Softmax)?)?);
    model(w, &c, "ffn_norm", |l| normed(l, &rope), |_| plan)
}

/// Heads as large as what is turned; experts on every layer, whatever the file says.
fn bailing(w: &Weights) -> Loaded {
    let mut c = Config::read(w, NormKind::Rms)?;
    (c.key_dim, c.value_dim) = (c.rope.n_rot, c.rope.n_rot);
    let choice = op::Router { gating: Softmax, ..by_keys(w, &c, Softmax)? };
    let (rope, plan) = (Rope::new(&c, Adjacent), FfnPlan { dense: 0, ..FfnPlan::read(w, &c, choice)? });
    model(w, &c, "ffn_norm", |l| l.attention().rope(&rope), |_| plan)
}

fn bailing2(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let (rope, mut plan) = (Rope::new(&c, Half), FfnPlan::read(w, &c, by_keys(w, &c, Sigmoid)?)?);
    let own = config::width_or(w, "expert_shared_feed_forward_length", plan.expert)?;
    plan.shared = plan.shared / plan.expert.max(1) * own;
    model(w, &c, "ffn_norm", |l| normed(l, &rope), |_| plan)
}

/// Norms of heads in the large model alone; the second norm is called `post_attention_norm`.
fn glm(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let rope = Rope::new(&c, config::sections(w, Half)?);
    let plan = FfnPlan::read(w, &c, by_keys(w, &c, Sigmoid)?)?;
    let attention = |l: &Layer| match l.mixer.has("attn_q_norm.weight") {
        true => normed(l, &rope),
        false => l.attention().rope(&rope),
    };
    model(w, &c, "post_attention_norm", attention, |_| plan)
}

/// Experts where a layer has a router, whatever else it has.
fn hunyuan3(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let (rope, mut plan) = (Rope::new(&c, Half), FfnPlan::read(w, &c, by_keys(w, &c, Sigmoid)?)?);
    plan.shared = config::width_or(w, "expert_shared_feed_forward_length", plan.expert)?;
    model(w, &c, "ffn_norm", |l| normed(l, &rope), |l| plan.by_tensors(l))
}

/// Norms of all heads together; experts as wide as the feed-forward.
fn minimax2(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let choice = op::Router { normalise: true, scale: 1.0, ..by_keys(w, &c, Sigmoid)? };
    let plan = FfnPlan { dense: 0, expert: c.hidden[0], shared: 0, ..FfnPlan::read(w, &c, choice)? };
    let rope = Rope::new(&c, Half);
    let attention = |l: &Layer| l.attention().qk_norm(QkNorm::Row(QkNorm::rows(l))).rope(&rope);
    model(w, &c, "ffn_norm", attention, |_| plan)
}

/// Windows on three layers of four, and rope on those alone.
fn exaone(w: &Weights) -> Loaded {
    let mut c = Config::read(w, NormKind::Rms)?;
    c.windows = config::windows(w, c.n_layers, None, 4)?;
    let rope = Rope::new(&c, Half).factors(w);
    let mut plan = FfnPlan::read(w, &c, by_keys(w, &c, Sigmoid)?)?;
    plan.shared = config::width_or(w, "expert_shared_feed_forward_length", plan.expert)?;
    let attention = |l: &Layer| {
        let mut attention = normed(l, &rope);
        attention.rope = attention.rope.filter(|_| c.windows.get(l.i).is_some_and(Option::is_some));
        attention
    };
    // The layer of a drafting head that a file may carry is left aside.
    Decoder::new(w, &c, |l| l.pre_norm(attention(l), plan.block(l))).boxed()
}

/// The bias of the output projection plays no part.
fn ernie(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let (rope, mut plan) = (Rope::new(&c, Adjacent), FfnPlan::read(w, &c, by(&c, Softmax, true))?);
    plan.shared = config::optional(w, "expert_shared_feed_forward_length", 0, config::MAX_EXTENT)?;
    let attention = |l: &Layer| {
        let attention = l.attention().rope(&rope);
        Attention { out: attention.out.unbiased(), ..attention }
    };
    model(w, &c, "ffn_norm", attention, |l| plan.by_tensors(l))
}
