//! How blocks are put together.

use firth_graph::{Graph, Node, op};

use crate::StepNodes;
use crate::blocks::Norm;

/// A part of a model that makes rows of rows.
pub trait Block: Send + Sync {
    /// `x: [n, T]` to `[m, T]`.
    fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node;
}

/// A block that keeps of every row what later rows read.
pub trait Mixer: Block {
    /// Writes what later rows read of `x: [n, T]`, without a result.
    fn remember(&self, g: &mut Graph, x: Node, step: &StepNodes);
}

/// Blocks one after another.
#[derive(Default)]
pub struct Chain(pub Vec<Box<dyn Block>>);

impl Chain {
    /// Of two blocks.
    pub fn of(first: impl Block + 'static, second: impl Block + 'static) -> Self {
        Chain(vec![Box::new(first), Box::new(second)])
    }
}

impl Block for Chain {
    fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        self.0.iter().fold(x, |x, b| b.forward(g, x, step))
    }
}

/// `a(x) + b(x)`: blocks side by side.
pub struct Sum<A, B>(pub A, pub B);

impl<A: Block, B: Block> Block for Sum<A, B> {
    fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let a = self.0.forward(g, x, step);
        let b = self.1.forward(g, x, step);
        g.push(op::Add, &[a, b])
    }
}

/// `x + scale * post(block(norm(x)))`.
pub struct Residual {
    norm: Option<Norm>,
    block: Box<dyn Block>,
    post: Option<Norm>,
    scale: f32,
}

impl Residual {
    /// `x + block(norm(x))`.
    pub fn pre(norm: Norm, block: impl Block + 'static) -> Self {
        Residual { norm: Some(norm), ..Residual::plain(block) }
    }

    /// `x + block(x)`.
    pub fn plain(block: impl Block + 'static) -> Self {
        Residual { norm: None, block: Box::new(block), post: None, scale: 1.0 }
    }

    /// With a norm of what the block says.
    pub fn post(mut self, norm: Norm) -> Self {
        self.post = Some(norm);
        self
    }

    /// With a factor of what is added.
    pub fn scaled(mut self, scale: f32) -> Self {
        self.scale = scale;
        self
    }
}

impl Block for Residual {
    fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let h = self.norm.as_ref().map_or(x, |n| n.apply(g, x));
        let h = self.block.forward(g, h, step);
        let h = self.post.as_ref().map_or(h, |n| n.apply(g, h));
        let h = if self.scale == 1.0 { h } else { g.push(op::Scale { by: self.scale }, &[h]) };
        g.push(op::Add, &[h, x])
    }
}

impl<B: Block + ?Sized> Block for Box<B> {
    fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        (**self).forward(g, x, step)
    }
}
