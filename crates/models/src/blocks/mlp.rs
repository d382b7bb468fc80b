//! Dense feed-forward.

use firth_graph::{ActKind, Graph, Node, Part, op};

use crate::blocks::Linear;
use crate::weights::Weights;

/// `down(act(gate(x)) * up(x))`.
#[derive(Clone, Debug)]
pub struct GatedMlp {
    gate: Linear,
    up: Linear,
    down: Linear,
    act: ActKind,
}

impl GatedMlp {
    /// `prefix.ffn_gate`, `ffn_up {width, hidden}`, `ffn_down {hidden, width}`.
    pub fn new(w: &Weights, prefix: &str, width: usize, hidden: usize, act: ActKind, part: Part) -> Self {
        let linear = |name: &str, i, o| Linear::new(w, &format!("{prefix}.{name}"), i, o, part);
        GatedMlp {
            gate: linear("ffn_gate", width, hidden),
            up: linear("ffn_up", width, hidden),
            down: linear("ffn_down", hidden, width),
            act,
        }
    }

    /// `[width, T]` to `[width, T]`.
    pub fn forward(&self, g: &mut Graph, x: Node) -> Node {
        let gate = self.gate.forward(g, x);
        let up = self.up.forward(g, x);
        let h = g.push(op::GatedAct { kind: self.act }, &[gate, up]);
        self.down.forward(g, h)
    }
}
