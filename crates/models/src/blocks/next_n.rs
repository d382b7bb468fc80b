//! The head of multi-token prediction: one more layer over a token's embedding and the hidden row before it.

use firth_graph::{Graph, Node, op};

use crate::blocks::{Block, Decoder, Embedding, Head, Layer, Linear, Mixer, Norm, Residual, SlotState};
use crate::config::Config;
use crate::weights::Weights;
use crate::{DraftHead, StepNodes};

/// `c = eh_proj [enorm(e); hnorm(h)]`, a layer over `c`, a final norm whose rows are both what the head multiplies
/// and the next `h`. Source: DeepSeek-AI 2024, arXiv 2412.19437, section 2.2.
pub struct NextN {
    embed: Embedding,
    embed_norm: Norm,
    hidden_norm: Norm,
    join: Linear,
    mixer_norm: Norm,
    mixer: Box<dyn Mixer>,
    ffn: Residual,
    /// Norm and product; the trunk's where the block has none of its own.
    pub head: Head,
    hidden: SlotState,
    width: usize,
}

impl NextN {
    /// Whether the file has exactly one such block.
    pub fn present(w: &Weights, c: &Config) -> bool {
        c.n_blocks == c.n_layers + 1 && w.has(&format!("blk.{}.nextn.eh_proj.weight", c.n_layers))
    }

    /// Of layer `l`, behind the trunk: `nextn.eh_proj {2 width, width}`, `nextn.enorm`, `nextn.hnorm`, the layer's
    /// mixer behind `attn_norm` and its feed-forward behind the norm named `second`.
    pub fn new(
        l: &Layer,
        trunk: &Decoder,
        second: &str,
        mixer: impl Mixer + 'static,
        ffn: impl Block + 'static,
    ) -> Self {
        let (p, n) = (&l.mixer, l.c.width);
        let mut embed = trunk.embed.clone();
        if p.has("nextn.embed_tokens.weight") {
            embed.table = p.matrix("nextn.embed_tokens", &[n, l.c.n_vocab]);
        }
        let mut head = trunk.head.clone();
        if p.has("nextn.shared_head_head.weight") {
            head.out = p.linear("nextn.shared_head_head", n, l.c.n_vocab);
        }
        if p.has("nextn.shared_head_norm.weight") {
            head.norm = Some(p.norm("nextn.shared_head_norm", n));
        }
        NextN {
            embed,
            embed_norm: p.norm("nextn.enorm", n),
            hidden_norm: p.norm("nextn.hnorm", n),
            join: p.linear("nextn.eh_proj", 2 * n, n),
            mixer_norm: p.norm("attn_norm", n),
            mixer: Box::new(mixer),
            ffn: Residual::pre(l.ffn.norm(second, n), ffn),
            head,
            hidden: SlotState::new(l, "hidden"),
            width: n,
        }
    }

    /// The rows that the layer works on, `[width, T]`.
    fn joined(&self, g: &mut Graph, hidden: Node, step: &StepNodes) -> Node {
        let e = self.embed.rows(g, step);
        let e = self.embed_norm.apply(g, e);
        let h = self.hidden_norm.apply(g, hidden);
        let both = g.push(op::Concat, &[e, h]);
        self.join.apply(g, both)
    }
}

impl DraftHead for NextN {
    fn catch_up(&self, g: &mut Graph, hidden: Node, step: &StepNodes) {
        let ring = self.hidden.ring(g, self.width, 1, step);
        let [before, _] = g.push_n(op::PrevRow, &[ring, hidden, step.seqs, step.slots()]);
        let c = self.joined(g, before, step);
        let n = self.mixer_norm.apply(g, c);
        self.mixer.remember(g, n, step);
    }

    fn forward(&self, g: &mut Graph, hidden: Node, step: &StepNodes) -> Node {
        let c = self.joined(g, hidden, step);
        let n = self.mixer_norm.apply(g, c);
        let a = self.mixer.forward(g, n, step);
        let y = g.push(op::Add, &[a, c]);
        let y = self.ffn.forward(g, y, step);
        self.head.normalise(g, y)
    }

    fn logits(&self, g: &mut Graph, rows: Node) -> Node {
        self.head.logits(g, rows)
    }
}
