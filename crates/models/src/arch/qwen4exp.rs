//! Qwen4 (experimental): Qwen3.5's layers over several residual streams, attention over chosen pools of tokens, and
//! n-gram rows on one layer.
//!
//! Half:   (h, gates) = mix(R);  R_s += f(h) 2 sigmoid(gates_s / streams)
//! Mix:    streams normed, each gated by a low-rank product of all of them, then averaged.
//! Mixer:  delta net with a sigmoid gate; or Qwen3.5's attention over the best pools of `compress_ratios` tokens.
//! Source: GGUF keys `qwen4exp.*`. Biases of attention play no part; the drafting head is left aside.

use firth_graph::{ActKind, Graph, Node, Part, RopePairs, op};

use super::qwen4exp_ngram::Ngrams;
use super::qwen35::{Ffn, Projections, gated_attention};
use crate::blocks::{
    Block, Decoder, DeltaNet, DeltaShape, Embedding, Head, IndexSizes, Joined, Layer, Linear, Norm, NormKind,
    Place, PoolAttention, Rope, SparseHalf, StreamHalf, StreamLayers, StreamPart, Streams, streams,
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
    Decoder::of_body(w, &c, embed, head, |states| {
        let root = Place::root(w, &c, Part::Head);
        StreamLayers {
            n: s.streams,
            layers: (0..c.n_layers).map(|i| s.layer(&Layer::new(w, &c, i, states))).collect(),
            end: Mix::new(&root, "output_hc", c.width, &s),
        }
    })
    .boxed()
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
            index: IndexSizes::read(w, 0)?,
            ratios: ratios.unwrap_or_else(|| vec![0; c.n_blocks]),
            ngrams: Ngrams::read(w, c, streams)?,
        })
    }

    fn layer(&self, l: &Layer) -> Vec<Box<dyn StreamPart>> {
        let half = |p: &Place, stem: &str, block| -> Box<dyn StreamPart> {
            let mix = Mix::new(p, stem, l.c.width, self);
            let all = l.c.width * self.streams;
            let streams = Injected { mix, gates: p.linear(&format!("{stem}_inject"), all, self.streams) };
            Box::new(StreamHalf { streams, norm: None, inner: SparseHalf::Plain(block) })
        };
        let halves = [half(&l.mixer, "hc_attn", self.mixer(l)), half(&l.ffn, "hc_ffn", self.ffn.block(l))];
        let ngrams = self.ngrams.as_ref().filter(|n| n.layer == l.i);
        ngrams.map(|n| n.of_layer(l)).into_iter().chain(halves).collect()
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

/// Streams made one: their norms, gated by a low-rank product of all of them, averaged.
struct Mix {
    streams: usize,
    norm: Norm,
    down: Linear,
    up: Linear,
}

impl Mix {
    fn new(p: &Place, stem: &str, width: usize, s: &Sizes) -> Self {
        let (name, all) = (|part: &str| format!("{stem}_{part}"), width * s.streams);
        Mix {
            streams: s.streams,
            norm: p.head_norm(&name("norm"), width, s.streams),
            down: p.linear(&name("down"), all, s.low_rank),
            up: p.linear(&name("up"), s.low_rank, all),
        }
    }

    /// `[width, streams, T]` to `[width, T]`, and the streams' norms `[width * streams, T]`.
    fn apply(&self, g: &mut Graph, r: Node) -> [Node; 2] {
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
        [g.push(op::Scale { by }, &[sum]), all]
    }
}

impl Joined for Mix {
    fn join(&self, g: &mut Graph, r: Node) -> Node {
        self.apply(g, r)[0]
    }
}

/// A half whose result each stream takes by a gate of its own.
struct Injected {
    mix: Mix,
    gates: Linear,
}

impl Streams for Injected {
    fn around(&self, g: &mut Graph, r: Node, inner: &mut dyn FnMut(&mut Graph, Node) -> Node) -> Node {
        let [h, all] = self.mix.apply(g, r);
        let z = self.gates.apply(g, all);
        let z = g.push(op::Scale { by: 1.0 / self.mix.streams as f32 }, &[z]);
        let z = g.push(op::Act { kind: ActKind::Sigmoid }, &[z]);
        let z = g.push(op::Scale { by: 2.0 }, &[z]);
        let gates = g.split_heads(z, 1);
        let h = inner(g, h);
        let h = streams::spread(g, h, self.mix.streams);
        let h = g.push(op::Mul, &[h, gates]);
        g.push(op::Add, &[h, r])
    }
}
