//! Mixture of experts.

use firth_graph::{ActKind, Extent, Graph, Node, Shape, op};

use crate::StepNodes;
use crate::blocks::{Block, First, Glu, Layer, Linear, Mlp, Place, Route, Sum};
use crate::weights::Tensor;

/// The weights of experts, `{n_in, hidden, E}` and `{hidden, n_in, E}`.
#[derive(Clone, Debug)]
pub struct Experts {
    first: First<Tensor>,
    down: Tensor,
    glu: Glu,
}

impl Experts {
    /// `ffn_up_exps`, `ffn_down_exps` and, where the file has them, `ffn_gate_exps`; or `ffn_gate_up_exps`.
    /// Without gates the activation is that of `up` alone.
    pub fn new(p: &Place, n: usize, width: usize, hidden: usize, glu: impl Into<Glu>) -> Self {
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
        Experts { first, down: p.matrix("ffn_down_exps", &[hidden, width, n]), glu: glu.into() }
    }

    /// `x: [n_in, U or 1, T]`, `ids: [U, T]` to `[n_in, U, T]`.
    pub fn apply(&self, g: &mut Graph, x: Node, ids: Node) -> Node {
        let product = |g: &mut Graph, t: &Tensor, x: Node| {
            let w = t.node(g);
            g.push(op::MatMulExperts, &[w, x, ids])
        };
        let h = self.first.apply(g, self.glu, |g, w| product(g, w, x));
        product(g, &self.down, h)
    }
}

/// A router and experts; results are added in the router's rank order.
#[derive(Clone, Debug)]
pub struct Moe {
    /// The router.
    pub route: Route,
    experts: Experts,
}

impl Moe {
    /// Experts of width `hidden`.
    pub fn new(l: &Layer, hidden: usize, glu: impl Into<Glu>, choice: op::Router) -> Self {
        let experts = Experts::new(&l.experts, l.c.n_experts, l.c.width, hidden, glu);
        Moe { route: Route::new(l, choice), experts }
    }

    /// With a bias of the choice, where the file has it.
    pub fn biased(mut self, l: &Layer) -> Self {
        self.route = self.route.biased(l);
        self
    }

    /// With an ungated shared expert of width `hidden` behind the others, where that is not 0.
    pub fn shared(self, l: &Layer, hidden: usize, glu: impl Into<Glu>) -> Box<dyn Block> {
        match hidden {
            0 => Box::new(self),
            _ => Box::new(Sum(self, Shared::new(l, hidden, glu))),
        }
    }
}

impl Block for Moe {
    fn forward(&self, g: &mut Graph, x: Node, _: &StepNodes) -> Node {
        let [ids, weights] = self.route.choose(g, x);
        let rows = one_for_all(g, x);
        let y = self.experts.apply(g, rows, ids);
        g.push(op::MoeSum, &[y, weights])
    }
}

/// An expert that every token goes through, times the sigmoid of one number where it has a gate.
pub struct Shared {
    mlp: Mlp,
    gate: Option<Linear>,
}

impl Shared {
    /// `ffn_gate_shexp`, `ffn_up_shexp`, `ffn_down_shexp` of width `hidden`, ungated.
    pub fn new(l: &Layer, hidden: usize, glu: impl Into<Glu>) -> Self {
        Shared { mlp: Mlp::gated(&l.ffn, "_shexp", l.c.width, hidden, glu), gate: None }
    }

    /// With the gate `ffn_gate_inp_shexp {width}`.
    pub fn gated(mut self, l: &Layer) -> Self {
        self.gate = Some(l.ffn.linear("ffn_gate_inp_shexp", l.c.width, 1));
        self
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
pub fn one_for_all(g: &mut Graph, x: Node) -> Node {
    let l = g.layout(x);
    let axes = l.shape.axes();
    let strides = [l.strides[0], l.strides[1], l.strides[1], l.strides[2]];
    g.view(x, Shape::new([axes[0], Extent::Const(1), axes[1]]), strides, 0)
}
