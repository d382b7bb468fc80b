//! Qwen3: dense decoder with RMS norm on each head's query and key.
//!
//! Layer:  x += attention(norm(x));  x += mlp(norm(x))
//! Rope:   half-split pairs over the whole head.
//! Source: transformers `modeling_qwen3.py`; GGUF keys `qwen3.*`.

use firth_graph::{ActKind, Graph, Node, PageGroup, Part, RopePairs, op};

use crate::blocks::{Attention, AttentionShape, Embedding, GatedMlp, Head, Linear, Qkv, RmsNorm};
use crate::config::{Config, RopeConfig};
use crate::registry::Arch;
use crate::{GroupInfo, Model, ModelError, ModelInfo, StepNodes, Weights};

/// Registry entry.
pub const ARCH: Arch = Arch { name: "qwen3", load: |w| Ok(Box::new(Qwen3::load(w)?)) };

struct Qwen3 {
    info: ModelInfo,
    rope: RopeConfig,
    embed: Embedding,
    layers: Vec<Layer>,
    head: Head,
}

struct Layer {
    attn_norm: RmsNorm,
    attn: Attention,
    ffn_norm: RmsNorm,
    mlp: GatedMlp,
}

impl Qwen3 {
    fn load(w: &Weights) -> Result<Self, ModelError> {
        let c = Config::read(w)?;
        let eps = Config::rms_eps(w)?;
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
        Ok(Qwen3 { info, rope: c.rope, embed, layers, head })
    }
}

impl Layer {
    fn load(w: &Weights, c: &Config, eps: f32, i: usize) -> Layer {
        let (p, layer) = (format!("blk.{i}"), i as u32);
        let (mixer, ffn) = (Part::Mixer(layer), Part::Ffn(layer));
        let shape = AttentionShape::of_layer(c, i);
        let norm = |name: &str, n, part| RmsNorm::new(w, &format!("{p}.{name}"), n, eps, part);
        Layer {
            attn_norm: norm("attn_norm", c.width, mixer),
            attn: Attention {
                shape,
                qkv: Qkv::new(w, &p, &shape, mixer),
                out: Linear::new(
                    w,
                    &format!("{p}.attn_output"),
                    shape.heads * shape.value_dim,
                    c.width,
                    mixer,
                ),
                qk_norm: Some([norm("attn_q_norm", c.key_dim, mixer), norm("attn_k_norm", c.key_dim, mixer)]),
                pairs: RopePairs::Half,
                scale: 1.0 / (c.key_dim as f32).sqrt(),
                window: None,
                group: PageGroup(0),
                layer,
            },
            ffn_norm: norm("ffn_norm", c.width, ffn),
            mlp: GatedMlp::new(w, &p, c.width, c.hidden[i], ActKind::Silu, ffn),
        }
    }
}

impl Model for Qwen3 {
    fn info(&self) -> ModelInfo {
        self.info.clone()
    }

    fn forward(&self, g: &mut Graph, step: &StepNodes) -> Node {
        let rope = self.rope.spec(step.options.ctx, &[]);
        let mut x = self.embed.rows(g, step);
        for (i, l) in self.layers.iter().enumerate() {
            g.scope(format!("blk.{i}"));
            let h = l.attn_norm.forward(g, x);
            let h = l.attn.forward(g, h, step, rope.clone());
            x = g.push(op::Add, &[h, x]);
            let h = l.ffn_norm.forward(g, x);
            let h = l.mlp.forward(g, h);
            x = g.push(op::Add, &[h, x]);
        }
        x
    }

    fn head(&self, g: &mut Graph, hidden: Node) -> Node {
        self.head.forward(g, hidden)
    }
}
