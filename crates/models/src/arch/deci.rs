//! DeciLM and Llama-Nemotron (51B, 253B): a llama whose layers differ in heads and width, and may lack either half.
//!
//! Layer:  x += attention(norm(x)), or linear(norm(x)) without key heads, or nothing without heads;
//!         x += mlp(norm(x)), or nothing where the width is 0
//! Rope:   adjacent pairs, frequency factors from `rope_freqs` or longrope's tables.
//! Source: nvidia `modeling_decilm.py`; GGUF keys `deci.*`. A layer with attention and without a feed-forward keeps what
//! its attention says, as in that code; llama.cpp drops it.

use firth_graph::{ActKind, RopePairs};

use crate::blocks::{Block, Chain, Decoder, NormKind, Residual, Rope};
use crate::config::Config;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "deci", load };

fn load(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let rope = Rope::new(&c, RopePairs::Adjacent).factors(w);
    Decoder::new(w, &c, |l| {
        let mixer: Option<Box<dyn Block>> = match (c.heads[l.i], c.kv_heads[l.i]) {
            (0, _) => None,
            (_, 0) => Some(Box::new(l.mixer.linear("attn_output", c.width, c.width))),
            _ => Some(Box::new(l.attention().rope(&rope))),
        };
        let mixer = mixer.map(|m| Residual::pre(l.mixer.norm("attn_norm", c.width), m));
        let mlp = (c.hidden[l.i] > 0)
            .then(|| Residual::pre(l.ffn.norm("ffn_norm", c.width), l.gated_mlp(ActKind::Silu)));
        Chain(mixer.into_iter().chain(mlp).map(|half| Box::new(half) as Box<dyn Block>).collect())
    })
    .boxed()
}
