//! GLM-5 (next): Kimi delta attention, with latent attention over chosen pools on some layers; experts; residual streams
//! mixed by doubly stochastic weights.
//!
//! Half:   R' = post f(norm(pre R)) + comb R, with pre, post and comb from a product of all streams' norm
//! Mixer:  Kimi delta attention; or latent attention without positions over the best pools of `kpool` tokens, which
//!         an indexer chooses or an earlier layer has chosen.
//! Source: GGUF keys `glm5-next.*`. The drafting head is left aside.

use firth_graph::{Gating, op};

use crate::blocks::{
    Decay, Decoder, Embedding, FfnPlan, Glu, Head, Hyper, IndexShape, Indexer, Kda, KdaShape, Layer, Mean,
    Mla, MlaShape, NormKind, NormSpec, Place, SparseHalf, SparseMla, StreamHalf, StreamLayers, StreamPart,
    Turned, by_keys, low_rank,
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
    Decoder::of_body(w, &c, embed, head, |states| StreamLayers {
        n: s.hyper.streams,
        layers: (0..c.n_layers).map(|i| s.layer(&Layer::new(w, &c, i, states))).collect(),
        end: Mean,
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

    fn layer(&self, l: &Layer) -> Vec<Box<dyn StreamPart>> {
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
        let half = |p: &Place, part: &str, inner| {
            let hyper = Hyper::new(p, l, &format!("hc_{part}"), self.hyper);
            StreamHalf::boxed(hyper, p.norm(&format!("{part}_norm"), l.c.width), inner)
        };
        vec![half(&l.mixer, "attn", mixer), half(&l.ffn, "ffn", ffn)]
    }
}
