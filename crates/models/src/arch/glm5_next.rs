//! GLM-5 (next): Kimi delta attention with latent attention over chosen pools on some layers, experts, four residual
//! streams mixed by doubly stochastic weights.
//!
//! Half:   R' = post f(norm(pre R)) + comb R, with pre, post and comb from a product of all streams' norm
//! Mixer:  Kimi delta attention; or latent attention without positions over the best pools of `kpool` tokens, which
//!         an indexer chooses or an earlier layer has chosen.
//! Source: Xie et al. 2025, arXiv 2512.24880 (streams); GGUF keys `glm5-next.*`. The drafting head is left aside.

use firth_graph::{Gating, Graph, Node, op};

use crate::StepNodes;
use crate::blocks::{
    Block, Decay, Decoder, Embedding, FfnPlan, Glu, Head, Kda, KdaShape, KvCache, Layer, Linear, Mla,
    MlaShape, Norm, NormKind, NormSpec, Place, Seen, SlotState, by_keys, low_rank, streams,
};
use crate::config::{self, Config};
use crate::error::ModelError;
use crate::registry::{Arch, Loaded};
use crate::weights::{Tensor, Weights};

/// Registry entry.
pub const ARCH: Arch = Arch { name: "glm5-next", load };

fn load(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let s = Sizes::read(w, &c)?;
    let embed = Embedding::new(w, &c);
    let head = Head::new(w, &c, &embed);
    Decoder::of_body(w, &c, embed, head, |states| Body {
        streams: s.weights.streams,
        layers: (0..c.n_layers).map(|i| s.layer(&Layer::new(w, &c, i, states))).collect(),
    })
    .boxed()
}

struct Sizes {
    weights: op::HyperWeights,
    delta: KdaShape,
    decay: Decay,
    latent: MlaShape,
    ffn: FfnPlan,
    limits: [Vec<f32>; 2],
    index: IndexSizes,
    /// Layers that choose for themselves.
    chooses: Vec<bool>,
}

#[derive(Clone, Copy)]
struct IndexSizes {
    heads: usize,
    dim: usize,
    choice: op::TopKSelect,
    tail: bool,
    norm: NormSpec,
}

impl Sizes {
    fn read(w: &Weights, c: &Config) -> Result<Self, ModelError> {
        let size = |name: &str, min| config::extent(w, name, min, 1 << 20);
        let ratio = size("attention.indexer.kpool", 2)?;
        let limits = |name: &str| config::per_layer_f32(w, name, c.n_blocks);
        let experts = limits("swiglu_clamp_exp")?;
        let shared = match w.has_key("swiglu_clamp_shexp") {
            true => limits("swiglu_clamp_shexp")?,
            false => experts.clone(),
        };
        Ok(Sizes {
            weights: op::HyperWeights {
                streams: size("hyper_connection.count", 2)?,
                iterations: size("hyper_connection.sinkhorn_iterations", 1)?,
                eps: config::float(w, "hyper_connection.epsilon", 0.0)? as f32,
            },
            delta: KdaShape::read(w, c.first_heads())?,
            decay: Decay::read(w)?,
            latent: MlaShape::read(w, c.first_heads(), 0)?,
            ffn: FfnPlan::read(w, c, by_keys(w, c, Gating::Sigmoid)?)?,
            limits: [experts, shared],
            index: IndexSizes {
                heads: size("attention.indexer.head_count", 1)?,
                dim: size("attention.indexer.key_length", 1)?,
                choice: op::TopKSelect { ratio, n: (size("attention.indexer.top_k", 1)? / ratio).max(1) },
                tail: w.metadata().bool(&w.key("attention.indexer.kpool_select_tail"))?.unwrap_or(true),
                norm: NormSpec::read(w, NormKind::Layer)?,
            },
            chooses: config::flags(w, "attention.indexer.types", c.n_blocks)?
                .unwrap_or_else(|| vec![true; c.n_blocks]),
        })
    }

    fn layer(&self, l: &Layer) -> [Half; 2] {
        let mixer = match l.c.kv_heads[l.i] {
            0 => {
                let [forget, gate] = ["ssm_f", "ssm_g"].map(|n| low_rank(l, &self.delta, n));
                let mut kda = Kda::new(l, self.delta, forget, gate, self.decay);
                kda.unit_eps = 1e-6;
                Inner::Rows(Box::new(kda))
            }
            _ => {
                let index = self.chooses[l.i].then(|| Indexer::new(l, self.index, self.latent.query_latent));
                Inner::Latent(Box::new(Mla::new(l, self.latent)), index, self.index)
            }
        };
        let [glu, dense_glu] = [0, 1].map(|i| Glu::silu(self.limits[i][l.i], Glu::Clipped));
        let ffn = FfnPlan { glu, dense_glu, ..self.ffn }.block(l);
        [
            Half::new(&l.mixer, l, "hc_attn", "attn_norm", self.weights, mixer),
            Half::new(&l.ffn, l, "hc_ffn", "ffn_norm", self.weights, Inner::Rows(ffn)),
        ]
    }
}

