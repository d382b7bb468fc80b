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
    body: Box<dyn Block>,
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
        Decoder::of_body(w, c, embed, head, |states| {
            Layers((0..c.n_layers).map(|i| layer(&Layer::new(w, c, i, states))).collect())
        })
    }

    /// As [`Decoder::with`], where `body` makes all that stands between embedding and head; its layers keep `States`.
    pub fn of_body<B: Block + 'static>(
        w: &Weights,
        c: &Config,
        embed: Embedding,
        head: Head,
        body: impl FnOnce(&States) -> B,
    ) -> Decoder {
        let states = States::default();
        let body = Box::new(body(&states));
        let info = ModelInfo {
            arch: w.arch().into(),
            n_layers: c.n_layers,
            width: c.width,
            n_vocab: c.n_vocab,
            context: c.context,
            positions: embed.positions.as_ref().map(|table| table.shape[1]),
            groups: states.groups(),
            slots: states.slots(),
            both_ways: !c.causal,
            logits: true,
            draft: None,
        };
        Decoder { info, embed, body, head, draft: None }
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

    /// As what a registry entry returns of a model without logits, whose rows are what it is for.
    pub fn encoder(mut self) -> Result<Box<dyn Model>, ModelError> {
        self.info.logits = false;
        self.boxed()
    }

    /// As what a registry entry returns.
    pub fn boxed(self) -> Result<Box<dyn Model>, ModelError> {
        Ok(Box::new(self))
    }
}

/// Layers one after another, each under its name.
pub struct Layers(pub Vec<Chain>);

impl Block for Layers {
    fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        self.0.iter().enumerate().fold(x, |x, (i, layer)| {
            g.scope(format!("blk.{i}"));
            layer.forward(g, x, step)
        })
    }
}

impl Model for Decoder {
    fn info(&self) -> ModelInfo {
        self.info.clone()
    }

    fn forward(&self, g: &mut Graph, step: &StepNodes) -> Node {
        let x = self.embed.rows(g, step);
        self.body.forward(g, x, step)
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
