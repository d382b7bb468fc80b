//! The lightning indexer: which keys attention reads. Source: DeepSeek-AI 2025, "DeepSeek-V3.2-Exp", section 2.1.

use firth_graph::{Graph, Node, op};

use crate::StepNodes;
use crate::blocks::{KvCache, Layer, Linear, Norm, NormKind, NormSpec, Rope, SlotState};
use crate::config;
use crate::error::ModelError;
use crate::weights::{Tensor, Weights};

/// Sizes of an indexer.
#[derive(Clone, Copy, Debug)]
pub struct IndexShape {
    /// Heads.
    pub heads: usize,
    /// Numbers of a query or key.
    pub dim: usize,
    /// Tokens chosen.
    pub top_k: usize,
    /// Numbers of the queries' latent.
    pub latent: usize,
    /// Added to the variance of a key.
    pub eps: f32,
}

impl IndexShape {
    /// Reads `attention.indexer.head_count`, `key_length`, `top_k`.
    pub fn read(w: &Weights, latent: usize, eps: f32) -> Result<Self, ModelError> {
        let size = |name: &str| config::extent(w, &format!("attention.indexer.{name}"), 1, 1 << 24);
        let (heads, dim, top_k) = (size("head_count")?, size("key_length")?, size("top_k")?);
        Ok(IndexShape { heads, dim, top_k, latent, eps })
    }
}

/// Which part of a query or key is turned.
#[derive(Clone, Debug)]
pub enum Turned {
    /// None.
    No,
    /// The first numbers.
    First(Rope),
    /// The last numbers.
    Last(Rope),
}

impl Turned {
    /// `x: [dim, heads, T]`, its part turned by its rows' positions.
    fn apply(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        match self {
            Turned::No => x,
            // Rope leaves alone what lies behind its part.
            Turned::First(rope) => rope.turn(g, x, step),
            Turned::Last(rope) => rope.turn_last(g, x, step.positions, step),
        }
    }
}

/// Keys of consecutive tokens weighed together by gates.
struct Pooled {
    gate: Linear,
    place: Tensor,
    ring: SlotState,
}

/// The choice of a layer: the best keys, or pools of them, by `sum_h w_h relu(q_h . k)`.
pub struct Indexer {
    shape: IndexShape,
    choice: op::TopKSelect,
    queries: Linear,
    key: Linear,
    norm: Norm,
    weights: Linear,
    turned: Turned,
    pool: Option<Pooled>,
    cache: KvCache,
}

impl Indexer {
    /// `indexer.attn_q_b`, `indexer.attn_k`, `indexer.k_norm` (with a mean), `indexer.proj`.
    pub fn new(l: &Layer, shape: IndexShape, turned: Turned) -> Self {
        let (m, s, width) = (&l.mixer, &shape, l.c.width);
        let norm = NormSpec { kind: NormKind::Layer, eps: s.eps };
        Indexer {
            shape,
            choice: op::TopKSelect { ratio: 1, n: s.top_k },
            queries: m.linear("indexer.attn_q_b", s.latent, s.heads * s.dim),
            key: m.linear("indexer.attn_k", width, s.dim),
            norm: Norm::new(l.w, &m.name("indexer.k_norm"), &[s.dim], norm, m.part),
            weights: m.linear("indexer.proj", width, s.heads),
            turned,
            pool: None,
            cache: KvCache::index(l, s.dim),
        }
    }

    /// Over pools of `ratio` tokens: `indexer_compressor_gate {width, dim}`, `indexer_compressor_ape {dim, ratio}`.
    pub fn pooled(mut self, l: &Layer, ratio: usize) -> Self {
        let (m, dim) = (&l.mixer, self.shape.dim);
        self.choice = op::TopKSelect { ratio, n: (self.shape.top_k / ratio).max(1) };
        self.pool = Some(Pooled {
            gate: m.linear("indexer_compressor_gate", l.c.width, dim),
            place: m.table("indexer_compressor_ape.weight", &[dim, ratio]),
            ring: SlotState::new(l, "pool"),
        });
        self
    }

    /// `[n, T]` pool numbers, from normalised rows and the queries' latent.
    pub fn choose(&self, g: &mut Graph, x: Node, latent: Node, step: &StepNodes) -> Node {
        let s = &self.shape;
        let key = self.key.apply(g, x);
        let mut key = self.norm.apply(g, key);
        if let Some(pool) = &self.pool {
            let ratio = self.choice.ratio;
            let gate = pool.gate.apply(g, x);
            let both = g.push(op::Concat, &[key, gate]);
            let ring = pool.ring.ring(g, 2 * s.dim, ratio - 1, step);
            let place = pool.place.node(g);
            let op = op::PoolKeys { ratio, gated: true, overlap: false };
            [key, _, _] = g.push_three(op, &[ring, both, place, step.seqs, step.slots()]);
        }
        let key = g.split_heads(key, s.dim);
        let key = self.turned.apply(g, key, step);
        let q = self.queries.apply(g, latent);
        let q = g.split_heads(q, s.dim);
        let q = self.turned.apply(g, q, step);
        let weights = self.weights.apply(g, x);
        self.cache.choose(g, step, self.choice, key, q, Some(weights))
    }
}
