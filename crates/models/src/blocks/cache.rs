//! Keys and values of a layer in their pages.

use firth_graph::{Graph, KvSpec, Node, PageGroup, Part, StateSpec, op};
use firth_quant::Dtype;

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
    name: &'static str,
    /// Which run of the layer it belongs to.
    pass: usize,
    /// The type of keys and values; the options' where it is not fixed.
    dtype: Option<Dtype>,
}

impl KvCache {
    /// Of layer `l`, where keys further back than `window` are never read.
    pub fn new(l: &Layer, s: &AttentionShape, window: Option<usize>) -> Self {
        KvCache::of(l, [s.key_dim, s.value_dim], s.kv_heads, window)
    }

    fn of(l: &Layer, [key_dim, value_dim]: [usize; 2], n_heads: usize, window: Option<usize>) -> Self {
        KvCache {
            layer: l.i,
            key_dim,
            value_dim,
            n_heads,
            group: l.states.group(window),
            window,
            value_in_key: false,
            name: "kv",
            pass: 0,
            dtype: None,
        }
    }

    /// Of another run of the same layer, in models that run layers several times.
    pub fn pass(self, pass: usize) -> Self {
        KvCache { pass, ..self }
    }

    /// One row of `key_dim` a token, whose first `value_dim` numbers are the value.
    pub fn latent(l: &Layer, key_dim: usize, value_dim: usize, window: Option<usize>) -> Self {
        KvCache { value_in_key: true, ..KvCache::of(l, [key_dim, value_dim], 1, window) }
    }

    /// Two rows a token, its own and that of the pool that ends with it.
    pub fn pairs(self) -> Self {
        KvCache { n_heads: 2, ..self }
    }

    /// One key of `key_dim` a token and no value, in f32: what an indexer compares.
    pub fn index(l: &Layer, key_dim: usize) -> Self {
        KvCache { name: "index", dtype: Some(Dtype::F32), ..KvCache::latent(l, key_dim, 0, None) }
    }

    /// Writes the step's `k: [key_dim, heads, T]` and, where values are kept apart, `v: [value_dim, heads, T]`; the
    /// state's new version.
    pub fn write(&self, g: &mut Graph, step: &StepNodes, (k, v): (Node, Option<Node>)) -> Node {
        let spec = StateSpec::Kv(KvSpec {
            key_dim: self.key_dim,
            value_dim: self.value_dim,
            n_heads: self.n_heads,
            dtype: self.dtype.unwrap_or(step.options.kv),
            group: self.group,
            window: self.window,
            value_in_key: self.value_in_key,
        });
        let mut name = format!("blk.{}.{}", self.layer, self.name);
        if self.pass > 0 {
            name = format!("{name}.{}", self.pass);
        }
        let mut inputs = vec![g.state(name, spec, Part::Mixer(self.layer as u32)), k];
        inputs.extend(v);
        inputs.extend([step.seqs, step.pages_of(self.group)]);
        g.push(op::KvWrite, &inputs)
    }

    /// Writes the step's keys and values, then attends with `q: [key_dim, heads, T]` to `[value_dim, heads, T]`: to all
    /// visible keys, or to those of chosen pools.
    pub fn attend(
        &self,
        g: &mut Graph,
        step: &StepNodes,
        scores: op::Attend,
        q: Node,
        kv: (Node, Option<Node>),
        seen: Seen,
    ) -> Node {
        let after = self.write(g, step, kv);
        let tables = [step.seqs, step.pages_of(self.group)];
        match seen {
            Seen::All { sinks, near } => self.look(g, step, scores, q, after, sinks.into_iter().chain(near)),
            Seen::Chosen { pools, ratio, tail, sinks } => {
                let op = op::AttendChosen { scale: scores.scale, ratio, tail };
                let mut inputs = vec![after, q, pools, tables[0], tables[1]];
                inputs.extend(sinks);
                g.push(op, &inputs)
            }
        }
    }

    /// Attends with `q: [key_dim, heads, T]` to `[value_dim, heads, T]` over all visible keys of a version that has been
    /// written, `beside` sinks or numbers for near keys.
    pub fn look(
        &self,
        g: &mut Graph,
        step: &StepNodes,
        scores: op::Attend,
        q: Node,
        written: Node,
        beside: impl IntoIterator<Item = Node>,
    ) -> Node {
        let mut inputs = vec![written, q, step.seqs, step.pages_of(self.group)];
        inputs.extend(beside);
        g.push(scores, &inputs)
    }

    /// Writes the step's `rows: [key_dim, 2, T]`, then attends with `q: [key_dim, heads, T]` to `[value_dim, heads, T]`: to the
    /// last tokens and to pools, all or those chosen `[n, T]`.
    pub fn attend_pools(
        &self,
        g: &mut Graph,
        step: &StepNodes,
        op: op::AttendPools,
        q: Node,
        rows: Node,
        (chosen, sinks): (Option<Node>, Option<Node>),
    ) -> Node {
        let after = self.write(g, step, (rows, None));
        let mut inputs = vec![after, q];
        inputs.extend(chosen);
        inputs.extend([step.seqs, step.pages_of(self.group)]);
        inputs.extend(sinks);
        g.push(op, &inputs)
    }

    /// Writes the step's index keys `[key_dim, 1, T]` and chooses `choice.n` pools by queries `[key_dim, heads, T]` and, where
    /// there are any, weights `[heads, T]`.
    pub fn choose(
        &self,
        g: &mut Graph,
        step: &StepNodes,
        choice: op::TopKSelect,
        keys: Node,
        queries: Node,
        weights: Option<Node>,
    ) -> Node {
        let after = self.write(g, step, (keys, None));
        // There are no more pools than the context holds.
        let n = choice.n.min(step.options.ctx / choice.ratio).max(1);
        let choice = op::TopKSelect { n, ..choice };
        let mut inputs = vec![after, queries];
        inputs.extend(weights);
        inputs.extend([step.seqs, step.pages_of(self.group)]);
        g.push(choice, &inputs)
    }

    /// Writes the step's index keys `[key_dim, 1, T]` and chooses blocks for each of the queries `[key_dim, heads, T]`.
    pub fn choose_blocks(
        &self,
        g: &mut Graph,
        step: &StepNodes,
        choice: op::BlockSelect,
        keys: Node,
        queries: Node,
    ) -> Node {
        let after = self.write(g, step, (keys, None));
        g.push(choice, &[after, queries, step.seqs, step.pages_of(self.group)])
    }
}

/// Which keys attention sees.
#[derive(Clone, Copy, Debug)]
pub enum Seen {
    /// All that its window shows.
    All {
        /// One more score per head.
        sinks: Option<Node>,
        /// What is added to the scores of near keys, where the op has a reach.
        near: Option<Node>,
    },
    /// Those of chosen pools of tokens.
    Chosen {
        /// `[n, T]` pool numbers, or `[n, key heads, T]`.
        pools: Node,
        /// Tokens of a pool.
        ratio: usize,
        /// Whether the tokens behind the last complete pool are seen too.
        tail: bool,
        /// One more score per head.
        sinks: Option<Node>,
    },
}
