//! Layers over several residual streams.

use firth_graph::{Graph, Node, op};

use crate::StepNodes;
use crate::blocks::{Norm, SparseHalf, streams};

/// How a half of a layer meets the streams `[width, S, T]`.
pub trait Streams: Send + Sync {
    /// The streams after `inner`, which is shown one row a token `[width, T]` and gives another.
    fn around(&self, g: &mut Graph, r: Node, inner: &mut dyn FnMut(&mut Graph, Node) -> Node) -> Node;
}

/// What changes the streams.
pub trait StreamPart: Send + Sync {
    /// `[width, S, T]` to the same; `chosen` are the pools of the last layer that chose.
    fn apply(&self, g: &mut Graph, r: Node, chosen: &mut Option<Node>, step: &StepNodes) -> Node;
}

/// A half of a layer.
pub struct StreamHalf<S> {
    /// How it meets the streams.
    pub streams: S,
    /// The norm of what it sees.
    pub norm: Option<Norm>,
    /// What it does.
    pub inner: SparseHalf,
}

impl<S: Streams + 'static> StreamHalf<S> {
    /// With a norm.
    pub fn boxed(streams: S, norm: Norm, inner: SparseHalf) -> Box<dyn StreamPart> {
        Box::new(StreamHalf { streams, norm: Some(norm), inner })
    }
}

impl<S: Streams> StreamPart for StreamHalf<S> {
    fn apply(&self, g: &mut Graph, r: Node, chosen: &mut Option<Node>, step: &StepNodes) -> Node {
        self.streams.around(g, r, &mut |g, h| {
            let h = self.norm.as_ref().map_or(h, |n| n.apply(g, h));
            self.inner.apply(g, h, chosen, step)
        })
    }
}

/// The streams' mean.
pub struct Mean;

/// How streams become one row.
pub trait Joined: Send + Sync {
    /// `[width, S, T]` to `[width, T]`.
    fn join(&self, g: &mut Graph, r: Node) -> Node;
}

impl Joined for Mean {
    fn join(&self, g: &mut Graph, r: Node) -> Node {
        let n = g.layout(r).shape.constant(1).unwrap_or(1);
        let sum = streams::total(g, r);
        g.push(op::Scale { by: 1.0 / n as f32 }, &[sum])
    }
}

/// Layers between streams that begin as copies of the embedding and what joins them.
pub struct StreamLayers<J> {
    /// Streams.
    pub n: usize,
    /// The parts of each layer.
    pub layers: Vec<Vec<Box<dyn StreamPart>>>,
    /// The end.
    pub end: J,
}

impl<J: Joined> crate::blocks::Block for StreamLayers<J> {
    fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let mut r = streams::copies(g, x, self.n);
        let mut chosen = None;
        for (i, parts) in self.layers.iter().enumerate() {
            g.scope(format!("blk.{i}"));
            for part in parts {
                r = part.apply(g, r, &mut chosen, step);
            }
        }
        self.end.join(g, r)
    }
}
