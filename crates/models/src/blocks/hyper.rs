//! Manifold-constrained hyper-connections: residual streams mixed by doubly stochastic weights. Source: Xie et al. 2025,
//! arXiv 2512.24880.

use firth_graph::{ActKind, Graph, Node, Shape, WeightSource, op};
use firth_quant::Dtype;

use crate::blocks::{Joined, Layer, Linear, NormSpec, Place, Streams};
use crate::config::{self, Config};
use crate::error::ModelError;
use crate::weights::{Tensor, Weights};

/// The weights of one half of a layer.
pub struct Hyper {
    op: op::HyperWeights,
    norm: NormSpec,
    product: Linear,
    scale: Tensor,
    base: Tensor,
}

impl Hyper {
    /// Reads `hyper_connection.count`, `sinkhorn_iterations`, `epsilon`.
    pub fn read(w: &Weights) -> Result<op::HyperWeights, ModelError> {
        let size = |name: &str, min| config::extent(w, &format!("hyper_connection.{name}"), min, 1 << 10);
        Ok(op::HyperWeights {
            streams: size("count", 2)?,
            iterations: size("sinkhorn_iterations", 1)?,
            eps: config::float(w, "hyper_connection.epsilon", 0.0)? as f32,
        })
    }

    /// `{stem}_fn {streams * width, n}`, `{stem}_scale {3}`, `{stem}_base {n}`.
    pub fn new(p: &Place, l: &Layer, stem: &str, op: op::HyperWeights) -> Self {
        Hyper {
            op,
            norm: l.c.norm,
            product: p.linear(&format!("{stem}_fn"), l.c.width * op.streams, op.width()),
            scale: p.table(&format!("{stem}_scale.weight"), &[3]),
            base: p.table(&format!("{stem}_base.weight"), &[op.width()]),
        }
    }
}

impl Streams for Hyper {
    fn around(&self, g: &mut Graph, r: Node, inner: &mut dyn FnMut(&mut Graph, Node) -> Node) -> Node {
        let n = self.op.streams;
        let flat = g.merge_heads(r);
        let flat = self.norm.forward(g, flat);
        let m = self.product.apply(g, flat);
        let (scale, base) = (self.scale.node(g), self.base.node(g));
        let w = g.push(self.op, &[m, scale, base]);
        let (pre, post) = (g.slice(w, 0, n), g.slice(w, n, n));
        let comb = g.slice(w, 2 * n, n * n);
        let comb = g.split_heads(comb, n);
        let h = g.push(op::MoeSum, &[r, pre]);
        let h = inner(g, h);
        g.push(op::StreamMix, &[r, comb, h, post])
    }
}

/// Weights `sigmoid(scale m + base) + eps` of the streams, of one kind or of several, from one product `m`.
pub struct StreamGates {
    streams: usize,
    eps: f32,
    norm: NormSpec,
    product: Linear,
    scale: Tensor,
    base: Tensor,
}

impl StreamGates {
    /// `{stem}_fn {streams * width, streams * kinds}`, `{stem}_base`, `{stem}_scale {kinds}`.
    pub fn new(p: &Place, c: &Config, stem: &str, streams: usize, kinds: usize, eps: f32) -> Self {
        let n = streams * kinds;
        StreamGates {
            streams,
            eps,
            norm: c.norm,
            product: p.linear(&format!("{stem}_fn"), c.width * streams, n),
            scale: p.table(&format!("{stem}_scale.weight"), &[kinds]),
            base: p.table(&format!("{stem}_base.weight"), &[n]),
        }
    }

    /// The product of all streams `[width, S, T]` together.
    pub fn product(&self, g: &mut Graph, r: Node) -> Node {
        let flat = g.merge_heads(r);
        let flat = self.norm.forward(g, flat);
        self.product.apply(g, flat)
    }

    /// Weights `[S, T]` of kind `i`, times `by`.
    pub fn of_kind(&self, g: &mut Graph, product: Node, i: usize, by: f32) -> Node {
        let n = self.streams;
        let (scale, base) = (self.scale.node(g), self.base.node(g));
        let (m, scale) = (g.slice(product, i * n, n), g.slice(scale, i, 1));
        let m = g.push(op::Mul, &[m, scale]);
        let base = g.slice(base, i * n, n);
        let m = g.push(op::Add, &[m, base]);
        let mut gates = g.push(op::Act { kind: ActKind::Sigmoid }, &[m]);
        if by != 1.0 {
            gates = g.push(op::Scale { by }, &[gates]);
        }
        let name = format!("epsilon of streams {}", self.eps);
        let source = WeightSource::Values { name, values: vec![self.eps] };
        let eps = g.weight(source, Dtype::F32, Shape::fixed(&[1]), self.base.part);
        g.push(op::Add, &[gates, eps])
    }
}

impl Joined for StreamGates {
    /// The streams' sum by their first kind of weights.
    fn join(&self, g: &mut Graph, r: Node) -> Node {
        let m = self.product(g, r);
        let gates = self.of_kind(g, m, 0, 1.0);
        g.push(op::MoeSum, &[r, gates])
    }
}
