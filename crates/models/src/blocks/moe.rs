//! Mixture of experts.

use firth_graph::{ActKind, Extent, Graph, Node, Shape, op};

use crate::StepNodes;
use crate::blocks::{Block, Layer, Linear, Mlp, Place, Sum};
use crate::weights::Tensor;

/// The weights of experts, `{n_in, hidden, E}` and `{hidden, n_out, E}`.
#[derive(Clone, Debug)]
pub struct Experts {
    first: First,
    down: Tensor,
    act: ActKind,
}

/// The first half of experts.
#[derive(Clone, Debug)]
enum First {
    Plain(Tensor),
    Gated(Box<[Tensor; 2]>),
    /// Rows of the gate first; the number is the width of either.
    Merged(Tensor, usize),
}

impl Experts {
    /// `ffn_up_exps`, `ffn_down_exps` and, where the file has them, `ffn_gate_exps`; or `ffn_gate_up_exps`.
    /// Without gates the activation is that of `up` alone.
    pub fn new(p: &Place, n: usize, width: usize, hidden: usize, act: ActKind) -> Self {
        let up = |name: &str, rows| p.matrix(name, &[width, rows, n]);
        let first = match () {
            () if p.has("ffn_gate_up_exps.weight") => {
                First::Merged(up("ffn_gate_up_exps", 2 * hidden), hidden)
            }
            () if p.has("ffn_gate_exps.weight") => {
                First::Gated(Box::new([up("ffn_gate_exps", hidden), up("ffn_up_exps", hidden)]))
            }
            () => First::Plain(up("ffn_up_exps", hidden)),
        };
        Experts { first, down: p.matrix("ffn_down_exps", &[hidden, width, n]), act }
    }

    /// `x: [n_in, U or 1, T]`, `ids: [U, T]` to `[n_out, U, T]`.
    pub fn apply(&self, g: &mut Graph, x: Node, ids: Node) -> Node {
        let product = |g: &mut Graph, t: &Tensor, x: Node| {
            let w = t.node(g);
            g.push(op::MatMulExperts, &[w, x, ids])
        };
        let (gate, up) = match &self.first {
            First::Plain(up) => (None, product(g, up, x)),
            First::Gated(pair) => {
                let up = product(g, &pair[1], x);
                (Some(product(g, &pair[0], x)), up)
            }
            First::Merged(both, n) => {
                let y = product(g, both, x);
                (Some(g.slice(y, 0, *n)), g.slice(y, *n, *n))
            }
        };
        let h = match gate {
            Some(gate) => g.push(op::GatedAct { kind: self.act }, &[gate, up]),
            None => g.push(op::Act { kind: self.act }, &[up]),
        };
        product(g, &self.down, h)
    }
}

/// A router and gated experts; results are added in the router's rank order.
#[derive(Clone, Debug)]
pub struct Moe {
    router: Linear,
    experts: Experts,
    choice: op::Router,
}

impl Moe {
    /// `ffn_gate_inp {width, E}` and experts of width `hidden`.
    pub fn new(l: &Layer, hidden: usize, act: ActKind, choice: op::Router) -> Self {
        let (width, n) = (l.c.width, l.c.n_experts);
        Moe {
            router: l.ffn.linear("ffn_gate_inp", width, n),
            experts: Experts::new(&l.experts, n, width, hidden, act),
            choice,
        }
    }
}

impl Block for Moe {
    fn forward(&self, g: &mut Graph, x: Node, _: &StepNodes) -> Node {
        let logits = self.router.apply(g, x);
        let [ids, weights] = g.push_n(self.choice, &[logits]);
        let rows = one_for_all(g, x);
        let y = self.experts.apply(g, rows, ids);
        g.push(op::MoeSum, &[y, weights])
    }
}

/// Softmax over all experts.
pub fn softmax(l: &Layer, normalise: bool) -> op::Router {
    op::Router { n_used: l.c.n_experts_used, normalise, ..Default::default() }
}

/// An expert that every token goes through, times the sigmoid of one number where it has a gate.
pub struct Shared {
    mlp: Mlp,
    gate: Option<Linear>,
}

impl Shared {
    /// `ffn_gate_shexp`, `ffn_up_shexp`, `ffn_down_shexp` of width `hidden`, ungated.
    pub fn new(l: &Layer, hidden: usize, act: ActKind) -> Self {
        Shared { mlp: Mlp::gated(&l.ffn, "_shexp", l.c.width, hidden, act), gate: None }
    }

    /// With the gate `ffn_gate_inp_shexp {width}`.
    pub fn gated(mut self, l: &Layer) -> Self {
        self.gate = Some(l.ffn.linear("ffn_gate_inp_shexp", l.c.width, 1));
        self
    }

    /// Behind the experts of `moe`.
    pub fn behind(self, moe: Moe) -> Sum<Moe, Shared> {
        Sum(moe, self)
    }
}

impl Block for Shared {
    fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let y = self.mlp.forward(g, x, step);
        let Some(gate) = &self.gate else { return y };
        let z = gate.apply(g, x);
        let z = g.push(op::Act { kind: ActKind::Sigmoid }, &[z]);
        g.push(op::Mul, &[y, z])
    }
}

/// `[n, T]` as `[n, 1, T]`: one row for all experts of a token.
fn one_for_all(g: &mut Graph, x: Node) -> Node {
    let l = g.layout(x);
    let axes = l.shape.axes();
    let strides = [l.strides[0], l.strides[1], l.strides[1], l.strides[2]];
    g.view(x, Shape::new([axes[0], Extent::Const(1), axes[1]]), strides, 0)
}
