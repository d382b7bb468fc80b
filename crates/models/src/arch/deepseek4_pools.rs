//! Pools of tokens in DeepSeek 4, and the choice among those of 4.

use firth_graph::{Graph, Node, op};

use crate::StepNodes;
use crate::blocks::{KvCache, Layer, Linear, Norm, Rope, SlotState};
use crate::config;
use crate::error::ModelError;
use crate::weights::{Tensor, Weights};

/// Sizes of pools and of the indexer.
pub struct PoolSizes {
    dim: usize,
    latent: usize,
    rope: Rope,
    heads: usize,
    index_dim: usize,
    top_k: usize,
}

impl PoolSizes {
    /// Of rows of `dim`, turned by `rope`; queries of the indexer come from `latent` numbers.
    pub fn read(w: &Weights, dim: usize, latent: usize, rope: Rope) -> Result<Self, ModelError> {
        let size = |name: &str, min| config::extent(w, &format!("attention.indexer.{name}"), min, 1 << 24);
        Ok(PoolSizes {
            dim,
            latent,
            heads: size("head_count", 1)?,
            index_dim: size("key_length", rope.config.n_rot)?,
            top_k: size("top_k", 1)?,
            rope,
        })
    }
}

/// Rows of consecutive tokens made one.
struct Compressor {
    op: op::PoolKeys,
    rows: Linear,
    gates: Linear,
    place: Tensor,
    norm: Norm,
    ring: SlotState,
}

impl Compressor {
    /// `{stem}_kv`, `{stem}_gate {width, k dim}`, `{stem}_ape {k dim, ratio}`, `{stem}_norm`, k being 2 where pools overlap.
    fn new(l: &Layer, stem: &str, dim: usize, ratio: usize) -> Self {
        let (m, width) = (&l.mixer, l.c.width);
        let op = op::PoolKeys { ratio, gated: true, overlap: ratio == 4 };
        let n = op.parts() / 2 * dim;
        let name = |part: &str| format!("{stem}_{part}");
        Compressor {
            op,
            rows: m.linear(&name("kv"), width, n),
            gates: m.linear(&name("gate"), width, n),
            place: m.table(&name("ape.weight"), &[n, ratio]),
            norm: m.norm(&name("norm"), dim),
            ring: SlotState::new(l, stem),
        }
    }

    /// `[dim, 1, T]`, at the last token of each pool.
    fn apply(&self, g: &mut Graph, x: Node, rope: &Rope, step: &StepNodes) -> Node {
        let (rows, gates) = (self.rows.apply(g, x), self.gates.apply(g, x));
        let both = g.push(op::Concat, &[rows, gates]);
        let width = g.layout(both).shape.constant(0).unwrap_or(0);
        let ring = self.ring.ring(g, width, self.op.reach(), step);
        let place = self.place.node(g);
        let [y, first, _] = g.push_three(self.op, &[ring, both, place, step.seqs, step.slots()]);
        let y = self.norm.apply(g, y);
        let y = g.split_heads(y, width / self.op.parts());
        rope.turn_last(g, y, first, step)
    }
}

/// The choice among pools.
struct Choice {
    heads: Compressor,
    dim: usize,
    queries: Linear,
    weights: Linear,
    cache: KvCache,
    top_k: usize,
}

/// A layer's pools.
pub struct Pools {
    /// Tokens of a pool.
    pub ratio: usize,
    rows: Compressor,
    choice: Option<Choice>,
    rope: Rope,
}

impl Pools {
    /// Of `ratio` tokens; those of 4 are chosen among.
    pub fn new(l: &Layer, s: &PoolSizes, ratio: usize) -> Self {
        let m = &l.mixer;
        let choice = || Choice {
            heads: Compressor::new(l, "indexer_compressor", s.index_dim, ratio),
            dim: s.index_dim,
            queries: m.linear("indexer.attn_q_b", s.latent, s.heads * s.index_dim),
            weights: m.linear("indexer.proj", l.c.width, s.heads),
            cache: KvCache::index(l, s.index_dim),
            top_k: s.top_k,
        };
        Pools {
            ratio,
            rows: Compressor::new(l, "attn_compressor", s.dim, ratio),
            choice: (ratio == 4).then(choice),
            rope: s.rope.clone(),
        }
    }

    /// Rows of pools `[dim, 1, T]`, and `[n, T]` pool numbers where there is a choice.
    pub fn apply(&self, g: &mut Graph, x: Node, latent: Node, step: &StepNodes) -> (Node, Option<Node>) {
        let rows = self.rows.apply(g, x, &self.rope, step);
        let chosen = self.choice.as_ref().map(|c| {
            let keys = c.heads.apply(g, x, &self.rope, step);
            let q = c.queries.apply(g, latent);
            let q = g.split_heads(q, c.dim);
            let q = self.rope.turn_last(g, q, step.positions, step);
            let weights = c.weights.apply(g, x);
            let choice = op::TopKSelect { ratio: self.ratio, n: c.top_k };
            c.cache.choose(g, step, choice, keys, q, Some(weights))
        });
        (rows, chosen)
    }
}
