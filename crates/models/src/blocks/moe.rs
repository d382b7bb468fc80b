//! Mixture of experts.

use firth_graph::{ActKind, Extent, Gating, Graph, Node, Part, Shape, op};

use crate::config::Config;
use crate::weights::{Tensor, Weights};

/// A router and gated experts; results are added in the router's rank order.
#[derive(Clone, Debug)]
pub struct Moe {
    router: Tensor,
    gate: Option<Tensor>,
    up: Tensor,
    down: Tensor,
    act: ActKind,
    choice: op::Router,
}

impl Moe {
    /// `prefix.ffn_gate_inp {width, E}`, `ffn_gate_exps`, `ffn_up_exps {width, hidden, E}`,
    /// `ffn_down_exps {hidden, width, E}`. Without gates the activation is that of `up` alone.
    pub fn new(w: &Weights, prefix: &str, c: &Config, hidden: usize, act: ActKind, layer: u32) -> Self {
        let (part, e) = (Part::Experts(layer), c.n_experts);
        let name = |n: &str| format!("{prefix}.{n}");
        let choice = op::Router { gating: Gating::Softmax, n_used: c.n_experts_used, normalise: true };
        Moe {
            router: w.matrix(&name("ffn_gate_inp"), &[c.width, e], Part::Ffn(layer)),
            gate: w.matrix_opt(&name("ffn_gate_exps"), &[c.width, hidden, e], part),
            up: w.matrix(&name("ffn_up_exps"), &[c.width, hidden, e], part),
            down: w.matrix(&name("ffn_down_exps"), &[hidden, c.width, e], part),
            act,
            choice,
        }
    }

    /// `[width, T]` to `[width, T]`.
    pub fn forward(&self, g: &mut Graph, x: Node) -> Node {
        let router = self.router.node(g);
        let logits = g.push(op::MatMul, &[router, x]);
        let [ids, weights] = g.push_n(self.choice, &[logits]);
        let rows = one_for_all(g, x);
        let experts = |g: &mut Graph, t: &Tensor, x: Node| {
            let w = t.node(g);
            g.push(op::MatMulExperts, &[w, x, ids])
        };
        let up = experts(g, &self.up, rows);
        let h = match &self.gate {
            Some(gate) => {
                let gate = experts(g, gate, rows);
                g.push(op::GatedAct { kind: self.act }, &[gate, up])
            }
            None => g.push(op::Act { kind: self.act }, &[up]),
        };
        let y = experts(g, &self.down, h);
        g.push(op::MoeSum, &[y, weights])
    }
}

/// `[n, T]` as `[n, 1, T]`: one row for all experts of a token.
fn one_for_all(g: &mut Graph, x: Node) -> Node {
    let l = g.layout(x);
    let axes = l.shape.axes();
    let strides = [l.strides[0], l.strides[1], l.strides[1], l.strides[2]];
    g.view(x, Shape::new([axes[0], Extent::Const(1), axes[1]]), strides, 0)
}
