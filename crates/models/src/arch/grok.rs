//! Grok 1 and 2: capped scores, norms before and after each half, experts with GeGLU beside a dense feed-forward.
//!
//! Layer:  x += norm(attention(norm(x)));  x += norm(experts(norm(x))), or with `(mlp + experts) sqrt(1/2)` inside
//! Rope:   half-split pairs; YaRN's fast bound is 8.
//! Source: xai-org `grok-1`; GGUF keys `grok.*`. Old files lack the factors.

use firth_graph::{ActKind, Graph, Node, RopePairs, op};

use crate::StepNodes;
use crate::blocks::{Block, Chain, Decoder, Layer, Mlp, Moe, NormKind, Residual, Rope, softmax};
use crate::config::{self, Config};
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "grok", load };

fn load(w: &Weights) -> Loaded {
    let mut c = Config::read(w, NormKind::Rms)?;
    c.rope.beta_fast = config::positive(w, "rope.scaling.yarn_beta_fast", 8.0)?;
    let rope = Rope::new(&c, RopePairs::Half);
    let factor = |name: &str, default: f32| config::float(w, name, default).map(|f| f as f32);
    let scores = op::Attend {
        softcap: factor("attn_logit_softcapping", 30.0)?,
        ..op::Attend::new(factor("attention.output_scale", 0.088_388_346)?)
    };
    let hidden = config::width_or(w, "expert_feed_forward_length", c.hidden[0])?;
    let mut model = Decoder::new(w, &c, |l| {
        let mut attention = l.attention().rope(&rope);
        attention.scores = scores;
        let behind =
            if l.ffn.has("layer_output_norm.weight") { "layer_output_norm" } else { "post_ffw_norm" };
        let norm = |name: &str| l.mixer.norm(name, c.width);
        Chain::of(
            Residual::pre(norm("attn_norm"), attention).post(norm("attn_output_norm")),
            Residual::pre(norm("ffn_norm"), ffn(l, hidden)).post(norm(behind)),
        )
    });
    model.embed.scale = factor("embedding_scale", 78.383_67)?;
    model.head.scale = factor("logit_scale", 0.577_350_27)?;
    model.head.softcap = factor("final_logit_softcapping", 0.0)?;
    model.boxed()
}

fn ffn(l: &Layer, hidden: usize) -> Box<dyn Block> {
    let moe = Moe::new(l, hidden, ActKind::GeluTanh, softmax(l.c, true));
    match l.ffn.has("ffn_up.weight") {
        true => {
            let mlp = Mlp::gated(&l.ffn, "", l.c.width, l.c.hidden[l.i], ActKind::GeluTanh);
            Box::new(Mean(mlp, moe))
        }
        false => Box::new(moe),
    }
}

/// `(a + b) sqrt(1/2)`.
struct Mean(Mlp, Moe);

impl Block for Mean {
    fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let a = self.0.forward(g, x, step);
        let b = self.1.forward(g, x, step);
        let sum = g.push(op::Add, &[a, b]);
        g.push(op::Scale { by: std::f32::consts::FRAC_1_SQRT_2 }, &[sum])
    }
}
