//! Gemma 3n: four residual streams by alternating updates, a low-rank residual beside attention, a row of each token for
//! every layer, feed-forwards of which few gates stay open, later layers that read the keys of earlier ones.
//!
//! Layer:  P = predict(X);  s = P_0;  n = norm(s);  b = (s + norm(attention(n)) + n + norm(laurel(n))) / sqrt(2)
//!         X = correct(P, b + norm(mlp(norm(b))));  X_1.. += norm(proj(gelu(gate(scale X_0)) * row))
//! Rope:   half-split pairs; windowed layers have a base of their own.
//! Source: transformers `modeling_gemma3n.py`; GGUF keys `gemma3n.*`. Norm weights are as they are, nothing is added.
//! The deviation of sparse gates divides by their number, as transformers has it; other readers of GGUF divide by one less.

use firth_graph::{ActKind, Graph, Node, Part, RopePairs, Shape, WeightSource, op};
use firth_quant::Dtype;

use crate::StepNodes;
use crate::blocks::{
    AltUp, AltUpEnds, Block, Decoder, Embedding, Head, Layer, LayerRow, LentKeys, Linear, Norm, NormKind,
    PerLayer, Place, Rope, States, lenders, root_mean_square, streams,
};
use crate::config::{self, Config};
use crate::registry::{Arch, Loaded};
use crate::weights::{Tensor, Weights};

/// Registry entry.
pub const ARCH: Arch = Arch { name: "gemma3n", load };

/// What files leave out: layers with keys of their own, the first layers whose gates are sparse, and how many deviations
/// above the mean a gate opens (95 % stay shut).
const OWN_KEYS: usize = 20;
const SPARSE: usize = 10;
const DEVIATIONS: f32 = 1.644_853_6;

fn load(w: &Weights) -> Loaded {
    let mut c = Config::read(w, NormKind::Rms)?;
    c.windows = config::windows(w, c.n_layers, None, 5)?;
    let full = Rope::new(&c, RopePairs::Half);
    let near = full.unscaled(config::positive(w, "rope.freq_base_swa", 10000.0)?);
    let key = w.key("attention.shared_kv_layers");
    let unsaid = c.n_layers.saturating_sub(OWN_KEYS);
    let sharing = config::optional(w, "attention.shared_kv_layers", unsaid, c.n_layers)?;
    let from = lenders(&c.windows, &c.kv_heads, c.n_layers - sharing, key)?;
    let n_streams = config::optional(w, "altup.num_inputs", 4, 8)?.max(2);
    let row = config::width_or(w, "embedding_length_per_layer_input", 256)?;
    let rank = w.axis("blk.0.laurel_l.weight", 1).unwrap_or(64);
    let deviations = match w.has_key("activation_sparsity_scale") {
        true => config::per_layer_f32(w, "activation_sparsity_scale", c.n_layers)?,
        false => (0..c.n_layers).map(|i| if i < SPARSE { DEVIATIONS } else { 0.0 }).collect(),
    };
    let mut embed = Embedding::new(w, &c);
    embed.scale = (c.width as f32).sqrt();
    let mut head = Head::new(w, &c, &embed);
    head.softcap = config::float(w, "final_logit_softcapping", 30.0)?.max(0.0) as f32;
    let rows = PerLayer::new(w, &c, row);
    let ends = AltUpEnds::new(&Place::root(w, &c, Part::Embedding), c.width, n_streams);
    let layer = |i: usize, states: &States| {
        let l = Layer::new(w, &c, i, states);
        let rope = if c.windows[i].is_some() { &near } else { &full };
        StreamLayer {
            streams: n_streams,
            altup: AltUp::new(&l, n_streams),
            before: l.mixer.norm("attn_norm", c.width),
            attention: LentKeys::new(&l, rope, from[i]),
            after: l.mixer.norm("post_attention_norm", c.width),
            laurel: [l.mixer.linear("laurel_l", c.width, rank), l.mixer.linear("laurel_r", rank, c.width)],
            laurel_norm: l.mixer.norm("laurel_post_norm", c.width),
            mlp: SparseMlp::new(&l, deviations[i]),
            row: LayerRow::new(&l, row),
            row_scale: l.ffn.table("altup_correct_scale.weight", &[c.width]),
        }
    };
    let body =
        |states: &States| Body { rows, ends, layers: (0..c.n_layers).map(|i| layer(i, states)).collect() };
    Decoder::of_body(w, &c, embed, head, body).boxed()
}

