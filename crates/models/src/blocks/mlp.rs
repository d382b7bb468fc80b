//! Dense feed-forward.

use firth_graph::{ActKind, Graph, Node, op};

use crate::StepNodes;
use crate::blocks::{Block, Linear, Place};

/// `down(act(gate(x)) * up(x))`, or `down(act(up(x)))` without a gate.
#[derive(Clone, Debug)]
pub struct Mlp {
    first: First,
    down: Linear,
    act: ActKind,
}

/// The first half.
#[derive(Clone, Debug)]
enum First {
    Plain(Linear),
    Gated(Box<[Linear; 2]>),
    /// One weight, rows of the gate first; the number is the width of either.
    Merged(Linear, usize),
}

impl Mlp {
    /// `ffn_gate`, `ffn_up {width, hidden}`, `ffn_down {hidden, width}`, each name followed by `suffix`.
    pub fn gated(p: &Place, suffix: &str, width: usize, hidden: usize, act: ActKind) -> Self {
        let linear = |name: &str| p.linear(&format!("{name}{suffix}"), width, hidden);
        let first = First::Gated(Box::new([linear("ffn_gate"), linear("ffn_up")]));
        Mlp { first, down: p.linear(&format!("ffn_down{suffix}"), hidden, width), act }
    }

    /// `ffn_up {width, 2 hidden}` with the gate's rows first, `ffn_down`, each name followed by `suffix`.
    pub fn merged(p: &Place, suffix: &str, width: usize, hidden: usize, act: ActKind) -> Self {
        let first = First::Merged(p.linear(&format!("ffn_up{suffix}"), width, 2 * hidden), hidden);
        Mlp { first, down: p.linear(&format!("ffn_down{suffix}"), hidden, width), act }
    }

    /// `ffn_up`, `ffn_down`, each name followed by `suffix`.
    pub fn plain(p: &Place, suffix: &str, width: usize, hidden: usize, act: ActKind) -> Self {
        let first = First::Plain(p.linear(&format!("ffn_up{suffix}"), width, hidden));
        Mlp { first, down: p.linear(&format!("ffn_down{suffix}"), hidden, width), act }
    }
}

impl Block for Mlp {
    fn forward(&self, g: &mut Graph, x: Node, _: &StepNodes) -> Node {
        let (gate, up) = match &self.first {
            First::Plain(up) => (None, up.apply(g, x)),
            First::Gated(pair) => (Some(pair[0].apply(g, x)), pair[1].apply(g, x)),
            First::Merged(both, n) => {
                let y = both.apply(g, x);
                (Some(g.slice(y, 0, *n)), g.slice(y, *n, *n))
            }
        };
        let h = match gate {
            Some(gate) => g.push(op::GatedAct { kind: self.act }, &[gate, up]),
            None => g.push(op::Act { kind: self.act }, &[up]),
        };
        self.down.apply(g, h)
    }
}
