//! Mixture of experts.

use firth_graph::{ActKind, Extent, Graph, Node, Shape, op};

use crate::StepNodes;
use crate::blocks::{Block, First, Glu, Layer, Linear, Mlp, Place, Route, Sum};
use crate::weights::Tensor;

/// Matrices of experts, and their biases.
#[derive(Clone, Debug)]
struct Stack {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Stack {
    /// `name.weight {n_in, n_out, E}` and, where the file has it, `name.bias {n_out, E}`.
    fn new(p: &Place, name: &str, n_in: usize, n_out: usize, n: usize) -> Self {
        let bias = format!("{name}.bias");
        Stack {
            weight: p.matrix(name, &[n_in, n_out, n]),
            bias: p.has(&bias).then(|| p.table(&bias, &[n_out, n])),
        }
    }

    fn apply(&self, g: &mut Graph, x: Node, ids: Node) -> Node {
        let weight = self.weight.node(g);
        let y = g.push(op::MatMulExperts, &[weight, x, ids]);
        let Some(bias) = &self.bias else { return y };
        let bias = bias.node(g);
        let bias = g.push(op::RowSelect, &[bias, ids]);
        g.push(op::Add, &[y, bias])
    }
}

/// The weights of experts, `{n_in, hidden, E}` and `{hidden, n_in, E}`.
#[derive(Clone, Debug)]
pub struct Experts {
    first: First<Stack>,
    down: Stack,
    glu: Glu,
}

impl Experts {
    /// `ffn_up_exps`, `ffn_down_exps` and, where the file has them, `ffn_gate_exps`; or `ffn_gate_up_exps`.
    /// Without gates the activation is that of `up` alone.
    pub fn new(p: &Place, n: usize, width: usize, hidden: usize, glu: impl Into<Glu>) -> Self {
        Experts::named(p, "exps", n, width, hidden, glu)
    }

    /// As [`Experts::new`], where names end in `suffix`.
    pub fn named(
        p: &Place,
        suffix: &str,
        n: usize,
        width: usize,
        hidden: usize,
        glu: impl Into<Glu>,
    ) -> Self {
        let up = |name: &str, rows| Stack::new(p, &format!("{name}_{suffix}"), width, rows, n);
        let has = |name: &str| p.has(&format!("{name}_{suffix}.weight"));
        let first = match () {
            () if has("ffn_gate_up") => First::Merged(up("ffn_gate_up", 2 * hidden), hidden),
            () if has("ffn_gate") => First::Gated(Box::new([up("ffn_gate", hidden), up("ffn_up", hidden)])),
            () => First::Plain(up("ffn_up", hidden)),
        };
        let down = Stack::new(p, &format!("ffn_down_{suffix}"), hidden, width, n);
        Experts { first, down, glu: glu.into() }
    }

    /// `x: [n_in, U or 1, T]`, `ids: [U, T]` to `[n_in, U, T]`.
    pub fn apply(&self, g: &mut Graph, x: Node, ids: Node) -> Node {
        let h = self.first.apply(g, self.glu, |g, stack| stack.apply(g, x, ids));
        self.down.apply(g, h, ids)
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
