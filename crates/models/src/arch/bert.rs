//! BERT and its relatives, whose rows are embeddings: BERT (with it RoBERTa and XLM-R), Jina BERT 2 and 3, Nomic BERT without
//! and with experts. Every token sees its whole sequence.
//!
//! Rows:   norm(embedding + type 0 + position), positions in BERT alone
//! Layer:  x = norm(x + attention(x));  x = norm(x + mlp(x)); in Jina BERT 2 the file may have x = norm(x0 + x) between
//! Rope:   half-split pairs in Jina BERT 3 and Nomic BERT; ALiBi in Jina BERT 2.
//! Source: transformers `modeling_bert.py`, `modeling_nomic_bert.py`, `modeling_jina_embeddings_v3.py`; jinaai
//! `jina-bert-implementation`; nomic-ai `nomic-bert-2048`; GGUF keys by name. GELU is the exact one, as in these sources;
//! llama.cpp has the approximation by tanh. Every token is of type 0.

use firth_graph::{ActKind, Part, RopePairs, WeightSource, op};

use crate::blocks::{
    Block, Chain, Decoder, Embedding, Head, Layer, Mlp, Moe, Norm, NormKind, QkNorm, Residual, Rope, softmax,
};
use crate::config::{self, Config};
use crate::error::ModelError;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// BERT.
pub const BERT: Arch = Arch { name: "bert", load: bert };
/// Jina BERT 2.
pub const JINA2: Arch = Arch { name: "jina-bert-v2", load: jina2 };
/// Jina BERT 3.
pub const JINA3: Arch = Arch { name: "jina-bert-v3", load: jina3 };
/// Nomic BERT.
pub const NOMIC: Arch = Arch { name: "nomic-bert", load: nomic };
/// Nomic BERT with experts.
pub const NOMIC_EXPERTS: Arch = Arch { name: "nomic-bert-moe", load: nomic_experts };

/// The largest bias by distance of Jina BERT 2.
const BIAS: f32 = 8.0;

/// Rows of tokens with what every row has added, and their norm.
fn rows(w: &Weights, c: &Config) -> Result<Embedding, ModelError> {
    let norm = Norm::new(w, "token_embd_norm", &[c.width], c.norm, Part::Embedding);
    let types = "token_types.weight";
    let n = w.axis(types, 1).unwrap_or(0);
    let first = w.values(types, c.width * n).and_then(|v| v.get(..c.width).map(<[f32]>::to_vec));
    let shared = first.map(|values| WeightSource::Values { name: format!("{types}, row 0"), values });
    Ok(Embedding { shared, norm: Some(norm), ..Embedding::new(w, c) })
}

/// The layers that `layer` makes, behind `embed`.
fn encoder(w: &Weights, c: &Config, embed: Embedding, layer: impl FnMut(&Layer) -> Chain) -> Loaded {
    let head = Head::bare(w, c, &embed);
    Decoder::with(w, c, embed, head, layer).encoder()
}

/// `norm(x + mixer(x))`, then the same of `ffn`.
fn layer(l: &Layer, mixer: impl Block + 'static, ffn: impl Block + 'static) -> Chain {
    let width = l.c.width;
    let mut all: Vec<Box<dyn Block>> =
        vec![Box::new(Residual::plain(mixer)), Box::new(l.mixer.norm("attn_output_norm", width))];
    if l.mixer.has("attn_norm_2.weight") {
        let again = Residual::plain(Chain(all));
        all = vec![Box::new(again), Box::new(l.mixer.norm("attn_norm_2", width))];
    }
    all.push(Box::new(Residual::plain(ffn)));
    all.push(Box::new(l.ffn.norm("layer_output_norm", width)));
    Chain(all)
}

fn gelu(l: &Layer) -> Mlp {
    Mlp::plain(&l.ffn, "", l.c.width, l.c.hidden[l.i], ActKind::GeluErf)
}

fn bert(w: &Weights) -> Loaded {
    let c = Config::read_encoder(w, NormKind::Layer)?;
    let mut embed = rows(w, &c)?;
    embed.positions = Some(w.table("position_embd.weight", &[c.width, c.context], Part::Embedding));
    encoder(w, &c, embed, |l| layer(l, l.attention(), gelu(l)))
}

fn jina3(w: &Weights) -> Loaded {
    let c = Config::read_encoder(w, NormKind::Layer)?;
    let rope = Rope::new(&c, RopePairs::Half);
    encoder(w, &c, rows(w, &c)?, |l| layer(l, l.attention().rope(&rope), gelu(l)))
}

/// Queries and keys may be normed whole; the feed-forward may have a gate, apart or in the first rows of `ffn_up`.
fn jina2(w: &Weights) -> Loaded {
    let c = Config::read_encoder(w, NormKind::Layer)?;
    encoder(w, &c, rows(w, &c)?, |l| {
        let mut attention = l.attention();
        attention.scores = op::Attend { alibi: BIAS, ..attention.scores };
        if l.mixer.has("attn_q_norm.weight") {
            attention = attention.qk_norm(QkNorm::Row(QkNorm::rows(l)));
        }
        let (width, hidden) = (c.width, c.hidden[l.i]);
        let is_merged = w.axis(&l.ffn.name("ffn_up.weight"), 1) == Some(2 * hidden);
        let mlp = match () {
            () if l.ffn.has("ffn_gate.weight") => l.gated_mlp(ActKind::GeluErf),
            () if is_merged => Mlp::merged(&l.ffn, "", width, hidden, ActKind::GeluErf),
            () => gelu(l),
        };
        layer(l, attention, mlp)
    })
}

/// The biases of the feed-forward play no part.
fn nomic(w: &Weights) -> Loaded {
    let c = Config::read_encoder(w, NormKind::Layer)?;
    let rope = Rope::new(&c, RopePairs::Half);
    encoder(w, &c, rows(w, &c)?, |l| {
        layer(l, l.attention().rope(&rope), l.gated_mlp(ActKind::Silu).unbiased())
    })
}

/// Every `moe_every_n_layers`-th layer, from the second on, has experts, weighted as softmax over all gives it.
fn nomic_experts(w: &Weights) -> Loaded {
    let c = Config::read_encoder(w, NormKind::Layer)?;
    let rope = Rope::new(&c, RopePairs::Half);
    let period = config::optional(w, "moe_every_n_layers", 0, config::MAX_LAYERS)?;
    encoder(w, &c, rows(w, &c)?, |l| {
        let mlp: Box<dyn Block> = match period > 0 && l.i % period == 1 {
            true => Box::new(Moe::new(l, c.hidden[l.i], ActKind::GeluErf, softmax(&c, false))),
            false => Box::new(gelu(l)),
        };
        layer(l, l.attention().rope(&rope), mlp)
    })
}
