//! Qwen4 (experimental): Qwen3.5's layers over several residual streams, attention over chosen pools of tokens, and
//! n-gram rows on one layer.
//!
//! Half:   (h, gates) = mix(R);  R_s += f(h) 2 sigmoid(gates_s / streams)
//! Mix:    streams normed, each gated by a low-rank product of all of them, then averaged.
//! Mixer:  delta net with a sigmoid gate; or Qwen3.5's attention over the best pools of `compress_ratios` tokens.
//! Source: GGUF keys `qwen4exp.*`. Biases of attention play no part; the drafting head is left aside.

use firth_graph::{ActKind, Graph, Node, Part, RopePairs, op};

use super::qwen4exp_ngram::{NgramLayer, Ngrams};
use super::qwen35::{Ffn, Projections, gated_attention};
use crate::StepNodes;
use crate::blocks::{
    Attention, Block, Decoder, DeltaNet, DeltaShape, Embedding, Head, KvCache, Layer, Linear, Norm, NormKind,
    Place, Rope, Seen, SlotState, States, streams,
};
use crate::config::{self, Config};
use crate::error::ModelError;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "qwen4exp", load };

fn load(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let s = Sizes::read(w, &c)?;
    let embed = Embedding::new(w, &c);
    let head = Head::bare(w, &c, &embed);
    Decoder::of_body(w, &c, embed, head, |states| Body::new(w, &c, &s, states)).boxed()
}

struct Sizes {
    streams: usize,
    low_rank: usize,
    recurrent: Vec<bool>,
    delta: DeltaShape,
    rope: Rope,
    ffn: Ffn,
    index: IndexSizes,
    /// Tokens of each layer's pools, 0 for none.
    ratios: Vec<u32>,
    ngrams: Option<Ngrams>,
}

/// Sizes of the choice of pools.
#[derive(Clone, Copy)]
struct IndexSizes {
    heads: usize,
    dim: usize,
    top_k: usize,
}

impl Sizes {
    fn read(w: &Weights, c: &Config) -> Result<Self, ModelError> {
        let size = |name: &str, min| config::extent(w, name, min, 1 << 20);
        let streams = size("hyper_connection.count", 2)?;
        let ratios = w.metadata().u32_per_layer(&w.key("attention.compress_ratios"), c.n_blocks)?;
        Ok(Sizes {
            streams,
            low_rank: size("hyper_connection.low_rank", 1)?,
            recurrent: config::recurrent_layers(w, c, 4)?,
            delta: DeltaShape::read(w, false)?,
            rope: Rope::new(c, RopePairs::Half),
            ffn: Ffn::read(w, c)?,
            index: IndexSizes {
                heads: size("attention.indexer.head_count", 1)?,
                dim: size("attention.indexer.key_length", 1)?,
                top_k: size("attention.indexer.top_k", 1)?,
            },
            ratios: ratios.unwrap_or_else(|| vec![0; c.n_blocks]),
            ngrams: Ngrams::read(w, c, streams)?,
        })
    }

    fn mixer(&self, l: &Layer) -> Box<dyn Block> {
        if self.recurrent[l.i] {
            let rows = Box::new(Projections::new(l, self.delta));
            let mut net = DeltaNet::new(l, self.delta, rows);
            net.gate = ActKind::Sigmoid;
            return Box::new(net);
        }
        let mut attention = gated_attention(l, &self.rope);
        attention.qkv = attention.qkv.unbiased();
        match self.ratios[l.i] as usize {
            0 => Box::new(attention),
            ratio => Box::new(PoolAttention::new(l, attention, &self.rope, self.index, ratio)),
        }
    }
}

/// Streams made one, and what a half's result is added to each with.
struct Mix {
    streams: usize,
    norm: Norm,
    down: Linear,
    up: Linear,
    inject: Option<Linear>,
}

impl Mix {
    fn new(p: &Place, stem: &str, width: usize, s: &Sizes, inject: bool) -> Self {
        let (name, all) = (|part: &str| format!("{stem}_{part}"), width * s.streams);
        Mix {
            streams: s.streams,
            norm: p.head_norm(&name("norm"), width, s.streams),
            down: p.linear(&name("down"), all, s.low_rank),
            up: p.linear(&name("up"), s.low_rank, all),
            inject: inject.then(|| p.linear(&name("inject"), all, s.streams)),
        }
    }

