//! Gates of attention: what the weighted values are multiplied by before the output projection.

use firth_graph::{ActKind, Graph, Node, op};

use crate::blocks::{AttentionShape, Linear};

/// A gate, computed from the same normalised rows as the queries.
#[derive(Clone, Debug)]
pub struct Gate {
    /// Where its rows come from.
    pub from: GateRows,
    /// What they go through.
    pub act: ActKind,
}

/// The rows of a gate.
#[derive(Clone, Debug)]
pub enum GateRows {
    /// A projection to one number a head, or one an element.
    Own(Box<Linear>),
    /// The query projection makes twice the rows: each head's query, then its gate.
    BesideQuery,
}

impl Gate {
    /// A sigmoid gate.
    pub fn sigmoid(from: GateRows) -> Self {
        Gate { from, act: ActKind::Sigmoid }
    }

    /// Queries `[key_dim, heads, T]` and the gate `[value_dim or 1, heads, T]`, from normalised rows `x` and
    /// what the query projection made of them.
    pub fn split(&self, g: &mut Graph, x: Node, q: Node, s: &AttentionShape) -> (Node, Option<Node>) {
        let (q, rows) = match &self.from {
            GateRows::Own(linear) => {
                let y = linear.apply(g, x);
                let n = g.layout(y).shape.constant(0).unwrap_or(0) / s.heads.max(1);
                (g.split_heads(q, s.key_dim), g.split_heads(y, n.max(1)))
            }
            GateRows::BesideQuery => {
                let both = g.split_heads(q, s.key_dim + s.value_dim);
                (g.slice(both, 0, s.key_dim), g.slice(both, s.key_dim, s.value_dim))
            }
        };
        (q, Some(g.push(op::Act { kind: self.act }, &[rows])))
    }
}
