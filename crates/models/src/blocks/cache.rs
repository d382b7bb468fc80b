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
    value_in_key: bool,
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
            value_in_key: false,
        }
    }

    /// One row of `key_dim` a token, whose first `value_dim` numbers are the value.
    pub fn latent(l: &Layer, key_dim: usize, value_dim: usize, window: Option<usize>) -> Self {
        let group = l.states.group(window);
        KvCache { layer: l.i, key_dim, value_dim, n_heads: 1, group, window, value_in_key: true }
    }

    /// Writes the step's `k: [key_dim, heads, T]` and, where values are kept apart, `v: [value_dim, heads, T]`; the
    /// state's new version.
    pub fn write(&self, g: &mut Graph, step: &StepNodes, (k, v): (Node, Option<Node>)) -> Node {
        let spec = StateSpec::Kv(KvSpec {
            key_dim: self.key_dim,
            value_dim: self.value_dim,
            n_heads: self.n_heads,
            dtype: step.options.kv,
            group: self.group,
            window: self.window,
            value_in_key: self.value_in_key,
        });
        let mut inputs =
            vec![g.state(format!("blk.{}.kv", self.layer), spec, Part::Mixer(self.layer as u32)), k];
        inputs.extend(v);
        inputs.extend([step.seqs, step.pages_of(self.group)]);
        g.push(op::KvWrite, &inputs)
    }

    /// Writes the step's keys and values, then attends with `q: [key_dim, heads, T]` to `[value_dim, heads, T]`.
    pub fn attend(
        &self,
        g: &mut Graph,
        step: &StepNodes,
        scores: op::Attend,
        q: Node,
        kv: (Node, Option<Node>),
        sinks: Option<Node>,
    ) -> Node {
        let after = self.write(g, step, kv);
        let mut inputs = vec![after, q, step.seqs, step.pages_of(self.group)];
        inputs.extend(sinks);
        g.push(scores, &inputs)
    }
}
