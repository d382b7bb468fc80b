//! GLM-5 (next): Kimi delta attention, with latent attention over chosen pools on some layers; experts; residual streams
//! mixed by doubly stochastic weights.
//!
//! Half:   R' = post f(norm(pre R)) + comb R, with pre, post and comb from a product of all streams' norm
//! Mixer:  Kimi delta attention; or latent attention without positions over the best pools of `kpool` tokens, which
//!         an indexer chooses or an earlier layer has chosen.
//! Source: GGUF keys `glm5-next.*`. The drafting head is left aside.

use firth_graph::{Gating, Graph, Node, op};

use crate::StepNodes;
use crate::blocks::{
    Block, Decay, Decoder, Embedding, FfnPlan, Glu, Head, Hyper, IndexShape, Indexer, Kda, KdaShape, Layer,
    Mla, MlaShape, Norm, NormKind, NormSpec, SparseHalf, SparseMla, Turned, by_keys, low_rank, streams,
};
use crate::config::{self, Config};
use crate::error::ModelError;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "glm5-next", load };

fn load(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let s = Sizes::read(w, &c)?;
    let embed = Embedding::new(w, &c);
    let head = Head::new(w, &c, &embed);
    Decoder::of_body(w, &c, embed, head, |states| Body {
        streams: s.hyper.streams,
        layers: (0..c.n_layers).map(|i| s.layer(&Layer::new(w, &c, i, states))).collect(),
    })
    .boxed()
}

struct Sizes {
    hyper: op::HyperWeights,
    delta: KdaShape,
    decay: Decay,
    latent: MlaShape,
    ffn: FfnPlan,
    limits: [Vec<f32>; 2],
    index: IndexShape,
    /// Tokens of a pool, and whether those behind the last complete one are seen.
    pools: (usize, bool),
    /// Layers that choose for themselves.
    chooses: Vec<bool>,
}

impl Sizes {
    fn read(w: &Weights, c: &Config) -> Result<Self, ModelError> {
        let tail = w.metadata().bool(&w.key("attention.indexer.kpool_select_tail"))?.unwrap_or(true);
        let latent = MlaShape::read(w, c.first_heads(), 0)?;
        let chooses = config::flags(w, "attention.indexer.types", c.n_blocks)?;
        let chooses = chooses.unwrap_or_else(|| vec![true; c.n_blocks]);
        let eps = NormSpec::read(w, NormKind::Layer)?.eps;
        Ok(Sizes {
            hyper: Hyper::read(w)?,
            delta: KdaShape::read(w, c.first_heads())?,
            decay: Decay::read(w)?,
            latent,
            ffn: FfnPlan::read(w, c, by_keys(w, c, Gating::Sigmoid)?)?,
            limits: config::clamps(w, c)?,
            index: IndexShape::read(w, latent.query_latent, eps)?,
            pools: (config::extent(w, "attention.indexer.kpool", 2, 1 << 20)?, tail),
            chooses: config::first_chooses(w, c, chooses, |i| c.kv_heads[i] > 0)?,
        })
    }

    fn layer(&self, l: &Layer) -> [Half; 2] {
        let mixer = match l.c.kv_heads[l.i] {
            0 => {
                let [forget, gate] = ["ssm_f", "ssm_g"].map(|n| low_rank(l, &self.delta, n));
                let mut kda = Kda::new(l, self.delta, forget, gate, self.decay);
                kda.unit_eps = 1e-6;
                SparseHalf::Plain(Box::new(kda))
            }
            _ => {
                let index = self.chooses[l.i]
                    .then(|| Indexer::new(l, self.index, Turned::No).pooled(l, self.pools.0));
                let mla = Mla::new(l, self.latent);
                SparseHalf::Mixer(Box::new(SparseMla { mla, index, pools: Some(self.pools) }))
            }
        };
        let [glu, dense_glu] = [0, 1].map(|i| Glu::silu(self.limits[i][l.i], Glu::Clipped));
        let ffn = SparseHalf::Plain(FfnPlan { glu, dense_glu, ..self.ffn }.block(l));
        let (m, f, width) = (&l.mixer, &l.ffn, l.c.width);
        [
            Half {
                hyper: Hyper::new(m, l, "hc_attn", self.hyper),
                norm: m.norm("attn_norm", width),
                inner: mixer,
            },
            Half {
                hyper: Hyper::new(f, l, "hc_ffn", self.hyper),
                norm: f.norm("ffn_norm", width),
                inner: ffn,
            },
        ]
    }
}

/// One half of a layer.
struct Half {
    hyper: Hyper,
    norm: Norm,
    inner: SparseHalf,
}

struct Body {
    streams: usize,
    layers: Vec<[Half; 2]>,
}

impl Block for Body {
    fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let mut r = streams::copies(g, x, self.streams);
        let mut chosen = None;
        for (i, halves) in self.layers.iter().enumerate() {
            g.scope(format!("blk.{i}"));
            for half in halves {
                r = half.hyper.around(g, r, |g, h| {
                    let h = half.norm.apply(g, h);
                    half.inner.apply(g, h, &mut chosen, step)
                });
            }
        }
        let sum = streams::total(g, r);
        g.push(op::Scale { by: 1.0 / self.streams as f32 }, &[sum])
    }
}
