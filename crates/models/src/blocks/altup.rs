//! Alternating updates: several residual streams of which one is computed and the others are predicted and corrected.
//! Source: Baykal et al. 2023, "Alternating Updates for Efficient Transformers".

use firth_graph::{ActKind, Extent, Graph, Node, Part, Shape, WeightSource, op};
use firth_quant::Dtype;

use crate::blocks::{Layer, Linear, Norm, NormSpec, Place, one_for_all, streams};
use crate::weights::Tensor;

/// Keeps the length of a row of zeros finite; no other row notices.
const TINY: NormSpec = NormSpec { kind: super::NormKind::Rms, eps: 1e-12 };

/// Prediction and correction of one layer, on streams `[n, streams, T]` of which the first is computed.
pub struct AltUp {
    streams: usize,
    width: usize,
    router: Linear,
    router_norm: Norm,
    predict: Linear,
    correct: Linear,
}

impl AltUp {
    /// `altup_router {n, streams}`, `altup_router_norm {n}`, `altup_predict_coef {streams, streams^2}`,
    /// `altup_correct_coef {streams, streams}`.
    pub fn new(l: &Layer, streams: usize) -> Self {
        let linear = |name: &str, n_in, n_out| l.mixer.linear(name, n_in, n_out);
        AltUp {
            streams,
            width: l.c.width,
            router: linear("altup_router", l.c.width, streams),
            router_norm: l.mixer.norm("altup_router_norm", l.c.width),
            predict: linear("altup_predict_coef", streams, streams * streams),
            correct: linear("altup_correct_coef", streams, streams),
        }
    }

    fn modalities(&self, g: &mut Graph, x: Node) -> Node {
        let h = self.router_norm.apply(g, x);
        let h = g.push(op::Scale { by: 1.0 / self.width as f32 }, &[h]);
        let h = self.router.apply(g, h);
        g.push(op::Act { kind: ActKind::Tanh }, &[h])
    }

    /// What the streams `r` become before the layer: each itself and a sum of all.
    pub fn predict(&self, g: &mut Graph, r: Node) -> Node {
        let (n, first) = (self.streams, streams::one(g, r, 0));
        let m = self.modalities(g, first);
        let c = self.predict.apply(g, m);
        let sums: Vec<Node> = (0..n)
            .map(|j| {
                let weights = g.slice(c, j * n, n);
                g.push(op::MoeSum, &[r, weights])
            })
            .collect();
        let sums = g.push(op::Concat, &sums);
        let sums = g.split_heads(sums, self.width);
        g.push(op::Add, &[sums, r])
    }

    /// What the predicted streams become, where the layer made `y: [n, T]` of the first.
    pub fn correct(&self, g: &mut Graph, predicted: Node, y: Node) -> Node {
        let m = self.modalities(g, y);
        let c = self.correct.apply(g, m);
        let c = plus_one(g, c);
        let first = streams::one(g, predicted, 0);
        let first = g.push(op::Scale { by: -1.0 }, &[first]);
        let news = g.push(op::Add, &[y, first]);
        let news = streams::copies(g, news, self.streams);
        let c = streams::by_stream(g, c);
        let news = g.push(op::Mul, &[news, c]);
        g.push(op::Add, &[news, predicted])
    }
}

/// The other streams at the start, and all made one at the end, each as long as the first.
pub struct AltUpEnds {
    streams: usize,
    spread: Tensor,
    gather: Tensor,
}

impl AltUpEnds {
    /// `altup_proj`, `altup_unembd_proj {n, n, streams - 1}`.
    pub fn new(p: &Place, width: usize, streams: usize) -> Self {
        let [spread, gather] =
            ["altup_proj", "altup_unembd_proj"].map(|name| p.matrix(name, &[width, width, streams - 1]));
        AltUpEnds { streams, spread, gather }
    }

    /// `x: [n, T]` to `[n, streams, T]`.
    pub fn start(&self, g: &mut Graph, x: Node) -> Node {
        let rows = one_for_all(g, x);
        let others = self.of_length(g, &self.spread, rows, x);
        streams::join(g, x, others)
    }

    /// `r: [n, streams, T]` to the streams' mean `[n, T]`.
    pub fn end(&self, g: &mut Graph, r: Node) -> Node {
        let first = streams::one(g, r, 0);
        let others = streams::behind(g, r, 1);
        let others = self.of_length(g, &self.gather, others, first);
        let all = streams::join(g, first, others);
        let sum = streams::total(g, all);
        g.push(op::Scale { by: 1.0 / self.streams as f32 }, &[sum])
    }

    /// Products of `x: [n, 1 or streams - 1, T]`, each as long as `like: [n, T]`.
    fn of_length(&self, g: &mut Graph, w: &Tensor, x: Node, like: Node) -> Node {
        let w = w.node(g);
        let y = g.push(op::MatMulExperts, &[w, x]);
        let y = TINY.forward(g, y);
        let length = root_mean_square(g, like);
        let length = one_for_all(g, length);
        g.push(op::Mul, &[y, length])
    }
}

/// The root of the mean of squares, `[n, T]` to `[1, T]`.
pub fn root_mean_square(g: &mut Graph, x: Node) -> Node {
    /// The root's op takes no number below 1e-6, and means of squares may be smaller.
    const UP: f32 = (1u64 << 40) as f32;
    let n = g.layout(x).shape.constant(0).unwrap_or(1);
    let squares = g.push(op::RowDot, &[x, x]);
    let mean = g.push(op::Scale { by: UP / n as f32 }, &[squares]);
    let root = g.push(op::Act { kind: ActKind::SignedRoot }, &[mean]);
    g.push(op::Scale { by: 1.0 / UP.sqrt() }, &[root])
}

/// `x + 1`.
fn plus_one(g: &mut Graph, x: Node) -> Node {
    let source = WeightSource::Values { name: "one".into(), values: vec![1.0] };
    let one = g.weight(source, Dtype::F32, Shape::new([Extent::Const(1)]), Part::Tables);
    g.push(op::Add, &[x, one])
}
