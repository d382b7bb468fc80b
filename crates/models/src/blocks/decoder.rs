//! The skeleton that every model shares: embedding, layers, final norm, head.

use firth_graph::{Graph, Node};

use crate::blocks::{Block, Chain, Embedding, Head, Layer, States};
use crate::config::Config;
use crate::error::ModelError;
use crate::weights::Weights;
use crate::{DraftHead, DraftInfo, Model, ModelInfo, StepNodes};

/// Embedding, layers, head.
pub struct Decoder {
    info: ModelInfo,
    /// Where rows come from.
    pub embed: Embedding,
    /// What changes them, in order.
    layers: Vec<Chain>,
    /// What becomes of them.
    pub head: Head,
    draft: Option<Box<dyn DraftHead>>,
}

impl Decoder {
    /// The layers that `layer` makes, between the embedding and the head by the file's usual names.
    pub fn new(w: &Weights, c: &Config, layer: impl FnMut(&Layer) -> Chain) -> Decoder {
        let embed = Embedding::new(w, c);
        let head = Head::new(w, c, &embed);
        Decoder::with(w, c, embed, head, layer)
    }

    /// As [`Decoder::new`], between another embedding and head.
    pub fn with(
        w: &Weights,
        c: &Config,
        embed: Embedding,
        head: Head,
        mut layer: impl FnMut(&Layer) -> Chain,
    ) -> Decoder {
        let states = States::default();
        let layers = (0..c.n_layers).map(|i| layer(&Layer::new(w, c, i, &states))).collect();
        let info = ModelInfo {
            arch: w.arch().into(),
            n_layers: c.n_layers,
            width: c.width,
            n_vocab: c.n_vocab,
            context: c.context,
            groups: states.groups(),
            slots: states.slots(),
            draft: None,
        };
        Decoder { info, embed, layers, head, draft: None }
    }

    /// With a drafting head that takes hidden rows of `width`, made by `head` of the layer behind the last.
    pub fn draft<H: DraftHead + 'static>(
        mut self,
        w: &Weights,
        c: &Config,
        width: usize,
        head: impl FnOnce(&Layer, &Decoder) -> H,
    ) -> Decoder {
        let states = States::behind(&self.info.groups);
        let head = head(&Layer::new(w, c, c.n_layers, &states), &self);
        self.info.draft = Some(DraftInfo { width, group: states.last() });
        self.draft = Some(Box::new(head));
        self
    }

    /// As what a registry entry returns.
    pub fn boxed(self) -> Result<Box<dyn Model>, ModelError> {
        Ok(Box::new(self))
    }
}

impl Model for Decoder {
    fn info(&self) -> ModelInfo {
        self.info.clone()
    }

    fn forward(&self, g: &mut Graph, step: &StepNodes) -> Node {
        let mut x = self.embed.rows(g, step);
        for (i, layer) in self.layers.iter().enumerate() {
            g.scope(format!("blk.{i}"));
            x = layer.forward(g, x, step);
        }
        x
    }

    fn normalise(&self, g: &mut Graph, hidden: Node) -> Node {
        self.head.normalise(g, hidden)
    }

    fn logits(&self, g: &mut Graph, rows: Node) -> Node {
        self.head.logits(g, rows)
    }

    fn draft_head(&self) -> Option<&dyn DraftHead> {
        self.draft.as_deref()
    }
}
