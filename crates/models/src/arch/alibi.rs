//! Decoders whose scores fall with distance (ALiBi) instead of turning by position: BLOOM, MPT, Jais, Refact, Baichuan
//! (whose 7B has rope).
//!
//! Layer:  x += attention(norm(x));  x += mlp(norm(x))
//! Source: Press et al. 2021, arXiv 2108.12409; transformers `modeling_bloom.py`, `modeling_mpt.py`; core42
//! `modeling_jais.py`; smallcloudai `modeling_gpt_refact.py`; baichuan-inc `modeling_baichuan.py`; GGUF keys by name.
//! Biases count where the file has them, but for Refact.

use firth_graph::{ActKind, Graph, Node, Part, RopePairs, Shape, WeightSource, op};
use firth_quant::Dtype;

use crate::StepNodes;
use crate::blocks::{
    Attention, Block, Decoder, Embedding, Head, Layer, Linear, Mlp, Norm, NormKind, QkNorm, Rope,
};
use crate::config::{self, Config};
use crate::error::ModelError;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

use super::dbrx::clamp;

/// BLOOM.
pub const BLOOM: Arch = Arch { name: "bloom", load: bloom };
/// MPT.
pub const MPT: Arch = Arch { name: "mpt", load: mpt };
/// Jais.
pub const JAIS: Arch = Arch { name: "jais", load: jais };
/// Refact.
pub const REFACT: Arch = Arch { name: "refact", load: refact };
/// Baichuan 1 and 2.
pub const BAICHUAN: Arch = Arch { name: "baichuan", load: baichuan };

/// The bias of models that do not say theirs.
const BIAS: f32 = 8.0;

fn biased(l: &Layer, alibi: f32) -> Attention {
    let attention = l.attention();
    Attention { scores: op::Attend { alibi, ..attention.scores }, ..attention }
}

/// `attention.max_alibi_bias`.
fn bias(w: &Weights) -> Result<f32, ModelError> {
    Ok(config::float(w, "attention.max_alibi_bias", 0.0)?.max(0.0) as f32)
}

fn gelu(l: &Layer) -> Mlp {
    Mlp::plain(&l.ffn, "", l.c.width, l.c.hidden[l.i], ActKind::GeluTanh)
}

/// Embedding rows are normed.
fn bloom(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Layer)?;
    let norm = Norm::new(w, "token_embd_norm", &[c.width], c.norm, Part::Embedding);
    let embed = Embedding { norm: Some(norm), ..Embedding::new(w, &c) };
    let head = Head::new(w, &c, &embed);
    Decoder::with(w, &c, embed, head, |l| l.pre_norm(biased(l, BIAS), gelu(l))).boxed()
}

/// Positions may be learned; queries and keys may be clamped, and normed where both have norms.
fn mpt(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Layer)?;
    let (clamp, alibi) = (clamp(w)?, bias(w)?);
    let mut embed = Embedding::new(w, &c);
    if w.has("position_embd.weight") {
        embed.positions = Some(w.table("position_embd.weight", &[c.width, c.context], Part::Embedding));
    }
    let head = Head::new(w, &c, &embed);
    Decoder::with(w, &c, embed, head, |l| {
        let mut attention = Attention { clamp, ..biased(l, alibi) };
        if l.mixer.has("attn_q_norm.weight") {
            attention = attention.qk_norm(QkNorm::Row(QkNorm::rows(l)));
        }
        let mlp: Box<dyn Block> = match l.ffn.has("ffn.act.scales") {
            true => Box::new(Divided::new(l)),
            false => Box::new(gelu(l)),
        };
        l.pre_norm(attention, mlp)
    })
    .boxed()
}

/// `down(gelu(up(x)) / scales)`, of checkpoints whose activations were balanced for quantisation.
struct Divided {
    up: Linear,
    /// One over the scales.
    by: WeightSource,
    part: Part,
    down: Linear,
}

impl Divided {
    fn new(l: &Layer) -> Self {
        let (width, hidden) = (l.c.width, l.c.hidden[l.i]);
        let name = l.ffn.name("ffn.act.scales");
        let scales = l.w.values(&name, hidden).unwrap_or_default();
        let values = scales.iter().map(|s| 1.0 / s).collect();
        Divided {
            up: l.ffn.linear("ffn_up", width, hidden),
            by: WeightSource::Values { name: format!("1 / {name}"), values },
            part: l.ffn.part,
            down: l.ffn.linear("ffn_down", hidden, width),
        }
    }
}

impl Block for Divided {
    fn forward(&self, g: &mut Graph, x: Node, _: &StepNodes) -> Node {
        let h = self.up.apply(g, x);
        let h = g.push(op::Act { kind: ActKind::GeluTanh }, &[h]);
        let n = g.layout(h).shape.constant(0).unwrap_or(0);
        let by = g.weight(self.by.clone(), Dtype::F32, Shape::fixed(&[n]), self.part);
        let h = g.push(op::Mul, &[h, by]);
        self.down.apply(g, h)
    }
}

/// Scores are divided by the head's size, not its root.
fn jais(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Layer)?;
    let alibi = bias(w)?;
    Decoder::new(w, &c, |l| {
        let mut attention = biased(l, alibi);
        attention.scores.scale = 1.0 / c.key_dim as f32;
        l.pre_norm(attention, l.gated_mlp(ActKind::Silu))
    })
    .boxed()
}

/// The biases of the output projection and of the feed-forward play no part, nor do factors of rope.
fn refact(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    if c.n_experts > 0 {
        return Err(ModelError::value(w.key("expert_count"), c.n_experts, "0: no such model has experts"));
    }
    Decoder::new(w, &c, |l| {
        let attention = biased(l, BIAS);
        let attention = Attention { out: attention.out.unbiased(), ..attention };
        l.pre_norm(attention, l.gated_mlp(ActKind::Silu).unbiased())
    })
    .boxed()
}

/// 32 layers (7B) have rope, 40 (13B) the bias, any other number neither.
fn baichuan(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let rope = Rope::new(&c, RopePairs::Adjacent);
    let alibi = if c.n_layers == 40 { BIAS } else { 0.0 };
    Decoder::new(w, &c, |l| {
        let attention = Attention { rope: (c.n_layers == 32).then(|| rope.clone()), ..biased(l, alibi) };
        l.pre_norm(attention, l.gated_mlp(ActKind::Silu))
    })
    .boxed()
}
