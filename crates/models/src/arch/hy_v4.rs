//! Hunyuan 4: latent attention with sinks and an output gate, over keys that an indexer chooses on some layers; experts;
//! several residual streams with weights of their own.
//!
//! Half:   h = f(norm(sum_i pre_i X_i));  X_i += post_i h, with pre and post sigmoids of a product of all streams' norm
//! Rope:   adjacent pairs of the part that has positions, and of the indexer's last numbers.
//! Source: GGUF keys `hy_v4.*`.

use firth_graph::{Gating, Graph, Node, Part, RopePairs, op};

use crate::blocks::{
    Decoder, Embedding, FfnPlan, Gate, Glu, Head, IndexShape, Indexer, Layer, Mla, MlaShape, NormKind, Place,
    Rope, SparseHalf, SparseMla, StreamGates, StreamHalf, StreamLayers, StreamPart, Streams, Turned, by_keys,
    streams,
};
use crate::config::{self, Config};
use crate::error::ModelError;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "hy_v4", load };

fn load(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let s = Sizes::read(w, &c)?;
    let embed = Embedding::new(w, &c);
    let head = Head::new(w, &c, &embed);
    let root = Place::root(w, &c, Part::Head);
    Decoder::of_body(w, &c, embed, head, |states| StreamLayers {
        n: s.streams,
        layers: (0..c.n_layers).map(|i| s.layer(&Layer::new(w, &c, i, states))).collect(),
        end: StreamGates::new(&root, &c, "output_hc", s.streams, 1, s.eps),
    })
    .boxed()
}

struct Sizes {
    streams: usize,
    eps: f32,
    magnitude: f32,
    shape: MlaShape,
    rope: Rope,
    ffn: FfnPlan,
    limits: Vec<f32>,
    index: Option<IndexShape>,
    chooses: Vec<bool>,
}

impl Sizes {
    fn read(w: &Weights, c: &Config) -> Result<Self, ModelError> {
        let factor = |name: &str| config::float(w, &format!("hyper_connection.{name}"), 0.0);
        let shape = MlaShape::read(w, c.first_heads(), c.rope.n_rot)?;
        let sparse = config::optional(w, "attention.indexer.top_k", 0, 1 << 24)? > 0;
        let types = config::flags(w, "attention.indexer.types", c.n_blocks)?;
        let chooses = types.filter(|_| sparse).unwrap_or_else(|| vec![false; c.n_blocks]);
        Ok(Sizes {
            streams: config::extent(w, "hyper_connection.count", 2, 1 << 10)?,
            eps: factor("epsilon")? as f32,
            magnitude: factor("magnitude")? as f32,
            shape,
            rope: Rope::new(c, RopePairs::Adjacent),
            ffn: FfnPlan::read(w, c, by_keys(w, c, Gating::Sigmoid)?)?,
            limits: config::per_layer_f32(w, "swiglu_clamp_exp", c.n_blocks)?,
            index: sparse.then(|| IndexShape::read(w, shape.query_latent, c.norm.eps)).transpose()?,
            chooses: config::first_chooses(w, c, chooses, |_| sparse)?,
        })
    }

    fn layer(&self, l: &Layer) -> Vec<Box<dyn StreamPart>> {
        let (m, s, width) = (&l.mixer, &self.shape, l.c.width);
        let mut mla = Mla::new(l, *s).rope(&self.rope);
        mla.sinks = Some(m.table("attn_sinks.weight", &[s.heads]));
        mla.gate = Some(Gate::sigmoid(m.linear("attn_gate", width, s.heads * s.value_dim)));
        let mixer = match self.index {
            Some(shape) => {
                let turned = Turned::Last(self.rope.clone());
                SparseMla::new(mla, self.chooses[l.i].then(|| Indexer::new(l, shape, turned)))
            }
            None => SparseMla::dense(mla),
        };
        let ffn = FfnPlan { glu: Glu::silu(self.limits[l.i], Glu::Clipped), ..self.ffn }.block(l);
        let half = |p: &Place, part: &str, inner| {
            let gates = StreamGates::new(p, l.c, &format!("hc_{part}"), self.streams, 2, self.eps);
            let taken = Taken { gates, by: self.magnitude };
            StreamHalf::boxed(taken, p.norm(&format!("{part}_norm"), width), inner)
        };
        let mixer = SparseHalf::Mixer(Box::new(mixer));
        vec![half(m, "attn", mixer), half(&l.ffn, "ffn", SparseHalf::Plain(ffn))]
    }
}

/// A half that all streams take their part of.
struct Taken {
    gates: StreamGates,
    /// Factor of what they take.
    by: f32,
}

impl Streams for Taken {
    fn around(&self, g: &mut Graph, r: Node, inner: &mut dyn FnMut(&mut Graph, Node) -> Node) -> Node {
        let m = self.gates.product(g, r);
        let pre = self.gates.of_kind(g, m, 0, 1.0);
        let h = g.push(op::MoeSum, &[r, pre]);
        let h = inner(g, h);
        let post = self.gates.of_kind(g, m, 1, self.by);
        let post = g.split_heads(post, 1);
        let n = g.layout(r).shape.constant(1).unwrap_or(1);
        let h = streams::spread(g, h, n);
        let h = g.push(op::Mul, &[h, post]);
        g.push(op::Add, &[h, r])
    }
}
