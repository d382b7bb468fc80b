//! Dense feed-forward.

use firth_graph::{Graph, Node};

use crate::StepNodes;
use crate::blocks::{Block, First, Glu, Linear, Place};

/// `down(act(gate(x)) * up(x))`, or `down(act(up(x)))` without a gate.
#[derive(Clone, Debug)]
pub struct Mlp {
    first: First<Linear>,
    down: Linear,
    glu: Glu,
}

impl Mlp {
    /// `ffn_gate`, `ffn_up {width, hidden}`, `ffn_down {hidden, width}`, each name followed by `suffix`.
    pub fn gated(p: &Place, suffix: &str, width: usize, hidden: usize, glu: impl Into<Glu>) -> Self {
        let linear = |name: &str| p.linear(&format!("{name}{suffix}"), width, hidden);
        let first = First::Gated(Box::new([linear("ffn_gate"), linear("ffn_up")]));
        Mlp { first, down: p.linear(&format!("ffn_down{suffix}"), hidden, width), glu: glu.into() }
    }

    /// `ffn_up {width, 2 hidden}` with the gate's rows first, `ffn_down`, each name followed by `suffix`.
    pub fn merged(p: &Place, suffix: &str, width: usize, hidden: usize, glu: impl Into<Glu>) -> Self {
        let first = First::Merged(p.linear(&format!("ffn_up{suffix}"), width, 2 * hidden), hidden);
        Mlp { first, down: p.linear(&format!("ffn_down{suffix}"), hidden, width), glu: glu.into() }
    }

    /// `ffn_up`, `ffn_down`, each name followed by `suffix`.
    pub fn plain(p: &Place, suffix: &str, width: usize, hidden: usize, glu: impl Into<Glu>) -> Self {
        let first = First::Plain(p.linear(&format!("ffn_up{suffix}"), width, hidden));
        Mlp { first, down: p.linear(&format!("ffn_down{suffix}"), hidden, width), glu: glu.into() }
    }

    /// Without the biases that the file may have.
    pub fn unbiased(self) -> Self {
        let first = match self.first {
            First::Plain(up) => First::Plain(up.unbiased()),
            First::Gated(pair) => First::Gated(Box::new(pair.map(Linear::unbiased))),
            First::Merged(both, n) => First::Merged(both.unbiased(), n),
        };
        Mlp { first, down: self.down.unbiased(), glu: self.glu }
    }
}

impl Block for Mlp {
    fn forward(&self, g: &mut Graph, x: Node, _: &StepNodes) -> Node {
        let h = self.first.apply(g, self.glu, |g, w| w.apply(g, x));
        self.down.apply(g, h)
    }
}