struct Body {
    rows: PerLayer,
    ends: AltUpEnds,
    layers: Vec<StreamLayer>,
}

impl Block for Body {
    fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let rows = self.rows.rows(g, x, step);
        let mut r = self.ends.start(g, x);
        let mut written = vec![None; self.layers.len()];
        for (i, layer) in self.layers.iter().enumerate() {
            g.scope(format!("blk.{i}"));
            r = layer.forward(g, r, step, rows, &mut written);
        }
        self.ends.end(g, r)
    }
}

struct StreamLayer {
    streams: usize,
    altup: AltUp,
    before: Norm,
    attention: LentKeys,
    after: Norm,
    laurel: [Linear; 2],
    laurel_norm: Norm,
    mlp: SparseMlp,
    row: LayerRow,
    row_scale: Tensor,
}

impl StreamLayer {
    fn forward(
        &self,
        g: &mut Graph,
        r: Node,
        step: &StepNodes,
        rows: Node,
        written: &mut [Option<Node>],
    ) -> Node {
        let predicted = self.altup.predict(g, r);
        let s = streams::one(g, predicted, 0);
        let n = self.before.apply(g, s);
        let low = self.laurel[0].apply(g, n);
        let low = self.laurel[1].apply(g, low);
        let low = self.laurel_norm.apply(g, low);
        let low = g.push(op::Add, &[n, low]);
        let a = self.attention.forward(g, n, step, written);
        let a = self.after.apply(g, a);
        let a = g.push(op::Add, &[a, s]);
        let b = g.push(op::Add, &[a, low]);
        let b = g.push(op::Scale { by: std::f32::consts::FRAC_1_SQRT_2 }, &[b]);
        let y = self.mlp.forward(g, b);
        let y = g.push(op::Add, &[y, b]);
        let r = self.altup.correct(g, predicted, y);
        let first = streams::one(g, r, 0);
        let scale = self.row_scale.node(g);
        let z = g.push(op::Mul, &[first, scale]);
        let z = self.row.apply(g, z, rows);
        let others = streams::behind(g, r, 1);
        let z = streams::spread(g, z, self.streams - 1);
        let others = g.push(op::Add, &[others, z]);
        streams::join(g, first, others)
    }
}

/// `norm(down(gelu(relu(gate - mean - k deviation)) * up))` of `norm(x)`; the gate as it is where `k` is 0.
struct SparseMlp {
    norms: [Norm; 2],
    gate: Linear,
    up: Linear,
    down: Linear,
    hidden: usize,
    deviations: f32,
}

impl SparseMlp {
    fn new(l: &Layer, deviations: f32) -> Self {
        let (width, hidden) = (l.c.width, l.c.hidden[l.i]);
        SparseMlp {
            norms: ["ffn_norm", "post_ffw_norm"].map(|name| l.ffn.norm(name, width)),
            gate: l.ffn.linear("ffn_gate", width, hidden),
            up: l.ffn.linear("ffn_up", width, hidden),
            down: l.ffn.linear("ffn_down", hidden, width),
            hidden,
            deviations,
        }
    }

    fn forward(&self, g: &mut Graph, x: Node) -> Node {
        let h = self.norms[0].apply(g, x);
        let (mut gate, up) = (self.gate.apply(g, h), self.up.apply(g, h));
        if self.deviations != 0.0 {
            gate = self.open(g, gate);
        }
        let h = g.push(op::GatedAct { kind: ActKind::GeluTanh }, &[gate, up]);
        let h = self.down.apply(g, h);
        self.norms[1].apply(g, h)
    }

    fn open(&self, g: &mut Graph, gate: Node) -> Node {
        let values = vec![-1.0 / self.hidden as f32; self.hidden];
        let source = WeightSource::Values { name: format!("minus the mean of {}", self.hidden), values };
        let shares = g.weight(source, Dtype::F32, Shape::fixed(&[self.hidden]), Part::Tables);
        let mean = g.push(op::RowDot, &[gate, shares]);
        let centred = g.push(op::Add, &[gate, mean]);
        let deviation = root_mean_square(g, centred);
        let cut = g.push(op::Scale { by: -self.deviations }, &[deviation]);
        let above = g.push(op::Add, &[centred, cut]);
        g.push(op::Act { kind: ActKind::Relu }, &[above])
    }
}
