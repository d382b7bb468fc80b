//! Cohere 2 with experts: both halves side by side over one norm, windows, first layers dense.
//!
//! Layer:  n = norm(x);  x += attention(n) + ffn(n), where experts and the shared one count half each
//! Rope:   adjacent pairs, on windowed layers and the dense ones.
//! Source: GGUF keys `cohere2moe.*`. The norm is RMS where the file gives its epsilon, else layer norm.

use firth_graph::{Gating, Graph, Node, RopePairs, op};

use super::command_r::logit_scale;
use crate::StepNodes;
use crate::blocks::{Attention, Block, Chain, Decoder, FfnPlan, NormKind, Residual, Rope, Sum, by_keys};
use crate::config::{self, Config};
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "cohere2moe", load };

fn load(w: &Weights) -> Loaded {
    let rms = config::float(w, "attention.layer_norm_rms_epsilon", 0.0)? != 0.0;
    let mut c = Config::read(w, if rms { NormKind::Rms } else { NormKind::Layer })?;
    c.windows = config::windows(w, c.n_layers, None, 4)?;
    let rope = Rope::new(&c, RopePairs::Adjacent);
    let mut plan = FfnPlan::read(w, &c, by_keys(w, &c, Gating::Sigmoid)?)?;
    if plan.shared > 0 {
        plan.shared = config::width_or(w, "expert_shared_feed_forward_length", plan.shared)?;
    }
    let mut model = Decoder::new(w, &c, |l| {
        let turned = c.windows[l.i].is_some() || l.i < plan.dense;
        let attention = Attention { rope: turned.then(|| rope.clone()), ..l.attention() };
        let by = if l.i >= plan.dense && plan.shared > 0 { 0.5 } else { 1.0 };
        let both = Sum(attention, Scaled(plan.block(l), by));
        Chain(vec![Box::new(Residual::pre(l.mixer.norm("attn_norm", c.width), both))])
    });
    model.head.scale = logit_scale(w)?;
    model.boxed()
}

/// A block's rows times a factor.
struct Scaled(Box<dyn Block>, f32);

impl Block for Scaled {
    fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let y = self.0.forward(g, x, step);
        if self.1 == 1.0 { y } else { g.push(op::Scale { by: self.1 }, &[y]) }
    }
}
