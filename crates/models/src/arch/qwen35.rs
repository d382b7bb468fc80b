//! Qwen3.5, dense and with experts: gated delta nets, every fourth layer gated attention, a head that drafts one
//! further token.
//!
//! Layer:  x += mixer(norm(x));  x += ffn(norm(x))
//! Mixer:  delta net with interleaved value heads; or attention with norms of heads, partial rope and a sigmoid
//!         gate that the query projection makes beside each head's query.
//! Rope:   half-split pairs; the sections of images are one for text.
//! Source: transformers `modeling_qwen3_5.py`; GGUF keys `qwen35.*`, `qwen35moe.*`. The converter has added 1 to
//! norm weights other than the delta net's, and has laid value heads out so that head `h` meets key `h mod keys`.

use firth_graph::{ActKind, Graph, Node, RopePairs};

use crate::blocks::{
    Attention, Block, Decoder, DeltaNet, DeltaRows, DeltaShape, Gated, Layer, Linear, Moe, NextN, NormKind,
    QkNorm, Rope, Shared, Sum, softmax,
};
use crate::config::{self, Config};
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entries.
pub const DENSE: Arch = Arch { name: "qwen35", load };
/// With experts.
pub const EXPERTS: Arch = Arch { name: "qwen35moe", load };

fn load(w: &Weights) -> Loaded {
    decoder(w, false, |l, s| Box::new(Projections::new(l, s)))
}

/// The model, with value heads in one order or the other and projections of either kind.
pub(super) fn decoder(
    w: &Weights,
    grouped: bool,
    rows: impl Fn(&Layer, DeltaShape) -> Box<dyn DeltaRows>,
) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let shape = DeltaShape::read(w, grouped)?;
    let recurrent = config::recurrent_layers(w, &c, 4)?;
    let rope = Rope::new(&c, RopePairs::Half);
    let ffn = Ffn::read(w, &c)?;
    let decoder = Decoder::new(w, &c, |l| {
        let mixer: Box<dyn Block> = match recurrent[l.i] {
            true => Box::new(DeltaNet::new(l, shape, rows(l, shape))),
            false => Box::new(gated_attention(l, &rope)),
        };
        l.pre_norm_named("post_attention_norm", mixer, ffn.block(l))
    });
    if !NextN::present(w, &c) {
        return decoder.boxed();
    }
    let head = |l: &Layer, trunk: &Decoder| {
        NextN::new(l, trunk, "post_attention_norm", gated_attention(l, &rope), ffn.block(l))
    };
    decoder.draft(w, &c, c.width, head).boxed()
}

/// Attention whose query projection makes each head's query and gate.
pub(super) fn gated_attention(l: &Layer, rope: &Rope) -> Attention {
    let d = l.c.key_dim;
    let rows = [2 * d * l.c.heads[l.i], d * l.c.kv_heads[l.i], l.c.value_dim * l.c.kv_heads[l.i]];
    let mut attention = Attention::of_rows(l, rows).qk_norm(QkNorm::Head(QkNorm::heads(l))).rope(rope);
    attention.gate = Gated::BesideQuery;
    attention
}

/// Sizes of the feed-forward.
pub(super) struct Ffn {
    experts: usize,
    shared: usize,
}

impl Ffn {
    /// Widths of experts, 0 where the model is dense.
    pub(super) fn read(w: &Weights, c: &Config) -> Result<Self, crate::ModelError> {
        if c.n_experts == 0 {
            return Ok(Ffn { experts: 0, shared: 0 });
        }
        Ok(Ffn {
            experts: config::expert_width(w, c)?,
            shared: config::width_or(w, "expert_shared_feed_forward_length", c.hidden[0])?,
        })
    }

    /// SwiGLU, or experts by softmax with a gated shared expert.
    pub(super) fn block(&self, l: &Layer) -> Box<dyn Block> {
        if self.experts == 0 {
            return Box::new(l.gated_mlp(ActKind::Silu));
        }
        let moe = Moe::new(l, self.experts, ActKind::Silu, softmax(l.c, true));
        Box::new(Sum(moe, Shared::new(l, self.shared, ActKind::Silu).gated(l)))
    }
}

/// One projection each for the convolution's rows, the output gate, beta and alpha.
pub(super) struct Projections([Linear; 4]);

impl Projections {
    /// `attn_qkv`, `attn_gate`, `ssm_beta`, `ssm_alpha`.
    pub(super) fn new(l: &Layer, s: DeltaShape) -> Self {
        let [keys, values] = s.widths();
        let linear = |name: &str, n| l.mixer.linear(name, l.c.width, n);
        Projections([
            linear("attn_qkv", 2 * keys + values),
            linear("attn_gate", values),
            linear("ssm_beta", s.heads),
            linear("ssm_alpha", s.heads),
        ])
    }
}

impl DeltaRows for Projections {
    fn rows(&self, g: &mut Graph, x: Node) -> [Node; 4] {
        [0, 1, 2, 3].map(|i| self.0[i].apply(g, x))
    }
}
