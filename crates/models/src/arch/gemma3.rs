//! Gemma 3: dense decoder with norms before and after each half, GeGLU, and windows on five layers of six.
//!
//! Layer:  x += norm(attention(norm(x)));  x += norm(mlp(norm(x)))
//! Rope:   half-split pairs; windowed layers have a base of their own and no scaling.
//! Source: transformers `modeling_gemma3.py`; GGUF keys `gemma3.*`. The converter has added 1 to norm weights.

use firth_gguf::Value;
use firth_graph::{ActKind, Graph, Node, PageGroup, Part, RopePairs, op};

use crate::blocks::{Attention, AttentionShape, Embedding, GatedMlp, Head, Linear, Qkv, RmsNorm};
use crate::config::{self, Config, RopeConfig};
use crate::registry::Arch;
use crate::{GroupInfo, Model, ModelError, ModelInfo, StepNodes, Weights};

/// Registry entry.
pub const ARCH: Arch = Arch { name: "gemma3", load: |w| Ok(Box::new(Gemma3::load(w)?)) };

/// The page group of layers that see everything, and of those with a window.
const FULL: PageGroup = PageGroup(0);
const WINDOWED: PageGroup = PageGroup(1);

struct Gemma3 {
    info: ModelInfo,
    rope: RopeConfig,
    window_base: f64,
    embed: Embedding,
    layers: Vec<Layer>,
    head: Head,
}

struct Layer {
    attn_norm: RmsNorm,
    attn: Attention,
    attn_post: RmsNorm,
    ffn_norm: RmsNorm,
    mlp: GatedMlp,
    ffn_post: RmsNorm,
}

impl Gemma3 {
    fn load(w: &Weights) -> Result<Self, ModelError> {
        let c = Config::read(w)?;
        let eps = Config::rms_eps(w)?;
        let windows = windows(w, c.n_layers)?;
        let window_base = config::positive(w, "rope.freq_base_swa", 10000.0)?;
        let softcap = config::float(w, "final_logit_softcapping", 0.0)?.max(0.0) as f32;
        let embed = Embedding::new(w, c.width, c.n_vocab, (c.width as f32).sqrt());
        let layers = (0..c.n_layers).map(|i| Layer::load(w, &c, eps, i, windows[i])).collect();
        let head = Head::new(w, &embed, c.width, c.n_vocab, eps, softcap);
        let window = windows.iter().find_map(|w| *w);
        let mut groups = vec![GroupInfo { window: None }];
        groups.extend(window.map(|w| GroupInfo { window: Some(w) }));
        let info = ModelInfo {
            arch: ARCH.name,
            n_layers: c.n_layers,
            width: c.width,
            n_vocab: c.n_vocab,
            context: c.context,
            groups,
        };
        Ok(Gemma3 { info, rope: c.rope, window_base, embed, layers, head })
    }
}

/// The window of each layer: an array says which layers have one, a number says that every n-th has none.
fn windows(w: &Weights, n_layers: usize) -> Result<Vec<Option<usize>>, ModelError> {
    let window = config::optional(w, "attention.sliding_window", 0, u32::MAX as usize)?;
    if window == 0 {
        return Ok(vec![None; n_layers]);
    }
    let key = w.key("attention.sliding_window_pattern");
    let windowed: Vec<bool> = match w.metadata().get(&key) {
        Some(Value::Array(_)) => {
            let flags = w.metadata().i32s(&key)?.unwrap_or_default();
            (0..n_layers).map(|i| flags.get(i).is_some_and(|f| *f != 0)).collect()
        }
        _ => {
            let period = config::optional(w, "attention.sliding_window_pattern", 6, u32::MAX as usize)?;
            (0..n_layers).map(|i| period == 0 || i % period < period - 1).collect()
        }
    };
    Ok(windowed.into_iter().map(|on| on.then_some(window)).collect())
}

impl Layer {
    fn load(w: &Weights, c: &Config, eps: f32, i: usize, window: Option<usize>) -> Layer {
        let (p, layer) = (format!("blk.{i}"), i as u32);
        let (mixer, ffn) = (Part::Mixer(layer), Part::Ffn(layer));
        let shape = AttentionShape::of_layer(c, i);
        let norm = |name: &str, n, part| RmsNorm::new(w, &format!("{p}.{name}"), n, eps, part);
        // The 27B model scales by the width per head instead of the head's size.
        let scale_of = if c.n_layers == 62 { c.width / c.heads[i] } else { c.key_dim };
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
                scale: 1.0 / (scale_of as f32).sqrt(),
                window,
                group: if window.is_some() { WINDOWED } else { FULL },
                layer,
            },
            attn_post: norm("post_attention_norm", c.width, mixer),
            ffn_norm: norm("ffn_norm", c.width, ffn),
            mlp: GatedMlp::new(w, &p, c.width, c.hidden[i], ActKind::GeluTanh, ffn),
            ffn_post: norm("post_ffw_norm", c.width, ffn),
        }
    }
}

impl Model for Gemma3 {
    fn info(&self) -> ModelInfo {
        self.info.clone()
    }

    fn forward(&self, g: &mut Graph, step: &StepNodes) -> Node {
        let full = self.rope.spec(step.options.ctx, &[]);
        let windowed = self.rope.plain(self.window_base, step.options.ctx);
        let mut x = self.embed.rows(g, step);
        for (i, l) in self.layers.iter().enumerate() {
            g.scope(format!("blk.{i}"));
            let rope = if l.attn.window.is_some() { &windowed } else { &full };
            let h = l.attn_norm.forward(g, x);
            let h = l.attn.forward(g, h, step, rope.clone());
            let h = l.attn_post.forward(g, h);
            x = g.push(op::Add, &[h, x]);
            let h = l.ffn_norm.forward(g, x);
            let h = l.mlp.forward(g, h);
            let h = l.ffn_post.forward(g, h);
            x = g.push(op::Add, &[h, x]);
        }
        x
    }

    fn head(&self, g: &mut Graph, hidden: Node) -> Node {
        self.head.forward(g, hidden)
    }
}
