//! Gates of attention: what the weighted values are multiplied by before the output projection.

use firth_graph::{ActKind, Graph, Node, op};

use crate::blocks::{AttentionShape, Linear};

/// A gate, computed from the same normalised rows as the queries.
#[derive(Clone, Debug)]
pub struct Gate {
    /// To one number a head, or one an element.
    linear: Linear,
    act: ActKind,
}

impl Gate {
    /// `act(linear(x))`.
    pub fn new(linear: Linear, act: ActKind) -> Self {
        Gate { linear, act }
    }

    /// `sigmoid(linear(x))`.
    pub fn sigmoid(linear: Linear) -> Self {
        Gate::new(linear, ActKind::Sigmoid)
    }

    /// `[1 or value_dim, heads, T]` from normalised rows.
    pub fn rows(&self, g: &mut Graph, x: Node, heads: usize) -> Node {
        let y = self.linear.apply(g, x);
        let n = g.layout(y).shape.constant(0).unwrap_or(0) / heads.max(1);
        let rows = g.split_heads(y, n.max(1));
        g.push(op::Act { kind: self.act }, &[rows])
    }
}

/// Whether and from where attention is gated.
#[derive(Clone, Debug, Default)]
pub enum Gated {
    /// It is not.
    #[default]
    No,
    /// By a projection of its own.
    Own(Box<Gate>),
    /// By a sigmoid of rows that the query projection makes: each head's query, then its gate.
    BesideQuery,
}

impl Gated {
    /// Queries `[key_dim, heads, T]` and the gate, from normalised rows `x` and what the query projection made of
    /// them.
    pub fn split(&self, g: &mut Graph, x: Node, q: Node, s: &AttentionShape) -> (Node, Option<Node>) {
        match self {
            Gated::No => (g.split_heads(q, s.key_dim), None),
            Gated::Own(gate) => (g.split_heads(q, s.key_dim), Some(gate.rows(g, x, s.heads))),
            Gated::BesideQuery => {
                let both = g.split_heads(q, s.key_dim + s.value_dim);
                let rows = g.slice(both, s.key_dim, s.value_dim);
                let gate = g.push(op::Act { kind: ActKind::Sigmoid }, &[rows]);
                (g.slice(both, 0, s.key_dim), Some(gate))
            }
        }
    }
}
