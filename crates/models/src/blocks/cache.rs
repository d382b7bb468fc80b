//! Keys and values of a layer in their pages.

use firth_graph::{Graph, KvSpec, Node, PageGroup, Part, StateSpec, op};

use crate::StepNodes;
use crate::blocks::{AttentionShape, Layer};

/// The keys and values that one layer keeps.
#[derive(Clone, Copy, Debug)]
pub struct KvCache {
    layer: usize,
    key_dim: usize,
    value_dim: usize,
    n_heads: usize,
    group: PageGroup,
    window: Option<usize>,
}

impl KvCache {
    /// Of layer `l`, where keys further back than `window` are never read.
    pub fn new(l: &Layer, s: &AttentionShape, window: Option<usize>) -> Self {
        KvCache {
            layer: l.i,
            key_dim: s.key_dim,
            value_dim: s.value_dim,
            n_heads: s.kv_heads,
            group: l.states.group(window),
            window,
        }
    }

    /// Writes the step's `k: [key_dim, heads, T]` and `v: [value_dim, heads, T]`; the state's new version.
    pub fn write(&self, g: &mut Graph, step: &StepNodes, k: Node, v: Node) -> Node {
        let spec = StateSpec::Kv(KvSpec {
            key_dim: self.key_dim,
            value_dim: self.value_dim,
            n_heads: self.n_heads,
            dtype: step.options.kv,
            group: self.group,
            window: self.window,
            value_in_key: false,
        });
        let before = g.state(format!("blk.{}.kv", self.layer), spec, Part::Mixer(self.layer as u32));
        g.push(op::KvWrite, &[before, k, v, step.seqs, step.pages_of(self.group)])
    }

    /// Writes the step's keys and values, then attends: `q: [key_dim, heads, T]`, `k`, `v: [.., kv heads, T]` to
    /// `[value_dim, heads, T]`.
    pub fn attend(
        &self,
        g: &mut Graph,
        step: &StepNodes,
        scores: op::Attend,
        [q, k, v]: [Node; 3],
        sinks: Option<Node>,
    ) -> Node {
        let after = self.write(g, step, k, v);
        let mut inputs = vec![after, q, step.seqs, step.pages_of(self.group)];
        inputs.extend(sinks);
        g.push(scores, &inputs)
    }
}
