//! The first half of a feed-forward: what stands between its two products.

use firth_graph::{ActKind, Graph, Node, op};

/// How gate and up become one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Glu {
    /// `f(gate) * up`; `f(up)` without a gate.
    Act(ActKind),
    /// `min(silu(gate), limit) * clamp(up)`.
    Capped(f32),
    /// `silu(min(gate, limit)) * clamp(up)`.
    Clipped(f32),
    /// `x sigmoid(1.702 x) (clamp(up) + 1)` with `x = min(gate, limit)`: SwiGLU of gpt-oss.
    Oai(f32),
    /// `a tanh(gate / a) sigmoid(gate)` times `b tanh(up / b)`, or times `up` where `b` is 0.
    Situ {
        /// Bound of the gate.
        a: f32,
        /// Bound of the rest.
        b: f32,
    },
}

impl From<ActKind> for Glu {
    fn from(act: ActKind) -> Self {
        Glu::Act(act)
    }
}

impl Glu {
    /// SwiGLU, with a limit where it is above 0.
    pub fn silu(limit: f32, form: fn(f32) -> Glu) -> Self {
        if limit > 1e-6 { form(limit) } else { Glu::Act(ActKind::Silu) }
    }

    /// One value of both.
    pub fn apply(self, g: &mut Graph, gate: Node, up: Node) -> Node {
        let act = |g: &mut Graph, kind, x| g.push(op::Act { kind }, &[x]);
        let below = |g: &mut Graph, high, x| g.push(op::Clamp { low: f32::NEG_INFINITY, high }, &[x]);
        let within = |g: &mut Graph, l: f32, x| g.push(op::Clamp { low: -l, high: l }, &[x]);
        match self {
            Glu::Act(kind) => g.push(op::GatedAct { kind }, &[gate, up]),
            Glu::Capped(limit) => {
                let gate = act(g, ActKind::Silu, gate);
                let (gate, up) = (below(g, limit, gate), within(g, limit, up));
                g.push(op::Mul, &[gate, up])
            }
            Glu::Clipped(limit) => {
                let (gate, up) = (below(g, limit, gate), within(g, limit, up));
                g.push(op::GatedAct { kind: ActKind::Silu }, &[gate, up])
            }
            Glu::Oai(limit) => {
                let (gate, up) = (below(g, limit, gate), within(g, limit, up));
                let gate = act(g, ActKind::GeluQuick, gate);
                let product = g.push(op::Mul, &[gate, up]);
                g.push(op::Add, &[product, gate])
            }
            Glu::Situ { a, b } => {
                let bounded = g.push(op::Softcap { cap: a }, &[gate]);
                let gate = act(g, ActKind::Sigmoid, gate);
                let gate = g.push(op::Mul, &[bounded, gate]);
                let up = if b > 0.0 { g.push(op::Softcap { cap: b }, &[up]) } else { up };
                g.push(op::Mul, &[gate, up])
            }
        }
    }
}

/// The weights of a first half.
#[derive(Clone, Debug)]
pub enum First<W> {
    /// `up` alone.
    Plain(W),
    /// Gate and up.
    Gated(Box<[W; 2]>),
    /// Both in one, rows of the gate first; the number is the width of either.
    Merged(W, usize),
}

impl<W> First<W> {
    /// The rows that the second half takes; `product` applies one weight.
    pub fn apply(&self, g: &mut Graph, glu: Glu, product: impl Fn(&mut Graph, &W) -> Node) -> Node {
        match self {
            First::Plain(up) => {
                let up = product(g, up);
                match glu {
                    Glu::Act(kind) => g.push(op::Act { kind }, &[up]),
                    glu => glu.apply(g, up, up),
                }
            }
            First::Gated(pair) => {
                let (gate, up) = (product(g, &pair[0]), product(g, &pair[1]));
                glu.apply(g, gate, up)
            }
            First::Merged(both, n) => {
                let y = product(g, both);
                let (gate, up) = (g.slice(y, 0, *n), g.slice(y, *n, *n));
                glu.apply(g, gate, up)
            }
        }
    }
}