/// What a half does with its rows.
enum Inner {
    Rows(Box<dyn Block>),
    Latent(Box<Mla>, Option<Indexer>, IndexSizes),
}

/// One half of a layer.
struct Half {
    op: op::HyperWeights,
    spec: NormSpec,
    weights: Linear,
    scale: Tensor,
    base: Tensor,
    norm: Norm,
    inner: Inner,
}

impl Half {
    fn new(p: &Place, l: &Layer, stem: &str, norm: &str, op: op::HyperWeights, inner: Inner) -> Self {
        let (width, n) = (l.c.width, op.width());
        Half {
            op,
            spec: l.c.norm,
            weights: p.linear(&format!("{stem}_fn"), width * op.streams, n),
            scale: p.table(&format!("{stem}_scale.weight"), &[3]),
            base: p.table(&format!("{stem}_base.weight"), &[n]),
            norm: p.norm(norm, width),
            inner,
        }
    }

    /// `[width, streams, T]` to the same; `chosen` are the pools of the last layer that chose.
    fn apply(&self, g: &mut Graph, r: Node, chosen: &mut Option<Node>, step: &StepNodes) -> Node {
        let n = self.op.streams;
        let flat = g.merge_heads(r);
        let flat = self.spec.forward(g, flat);
        let m = self.weights.apply(g, flat);
        let (scale, base) = (self.scale.node(g), self.base.node(g));
        let w = g.push(self.op, &[m, scale, base]);
        let (pre, post) = (g.slice(w, 0, n), g.slice(w, n, n));
        let comb = g.slice(w, 2 * n, n * n);
        let comb = g.split_heads(comb, n);
        let h = g.push(op::MoeSum, &[r, pre]);
        let h = self.norm.apply(g, h);
        let h = match &self.inner {
            Inner::Rows(block) => block.forward(g, h, step),
            Inner::Latent(mla, index, sizes) => {
                let latent = mla.query_latent(g, h);
                if let Some(index) = index {
                    *chosen = Some(index.choose(g, h, latent, step));
                }
                let seen = chosen.map_or(Seen::All { sinks: None }, |pools| Seen::Chosen {
                    pools,
                    ratio: sizes.choice.ratio,
                    tail: sizes.tail,
                });
                mla.over(g, h, latent, step, seen)
            }
        };
        g.push(op::StreamMix, &[r, comb, h, post])
    }
}

struct Body {
    streams: usize,
    layers: Vec<[Half; 2]>,
}

impl Block for Body {
    fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let spread = streams::spread(g, x, self.streams);
        let mut r = g.push(op::Copy, &[spread]);
        let mut chosen = None;
        for (i, halves) in self.layers.iter().enumerate() {
            g.scope(format!("blk.{i}"));
            for half in halves {
                r = half.apply(g, r, &mut chosen, step);
            }
        }
        let sum = streams::total(g, r);
        g.push(op::Scale { by: 1.0 / self.streams as f32 }, &[sum])
    }
}

/// The choice of pools by keys that gates have weighed together.
struct Indexer {
    sizes: IndexSizes,
    queries: Linear,
    key: Linear,
    norm: Norm,
    weights: Linear,
    gate: Linear,
    place: Tensor,
    ring: SlotState,
    cache: KvCache,
}

impl Indexer {
    fn new(l: &Layer, sizes: IndexSizes, latent: usize) -> Self {
        let (m, s, width) = (&l.mixer, &sizes, l.c.width);
        Indexer {
            sizes,
            queries: m.linear("indexer.attn_q_b", latent, s.heads * s.dim),
            key: m.linear("indexer.attn_k", width, s.dim),
            norm: Norm::new(l.w, &m.name("indexer.k_norm"), &[s.dim], s.norm, m.part),
            weights: m.linear("indexer.proj", width, s.heads),
            gate: m.linear("indexer_compressor_gate", width, s.dim),
            place: m.table("indexer_compressor_ape.weight", &[s.dim, s.choice.ratio]),
            ring: SlotState::new(l, "pool"),
            cache: KvCache::index(l, s.dim),
        }
    }

    /// `[n, T]` pool numbers, from normalised rows and the queries' latent.
    fn choose(&self, g: &mut Graph, x: Node, latent: Node, step: &StepNodes) -> Node {
        let s = &self.sizes;
        let key = self.key.apply(g, x);
        let key = self.norm.apply(g, key);
        let gate = self.gate.apply(g, x);
        let both = g.push(op::Concat, &[key, gate]);
        let ring = self.ring.ring(g, 2 * s.dim, s.choice.ratio - 1, step);
        let place = self.place.node(g);
        let pool = op::PoolKeys { ratio: s.choice.ratio, gated: true };
        let [key, _, _] = g.push_three(pool, &[ring, both, place, step.seqs, step.slots()]);
        let key = g.split_heads(key, s.dim);
        let q = self.queries.apply(g, latent);
        let q = g.split_heads(q, s.dim);
        let weights = self.weights.apply(g, x);
        self.cache.choose(g, step, s.choice, key, q, Some(weights))
    }
}
