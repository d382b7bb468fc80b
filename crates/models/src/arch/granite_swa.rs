//! Granite with windows and sinks: Granite's factors, windows on some layers, one more score per head, rope where the
//! file says.
//!
//! Layer:  x += r attention(norm(x));  x += r ffn(norm(x))
//! Source: GGUF keys `granite_swa.*`.

use firth_graph::{ActKind, RopePairs};

use super::granite::{Factors, or_one};
use crate::blocks::{Block, Chain, Decoder, Layer, Mlp, Moe, NormKind, Residual, Rope, Sum, softmax};
use crate::config::{self, Config};
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "granite_swa", load };

fn load(w: &Weights) -> Loaded {
    let mut c = Config::read(w, NormKind::Rms)?;
    c.windows = config::windows(w, c.n_layers, None, 0)?;
    let f = Factors::read(w)?;
    let turned = config::flags_of_array(w, "attention.rope_pattern", c.n_layers)?;
    let rope = Rope::new(&c, RopePairs::Adjacent).factors(w);
    let mut decoder = Decoder::new(w, &c, |l| {
        let mut attention = l.attention();
        attention.rope = turned.as_ref().is_none_or(|t| t[l.i]).then(|| rope.clone());
        attention.sinks = Some(l.mixer.table("attn_sinks.weight", &[c.heads[l.i]]));
        if f.scores != 0.0 {
            attention.scores.scale = f.scores;
        }
        let [first, second] = ["attn_norm", "ffn_norm"].map(|n| l.mixer.norm(n, c.width));
        let by = or_one(f.residual);
        Chain::of(
            Residual::pre(first, attention).scaled(by),
            Residual::pre(second, ffn(l, f.shared)).scaled(by),
        )
    });
    decoder.embed.scale = or_one(f.embedding);
    decoder.head.scale = 1.0 / or_one(f.logits);
    decoder.boxed()
}

/// SwiGLU; or experts and a shared one whose gate and up are one weight.
fn ffn(l: &Layer, shared: usize) -> Box<dyn Block> {
    if l.c.n_experts == 0 {
        return Box::new(l.gated_mlp(ActKind::Silu));
    }
    let moe = Moe::new(l, l.c.hidden[l.i], ActKind::Silu, softmax(l.c, true));
    match shared {
        0 => Box::new(moe),
        n => Box::new(Sum(moe, Mlp::merged(&l.ffn, "_shexp", l.c.width, n, ActKind::Silu))),
    }
}
