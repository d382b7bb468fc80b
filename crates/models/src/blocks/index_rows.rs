//! Queries and keys that an indexer compares, from projections of their own.

use firth_graph::{Graph, Node, op};

use crate::StepNodes;
use crate::blocks::{Attention, Block, KvCache, Layer, Linear, Norm, Rope, Seen, SlotState};
use crate::config;
use crate::error::ModelError;
use crate::weights::Weights;

/// Sizes of an indexer's rows.
#[derive(Clone, Copy, Debug)]
pub struct IndexSizes {
    /// Heads of queries.
    pub heads: usize,
    /// Numbers of a query or key.
    pub dim: usize,
    /// Tokens or blocks chosen.
    pub top_k: usize,
}

impl IndexSizes {
    /// Reads `attention.indexer.head_count`, `key_length` (at least `n_rot`), `top_k`.
    pub fn read(w: &Weights, n_rot: usize) -> Result<Self, ModelError> {
        let size = |name: &str, min| config::extent(w, &format!("attention.indexer.{name}"), min, 1 << 20);
        Ok(IndexSizes {
            heads: size("head_count", 1)?,
            dim: size("key_length", n_rot.max(1))?,
            top_k: size("top_k", 1)?,
        })
    }
}

/// Normed and turned queries and keys.
struct IndexRows {
    dim: usize,
    queries: Linear,
    keys: Linear,
    /// Of queries, and of keys.
    norms: [Norm; 2],
    rope: Rope,
    cache: KvCache,
}

impl IndexRows {
    /// `indexer.q_proj`, `indexer.k_proj`, `indexer.q_norm`, `indexer.k_norm`.
    fn new(l: &Layer, s: IndexSizes, rope: &Rope) -> Self {
        let (m, width) = (&l.mixer, l.c.width);
        IndexRows {
            dim: s.dim,
            queries: m.linear("indexer.q_proj", width, s.heads * s.dim),
            keys: m.linear("indexer.k_proj", width, s.dim),
            norms: ["indexer.q_norm", "indexer.k_norm"].map(|n| m.norm(n, s.dim)),
            rope: rope.clone(),
            cache: KvCache::index(l, s.dim),
        }
    }

    /// `[dim, heads, T]`.
    fn queries(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let q = self.queries.apply(g, x);
        let q = g.split_heads(q, self.dim);
        let q = self.norms[0].apply(g, q);
        self.rope.turn(g, q, step)
    }

    /// Projected keys `[dim, T]` as `[dim, 1, T]`, normed and turned by `positions`.
    fn placed(&self, g: &mut Graph, key: Node, positions: Node, step: &StepNodes) -> Node {
        let key = self.norms[1].apply(g, key);
        let key = g.split_heads(key, self.dim);
        self.rope.turn_to(g, key, positions, step)
    }
}

/// Attention over the best pools of `ratio` tokens, whose key is that of their mean, and over the tokens behind the last
/// complete pool.
pub struct PoolAttention {
    attention: Attention,
    rows: IndexRows,
    choice: op::TopKSelect,
    ring: SlotState,
}

impl PoolAttention {
    /// Pools that hold as many tokens as are chosen.
    pub fn new(l: &Layer, attention: Attention, rope: &Rope, s: IndexSizes, ratio: usize) -> Self {
        PoolAttention {
            attention,
            rows: IndexRows::new(l, s, rope),
            choice: op::TopKSelect { ratio, n: (s.top_k / ratio).max(1) },
            ring: SlotState::new(l, "pool"),
        }
    }
}

impl Block for PoolAttention {
    fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let (rows, ratio) = (&self.rows, self.choice.ratio);
        let key = rows.keys.apply(g, x);
        let ring = self.ring.ring(g, rows.dim, ratio - 1, step);
        let pool = op::PoolKeys { ratio, gated: false, overlap: false };
        let [key, first, _] = g.push_three(pool, &[ring, key, step.seqs, step.slots()]);
        let key = rows.placed(g, key, first, step);
        let q = rows.queries(g, x, step);
        let pools = rows.cache.choose(g, step, self.choice, key, q, None);
        self.attention.over(g, x, step, Seen::Chosen { pools, ratio, tail: true, sinks: None })
    }
}

/// Attention whose key heads each read the blocks of tokens that a query of their own chooses.
pub struct BlockAttention {
    attention: Attention,
    rows: IndexRows,
    choice: op::BlockSelect,
}

impl BlockAttention {
    /// By the indexer's rows, of as many heads as there are key heads.
    pub fn new(l: &Layer, attention: Attention, rope: &Rope, s: IndexSizes, choice: op::BlockSelect) -> Self {
        BlockAttention { attention, rows: IndexRows::new(l, s, rope), choice }
    }
}

impl Block for BlockAttention {
    fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let (rows, ratio) = (&self.rows, self.choice.ratio);
        if self.choice.n >= step.options.ctx.div_ceil(ratio) {
            // All blocks there can be are read.
            return self.attention.forward(g, x, step);
        }
        let key = rows.keys.apply(g, x);
        let key = rows.placed(g, key, step.positions, step);
        let q = rows.queries(g, x, step);
        let pools = rows.cache.choose_blocks(g, step, self.choice, key, q);
        self.attention.over(g, x, step, Seen::Chosen { pools, ratio, tail: true, sinks: None })
    }
}
