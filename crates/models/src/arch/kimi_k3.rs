//! Kimi K3: Kimi delta attention, gated latent attention without positions, experts in a latent space, and
//! residuals that attend over what entered earlier blocks of layers.
//!
//! Layer:  h = mixer(norm(mix(x))); x = h where a block of layers starts, whose x is stored first, else x + h;
//!         x += ffn(norm(mix(x)))
//! Mix:    the stored rows and x, by softmax of a weighted sum of each one's norm.
//! Source: GGUF keys `kimi-k3.*`; the converter has multiplied each mix's norm into its projection.

use firth_graph::{Gating, Graph, Node, Part, op};

use crate::StepNodes;
use crate::blocks::{
    Block, Chain, Decay, Decoder, Embedding, FfnPlan, Gate, Glu, Head, Kda, KdaShape, LatentMoe, Layer, Mla,
    MlaShape, Mlp, Norm, NormKind, NormSpec, Shared, States, Sum, by_keys, low_rank,
};
use crate::config::{self, Config};
use crate::error::ModelError;
use crate::registry::{Arch, Loaded};
use crate::weights::{Tensor, Weights};

/// Registry entry.
pub const ARCH: Arch = Arch { name: "kimi-k3", load };

fn load(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let sizes = Sizes::read(w, &c)?;
    let embed = Embedding::new(w, &c);
    let head = Head::new(w, &c, &embed);
    Decoder::of_body(w, &c, embed, head, |states| Body::new(w, &c, &sizes, states)).boxed()
}

struct Sizes {
    delta: KdaShape,
    latent: MlaShape,
    decay: Decay,
    ffn: FfnPlan,
    /// Width of what experts see.
    expert_rows: usize,
    /// Layers of a block, 0 for none.
    block: usize,
}

impl Sizes {
    fn read(w: &Weights, c: &Config) -> Result<Self, ModelError> {
        let heads = c.first_heads();
        let number = |name: &str| config::float(w, name, 0.0).map(|v| v as f32);
        let glu = Glu::Situ { a: number("activation.situ_beta")?, b: number("activation.situ_linear_beta")? };
        let mut ffn = FfnPlan::read(w, c, by_keys(w, c, Gating::Sigmoid)?)?;
        (ffn.glu, ffn.dense_glu, ffn.shared) = (glu, glu, ffn.shared.max(ffn.expert));
        Ok(Sizes {
            delta: KdaShape::read(w, heads)?,
            latent: MlaShape::read(w, heads, c.rope.n_rot)?,
            decay: Decay::read(w)?,
            ffn,
            expert_rows: config::width_or(w, "expert_latent_length", c.width)?,
            block: config::optional(w, "attn_res.block_size", 0, config::MAX_LAYERS)?,
        })
    }

    fn mixer(&self, l: &Layer) -> Box<dyn Block> {
        let (m, width) = (&l.mixer, l.c.width);
        if l.c.kv_heads[l.i] == 0 {
            let (inner, forget) = (self.delta.inner(), low_rank(l, &self.delta, "ssm_f"));
            let gate = Chain(vec![Box::new(m.linear("ssm_g", width, inner))]);
            return Box::new(Kda::new(l, self.delta, forget, gate, self.decay));
        }
        let mut mla = Mla::new(l, self.latent);
        if m.has("attn_gate.weight") {
            let rows = self.latent.heads * self.latent.value_dim;
            mla.gate = Some(Gate::sigmoid(m.linear("attn_gate", width, rows)));
        }
        Box::new(mla)
    }

    fn ffn(&self, l: &Layer) -> Box<dyn Block> {
        let plan = &self.ffn;
        if l.i < plan.dense {
            return Box::new(Mlp::gated(&l.ffn, "", l.c.width, l.c.hidden[l.i], plan.dense_glu));
        }
        let moe = LatentMoe::new(l, "ffn_routed", self.expert_rows, plan.expert, plan.glu).by(l, plan.choice);
        match l.ffn.has("ffn_up_shexp.weight") {
            true => Box::new(Sum(moe, Shared::new(l, plan.shared, plan.dense_glu))),
            false => Box::new(moe),
        }
    }
}

/// One half of a layer.
struct Half {
    score: Option<Tensor>,
    norm: Norm,
    block: Box<dyn Block>,
}

struct Body {
    layers: Vec<[Half; 2]>,
    block: usize,
    last: Option<Tensor>,
    norm: NormSpec,
}

impl Body {
    fn new(w: &Weights, c: &Config, s: &Sizes, states: &States) -> Self {
        let mixed = s.block > 0;
        let layer = |i| {
            let l = Layer::new(w, c, i, states);
            let score = |name: &str| mixed.then(|| l.mixer.table(&format!("{name}.weight"), &[c.width]));
            let (mixer, ffn) = (s.mixer(&l), s.ffn(&l));
            [
                Half {
                    score: score("attn_res_score"),
                    norm: l.mixer.norm("attn_norm", c.width),
                    block: mixer,
                },
                Half { score: score("ffn_res_score"), norm: l.ffn.norm("ffn_norm", c.width), block: ffn },
            ]
        };
        let last = mixed.then(|| w.table("output_res_score.weight", &[c.width], Part::Head));
        Body { layers: (0..c.n_layers).map(layer).collect(), block: s.block, last, norm: c.norm }
    }

    /// The stored rows and `x`, mixed.
    fn mix(&self, g: &mut Graph, stored: &[Node], x: Node, score: &Option<Tensor>) -> Node {
        let Some(score) = score.as_ref().filter(|_| !stored.is_empty()) else { return x };
        let all = [stored, &[x]].concat();
        let weight = score.node(g);
        let scores: Vec<Node> = all
            .iter()
            .map(|row| {
                let n = self.norm.forward(g, *row);
                g.push(op::RowDot, &[n, weight])
            })
            .collect();
        let scores = joined(g, &scores);
        let weights = g.push(op::Softmax, &[scores]);
        let width = g.layout(x).shape.constant(0).unwrap_or(0);
        let rows = joined(g, &all);
        let rows = g.split_heads(rows, width);
        g.push(op::MoeSum, &[rows, weights])
    }
}

/// Rows end to end, however many there are.
fn joined(g: &mut Graph, rows: &[Node]) -> Node {
    match rows {
        [one] => *one,
        _ if rows.len() <= 8 => g.push(op::Concat, rows),
        _ => {
            let parts: Vec<Node> = rows.chunks(8).map(|part| joined(g, part)).collect();
            joined(g, &parts)
        }
    }
}

impl Block for Body {
    fn forward(&self, g: &mut Graph, mut x: Node, step: &StepNodes) -> Node {
        let mut stored = Vec::new();
        for (i, [mixer, ffn]) in self.layers.iter().enumerate() {
            g.scope(format!("blk.{i}"));
            let h = self.mix(g, &stored, x, &mixer.score);
            let h = mixer.norm.apply(g, h);
            let h = mixer.block.forward(g, h, step);
            x = match self.block > 0 && i % self.block == 0 {
                true => {
                    stored.push(x);
                    h
                }
                false => g.push(op::Add, &[h, x]),
            };
            let h = self.mix(g, &stored, x, &ffn.score);
            let h = ffn.norm.apply(g, h);
            let h = ffn.block.forward(g, h, step);
            x = g.push(op::Add, &[h, x]);
        }
        self.mix(g, &stored, x, &self.last)
    }
}
