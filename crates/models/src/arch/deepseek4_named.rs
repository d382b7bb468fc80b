//! Experts of DeepSeek 4's first layers: a table names them by the token's id, and the router only weighs them.

use firth_graph::{Graph, Node, op};

use crate::StepNodes;
use crate::blocks::{Block, Experts, FfnPlan, Layer, Linear, Shared, Sum, one_for_all};
use crate::config::Config;
use crate::error::ModelError;
use crate::weights::{Tensor, Weights};

const TABLE: &str = "ffn_gate_tid2eid.weight";

/// Checks that the table of layer `i` names experts there are.
///
/// # Errors
/// The first number that is no expert's.
pub fn check(w: &Weights, c: &Config, i: usize) -> Result<(), ModelError> {
    let (name, used) = (format!("blk.{i}.{TABLE}"), c.n_experts_used);
    let Some(values) = w.values(&name, used * c.n_vocab) else { return Ok(()) };
    let names = |v: &f32| v.fract() == 0.0 && (0.0..c.n_experts as f32).contains(v);
    let Some(at) = values.iter().position(|v| !names(v)) else { return Ok(()) };
    let found = format!("{} for token {}", values[at], at / used);
    Err(ModelError::value(name, found, format!("an expert below {}", c.n_experts)))
}

/// Named experts. A row without a token goes to those of token 0.
struct NamedMoe {
    logits: Linear,
    /// `{used, vocab}` numbers of experts.
    table: Tensor,
    by: op::RouteByTable,
    experts: Experts,
}

/// The feed-forward of a layer whose table names `n_used` experts for each token, with the shared expert behind them.
pub fn block(l: &Layer, plan: &FfnPlan) -> Box<dyn Block> {
    let (c, choice) = (l.c, plan.choice);
    let named = NamedMoe {
        logits: l.ffn.linear("ffn_gate_inp", c.width, c.n_experts),
        table: l.ffn.table(TABLE, &[c.n_experts_used, c.n_vocab]),
        by: op::RouteByTable { gating: choice.gating, normalise: choice.normalise, scale: choice.scale },
        experts: Experts::new(&l.experts, c.n_experts, c.width, plan.expert, plan.glu),
    };
    match plan.shared {
        0 => Box::new(named),
        hidden => Box::new(Sum(named, Shared::new(l, hidden, plan.dense_glu))),
    }
}

impl Block for NamedMoe {
    fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let logits = self.logits.apply(g, x);
        let keys = one_key(g, step.tokens);
        let table = self.table.node(g);
        let [ids, weights] = g.push_n(self.by, &[logits, keys, table]);
        let rows = one_for_all(g, x);
        let y = self.experts.apply(g, rows, ids);
        g.push(op::MoeSum, &[y, weights])
    }
}

/// `[T]` as `[1, T]`.
fn one_key(g: &mut Graph, tokens: Node) -> Node {
    let l = g.layout(tokens);
    let shape = firth_graph::Shape::new([1.into(), l.shape.axes()[0]]);
    g.view(tokens, shape, [l.strides[0]; 4], 0)
}
