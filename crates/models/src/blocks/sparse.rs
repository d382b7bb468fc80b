//! Layers of latent attention over keys that an indexer has chosen, their own or an earlier one's.

use firth_graph::{Graph, Node, op};

use crate::StepNodes;
use crate::blocks::{Block, Indexer, Mla, Norm, Residual, Seen};

/// Latent attention, and where its keys come from.
pub struct SparseMla {
    /// The attention.
    pub mla: Mla,
    /// The layer's own choice; without it the last one made counts.
    pub index: Option<Indexer>,
    /// Tokens of a pool, and whether those behind the last complete pool are seen; `None` where all keys are.
    pub pools: Option<(usize, bool)>,
}

impl SparseMla {
    /// Over single tokens.
    pub fn new(mla: Mla, index: Option<Indexer>) -> Self {
        SparseMla { mla, index, pools: Some((1, false)) }
    }

    /// Over all keys.
    pub fn dense(mla: Mla) -> Self {
        SparseMla { mla, index: None, pools: None }
    }

    /// `[width, T]` from normalised rows; `chosen` are the pools of the last layer that chose.
    pub fn apply(&self, g: &mut Graph, x: Node, chosen: &mut Option<Node>, step: &StepNodes) -> Node {
        let latent = self.mla.query_latent(g, x);
        if let Some(index) = &self.index {
            *chosen = Some(index.choose(g, x, latent, step));
        }
        let sinks = self.mla.sinks.as_ref().map(|s| s.node(g));
        let seen = match (*chosen, self.pools) {
            (Some(pools), Some((ratio, tail))) => Seen::Chosen { pools, ratio, tail, sinks },
            _ => Seen::All { sinks, near: None },
        };
        self.mla.over(g, x, latent, step, seen)
    }
}

/// What a half of a layer does with its normalised rows.
pub enum SparseHalf {
    /// Attention over chosen keys.
    Mixer(Box<SparseMla>),
    /// What knows nothing of the choice.
    Plain(Box<dyn Block>),
}

impl SparseHalf {
    /// `[width, T]`; `chosen` as in [`SparseMla::apply`].
    pub fn apply(&self, g: &mut Graph, x: Node, chosen: &mut Option<Node>, step: &StepNodes) -> Node {
        match self {
            SparseHalf::Mixer(mixer) => mixer.apply(g, x, chosen, step),
            SparseHalf::Plain(block) => block.forward(g, x, step),
        }
    }
}

/// `x += attention(norm(x)); x += ffn(norm(x))`, layer after layer.
pub struct SparseLayers(pub Vec<(Norm, SparseMla, Residual)>);

impl Block for SparseLayers {
    fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let mut chosen = None;
        self.0.iter().enumerate().fold(x, |x, (i, (norm, mixer, ffn))| {
            g.scope(format!("blk.{i}"));
            let h = norm.apply(g, x);
            let h = mixer.apply(g, h, &mut chosen, step);
            let x = g.push(op::Add, &[h, x]);
            ffn.forward(g, x, step)
        })
    }
}
