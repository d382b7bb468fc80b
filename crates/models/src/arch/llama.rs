//! Llama: dense decoder, and Mixtral's mixture of experts under the same name. Also carries Yi, Mistral to 3.x,
//! SmolLM 1 and 2, TinyLlama.
//!
//! Layer:  x += attention(norm(x));  x += mlp(norm(x)) or experts(norm(x))
//! Rope:   adjacent pairs over the whole head, frequency factors from `rope_freqs` or longrope's tables.
//! Source: Touvron et al. 2023; GGUF keys `llama.*`.

use firth_graph::{ActKind, Graph, Node, PageGroup, Part, RopePairs, RopeSpec, op};

use crate::blocks::{Attention, AttentionShape, Embedding, GatedMlp, Head, Linear, Moe, Qkv, RmsNorm};
use crate::config::{Config, RopeConfig};
use crate::registry::Arch;
use crate::{GroupInfo, Model, ModelError, ModelInfo, StepNodes, Weights};

/// Registry entry.
pub const ARCH: Arch = Arch { name: "llama", load: |w| Ok(Box::new(Llama::load(w)?)) };

struct Llama {
    info: ModelInfo,
    rope: RopeConfig,
    factors: Factors,
    embed: Embedding,
    layers: Vec<Layer>,
    head: Head,
}

struct Layer {
    attn_norm: RmsNorm,
    attn: Attention,
    ffn_norm: RmsNorm,
    ffn: Ffn,
}

enum Ffn {
    Dense(GatedMlp),
    Experts(Moe),
}

/// Divisors of rope's frequencies.
enum Factors {
    None,
    All(Vec<f32>),
    /// Chosen by the context size: long above the original context.
    LongRope {
        short: Vec<f32>,
        long: Vec<f32>,
    },
}

impl Factors {
    fn read(w: &Weights, rope: &RopeConfig) -> Factors {
        let pairs = rope.n_rot / 2;
        if rope.scaling == "longrope" {
            let read = |name: &str| w.values(&format!("rope_factors_{name}.weight"), pairs);
            if let (Some(short), Some(long)) = (read("short"), read("long")) {
                return Factors::LongRope { short, long };
            }
        }
        w.values("rope_freqs.weight", pairs).map_or(Factors::None, Factors::All)
    }

    fn of(&self, rope: &RopeConfig, ctx: usize) -> &[f32] {
        match self {
            Factors::None => &[],
            Factors::All(f) => f,
            Factors::LongRope { short, long } => {
                if ctx > rope.original_context {
                    long
                } else {
                    short
                }
            }
        }
    }
}

impl Llama {
    fn load(w: &Weights) -> Result<Self, ModelError> {
        let c = Config::read(w)?;
        let eps = Config::rms_eps(w)?;
        if c.rope.n_rot != c.key_dim || c.key_dim != c.value_dim {
            let expected = format!("the head size {} (value size {})", c.key_dim, c.value_dim);
            return Err(ModelError::value(w.key("rope.dimension_count"), c.rope.n_rot, expected));
        }
        let embed = Embedding::new(w, c.width, c.n_vocab, 1.0);
        let layers = (0..c.n_layers).map(|i| Layer::load(w, &c, eps, i)).collect();
        let head = Head::new(w, &embed, c.width, c.n_vocab, eps, 0.0);
        let info = ModelInfo {
            arch: ARCH.name,
            n_layers: c.n_layers,
            width: c.width,
            n_vocab: c.n_vocab,
            context: c.context,
            groups: vec![GroupInfo { window: None }],
        };
        Ok(Llama { info, factors: Factors::read(w, &c.rope), rope: c.rope, embed, layers, head })
    }
}

impl Layer {
    fn load(w: &Weights, c: &Config, eps: f32, i: usize) -> Layer {
        let (p, layer) = (format!("blk.{i}"), i as u32);
        let (mixer, ffn) = (Part::Mixer(layer), Part::Ffn(layer));
        let shape = AttentionShape::of_layer(c, i);
        let attn = Attention {
            shape,
            qkv: Qkv::new(w, &p, &shape, mixer),
            out: Linear::new(w, &format!("{p}.attn_output"), shape.heads * shape.value_dim, c.width, mixer),
            qk_norm: None,
            pairs: RopePairs::Adjacent,
            scale: 1.0 / (c.key_dim as f32).sqrt(),
            window: None,
            group: PageGroup(0),
            layer,
        };
        Layer {
            attn_norm: RmsNorm::new(w, &format!("{p}.attn_norm"), c.width, eps, mixer),
            attn,
            ffn_norm: RmsNorm::new(w, &format!("{p}.ffn_norm"), c.width, eps, ffn),
            ffn: match c.n_experts {
                0 => Ffn::Dense(GatedMlp::new(w, &p, c.width, c.hidden[i], ActKind::Silu, ffn)),
                _ => Ffn::Experts(Moe::new(w, &p, c, c.hidden[i], ActKind::Silu, layer)),
            },
        }
    }
}

impl Model for Llama {
    fn info(&self) -> ModelInfo {
        self.info.clone()
    }

    fn forward(&self, g: &mut Graph, step: &StepNodes) -> Node {
        let ctx = step.options.ctx;
        let rope: RopeSpec = self.rope.spec(ctx, self.factors.of(&self.rope, ctx));
        let mut x = self.embed.rows(g, step);
        for (i, l) in self.layers.iter().enumerate() {
            g.scope(format!("blk.{i}"));
            let h = l.attn_norm.forward(g, x);
            let h = l.attn.forward(g, h, step, rope.clone());
            x = g.push(op::Add, &[h, x]);
            let h = l.ffn_norm.forward(g, x);
            let h = match &l.ffn {
                Ffn::Dense(mlp) => mlp.forward(g, h),
                Ffn::Experts(moe) => moe.forward(g, h),
            };
            x = g.push(op::Add, &[h, x]);
        }
        x
    }

    fn head(&self, g: &mut Graph, hidden: Node) -> Node {
        self.head.forward(g, hidden)
    }
}