    /// `[width, streams, T]` to `[width, T]` and, for a half, `[1, streams, T]`.
    fn apply(&self, g: &mut Graph, r: Node) -> (Node, Option<Node>) {
        let normed = self.norm.apply(g, r);
        let width = g.layout(normed).shape.constant(0).unwrap_or(0);
        let all = g.merge_heads(normed);
        let by = 1.0 / self.streams as f32;
        let h = self.down.apply(g, all);
        let h = g.push(op::Scale { by }, &[h]);
        let h = g.push(op::Act { kind: ActKind::Silu }, &[h]);
        let gate = self.up.apply(g, h);
        let gate = g.split_heads(gate, width);
        let gated = g.push(op::GatedAct { kind: ActKind::Sigmoid }, &[gate, normed]);
        let sum = streams::total(g, gated);
        let mixed = g.push(op::Scale { by }, &[sum]);
        let gates = self.inject.as_ref().map(|inject| {
            let z = inject.apply(g, all);
            let z = g.push(op::Scale { by }, &[z]);
            let z = g.push(op::Act { kind: ActKind::Sigmoid }, &[z]);
            let z = g.push(op::Scale { by: 2.0 }, &[z]);
            g.split_heads(z, 1)
        });
        (mixed, gates)
    }
}

struct Body {
    streams: usize,
    layers: Vec<(Option<NgramLayer>, [(Mix, Box<dyn Block>); 2])>,
    last: Mix,
}

impl Body {
    fn new(w: &Weights, c: &Config, s: &Sizes, states: &States) -> Self {
        let layer = |i: usize| {
            let l = Layer::new(w, c, i, states);
            let half = |p: &Place, stem: &str, block| (Mix::new(p, stem, c.width, s, true), block);
            let halves = [half(&l.mixer, "hc_attn", s.mixer(&l)), half(&l.ffn, "hc_ffn", s.ffn.block(&l))];
            (s.ngrams.as_ref().filter(|n| n.layer == i).map(|n| n.of_layer(&l)), halves)
        };
        let head = Place::root(w, c, Part::Head);
        Body {
            streams: s.streams,
            layers: (0..c.n_layers).map(layer).collect(),
            last: Mix::new(&head, "output_hc", c.width, s, false),
        }
    }
}

impl Block for Body {
    fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let mut r = streams::copies(g, x, self.streams);
        for (i, (ngrams, halves)) in self.layers.iter().enumerate() {
            g.scope(format!("blk.{i}"));
            if let Some(ngrams) = ngrams {
                r = ngrams.add(g, r, step);
            }
            for (mix, block) in halves {
                let (h, gates) = mix.apply(g, r);
                let h = block.forward(g, h, step);
                let h = streams::spread(g, h, self.streams);
                let h = g.push(op::Mul, &[h, gates.expect("a half has gates")]);
                r = g.push(op::Add, &[h, r]);
            }
        }
        self.last.apply(g, r).0
    }
}

/// Attention over the best pools of tokens, and those behind the last complete pool.
struct PoolAttention {
    attention: Attention,
    rope: Rope,
    sizes: IndexSizes,
    ratio: usize,
    queries: Linear,
    keys: Linear,
    norms: [Norm; 2],
    ring: SlotState,
    cache: KvCache,
}

impl PoolAttention {
    fn new(l: &Layer, attention: Attention, rope: &Rope, sizes: IndexSizes, ratio: usize) -> Self {
        let (m, s) = (&l.mixer, &sizes);
        PoolAttention {
            attention,
            rope: rope.clone(),
            sizes,
            ratio,
            queries: m.linear("indexer.q_proj", l.c.width, s.heads * s.dim),
            keys: m.linear("indexer.k_proj", l.c.width, s.dim),
            norms: ["indexer.q_norm", "indexer.k_norm"].map(|n| m.norm(n, s.dim)),
            ring: SlotState::new(l, "pool"),
            cache: KvCache::index(l, s.dim),
        }
    }
}

impl Block for PoolAttention {
    fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let (s, ratio) = (&self.sizes, self.ratio);
        let key = self.keys.apply(g, x);
        let ring = self.ring.ring(g, s.dim, ratio - 1, step);
        let pool = op::PoolKeys { ratio, gated: false, overlap: false };
        let [key, first, _] = g.push_three(pool, &[ring, key, step.seqs, step.slots()]);
        let key = self.norms[1].apply(g, key);
        let key = g.split_heads(key, s.dim);
        let key = self.rope.turn_to(g, key, first, step);
        let q = self.queries.apply(g, x);
        let q = g.split_heads(q, s.dim);
        let q = self.norms[0].apply(g, q);
        let q = self.rope.turn(g, q, step);
        let choice = op::TopKSelect { ratio, n: (s.top_k / ratio).max(1) };
        let pools = self.cache.choose(g, step, choice, key, q, None);
        self.attention.over(g, x, step, Seen::Chosen { pools, ratio, tail: true, sinks: None })
    }
}
