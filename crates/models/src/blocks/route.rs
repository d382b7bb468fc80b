//! The choice of experts, and which layers have them.

use firth_graph::{ActKind, Gating, Graph, Node, op};

use crate::blocks::{Block, Glu, Layer, Linear, Mlp, Moe};
use crate::config::{self, Config};
use crate::error::ModelError;
use crate::weights::{Tensor, Weights};

/// How experts are chosen.
#[derive(Clone, Debug)]
pub struct Route {
    /// Logits of the experts.
    pub logits: Linear,
    /// Added to the scores for the choice alone.
    pub bias: Option<Tensor>,
    /// The choice.
    pub choice: op::Router,
}

impl Route {
    /// `ffn_gate_inp {width, E}`.
    pub fn new(l: &Layer, choice: op::Router) -> Self {
        Route { logits: l.ffn.linear("ffn_gate_inp", l.c.width, l.c.n_experts), bias: None, choice }
    }

    /// With `exp_probs_b.bias {E}`, which may lack its suffix, where the file has it.
    pub fn biased(mut self, l: &Layer) -> Self {
        let named = |name| l.ffn.has(name).then(|| l.ffn.table(name, &[l.c.n_experts]));
        self.bias = named("exp_probs_b.bias").or_else(|| named("exp_probs_b"));
        self
    }

    /// Ids and weights `[U, T]` from rows `[width, T]`.
    pub fn choose(&self, g: &mut Graph, x: Node) -> [Node; 2] {
        let mut inputs = vec![self.logits.apply(g, x)];
        inputs.extend(self.bias.as_ref().map(|b| b.node(g)));
        g.push_n(self.choice, &inputs)
    }
}

/// The choice by softmax over all experts.
pub fn softmax(c: &Config, normalise: bool) -> op::Router {
    by(c, Gating::Softmax, normalise)
}

/// The choice by some gating, with the file's groups.
pub fn by(c: &Config, gating: Gating, normalise: bool) -> op::Router {
    let (n_groups, n_groups_used) = c.expert_groups;
    op::Router { gating, n_used: c.n_experts_used, normalise, n_groups, n_groups_used, scale: 1.0 }
}

/// The choice by the file's keys `expert_gating_func` (`default` where absent or 0), `expert_weights_norm`,
/// `expert_weights_scale`.
pub fn by_keys(w: &Weights, c: &Config, default: Gating) -> Result<op::Router, ModelError> {
    let key = w.key("expert_gating_func");
    let gating = match w.metadata().u32(&key)?.unwrap_or(0) {
        0 => default,
        1 => Gating::Softmax,
        2 => Gating::Sigmoid,
        3 => Gating::SoftmaxOfChosen,
        4 => Gating::RootSoftplus,
        found => return Err(ModelError::value(key, found, "0 to 4")),
    };
    let normalise = w.metadata().bool(&w.key("expert_weights_norm"))?.unwrap_or(false);
    Ok(op::Router { scale: expert_scale(w)?, ..by(c, gating, normalise) })
}

/// `expert_weights_scale`, 1 where it is absent or 0.
fn expert_scale(w: &Weights) -> Result<f32, ModelError> {
    match config::float(w, "expert_weights_scale", 1.0)? as f32 {
        0.0 => Ok(1.0),
        s => Ok(s),
    }
}

/// The feed-forwards of a model whose first layers are dense and whose others have experts.
#[derive(Clone, Copy, Debug)]
pub struct FfnPlan {
    /// Layers with one feed-forward, before those with experts.
    pub dense: usize,
    /// Width of an expert.
    pub expert: usize,
    /// Width of the ungated shared expert, 0 for none.
    pub shared: usize,
    /// The choice of experts.
    pub choice: op::Router,
    /// The unit of experts.
    pub glu: Glu,
    /// The unit of dense layers and of the shared expert.
    pub dense_glu: Glu,
}

impl FfnPlan {
    /// By the keys `leading_dense_block_count` and `expert_feed_forward_length`; the shared expert is as wide as
    /// `expert_shared_count` experts. SwiGLU throughout. All layers are dense where there are no experts.
    pub fn read(w: &Weights, c: &Config, choice: op::Router) -> Result<Self, ModelError> {
        let expert = config::expert_width(w, c)?;
        let dense = config::optional(w, "leading_dense_block_count", 0, config::MAX_LAYERS)?;
        Ok(FfnPlan {
            dense: if c.n_experts == 0 { c.n_blocks } else { dense },
            expert,
            shared: expert * config::optional(w, "expert_shared_count", 0, 1024)?,
            choice,
            glu: ActKind::Silu.into(),
            dense_glu: ActKind::Silu.into(),
        })
    }

    /// As the layer's tensors say: experts where it has a router.
    pub fn by_tensors(mut self, l: &Layer) -> Self {
        self.dense = if l.ffn.has("ffn_gate_inp.weight") { 0 } else { l.i + 1 };
        self
    }

    /// The feed-forward of a layer; the choice of experts is biased where the file has a bias.
    pub fn block(&self, l: &Layer) -> Box<dyn Block> {
        if l.i < self.dense {
            return Box::new(Mlp::gated(&l.ffn, "", l.c.width, l.c.hidden[l.i], self.dense_glu));
        }
        let moe = Moe::new(l, self.expert, self.glu, self.choice).biased(l);
        moe.shared(l, self.shared, self.dense_glu)
    }
}
