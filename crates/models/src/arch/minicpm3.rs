//! MiniCPM 3: latent attention with keys and values of every head kept, factors on embedding, residuals and logits.
//!
//! Layer:  x += r attention(norm(x));  x += r mlp(norm(x)) with r = 1.4 / sqrt(layers)
//! Rope:   half-split pairs of the part that has positions, with longrope's lists.
//! Source: openbmb `modeling_minicpm.py` (MiniCPM3-4B); GGUF keys `minicpm3.*`. Its files hold `attn_kv_b` as one matrix,
//! and a head may consist of the part with positions alone.

use firth_graph::{ActKind, Graph, Node, RopePairs, op};

use crate::StepNodes;
use crate::blocks::{
    AttentionShape, Block, Chain, Decoder, KvCache, Layer, Linear, Norm, NormKind, Residual, Rope, Seen,
    streams,
};
use crate::config::{self, Config};
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "minicpm3", load };

fn load(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let rope = Rope::new(&c, RopePairs::Half).long_factors(w);
    let rank = |name: &str| config::extent(w, name, 1, 1 << 16);
    let ranks = [rank("attention.q_lora_rank")?, rank("attention.kv_lora_rank")?];
    let by = 1.4 / (c.n_layers as f32).sqrt();
    let mut model = Decoder::new(w, &c, |l| {
        let norm = |name: &str| l.mixer.norm(name, c.width);
        Chain::of(
            Residual::pre(norm("attn_norm"), Latent::new(l, &rope, ranks)).scaled(by),
            Residual::pre(norm("ffn_norm"), l.gated_mlp(ActKind::Silu)).scaled(by),
        )
    });
    model.embed.scale = 12.0;
    model.head.scale = 256.0 / c.width as f32;
    model.boxed()
}

/// Queries through a latent of their own; keys and values of all heads from another, beside one turned part.
struct Latent {
    shape: AttentionShape,
    latent: usize,
    turned: usize,
    queries: (Linear, Norm, Linear),
    down: Linear,
    norm: Norm,
    up: Linear,
    rope: Rope,
    cache: KvCache,
    scores: op::Attend,
    out: Linear,
}

impl Latent {
    fn new(l: &Layer, rope: &Rope, [query_latent, latent]: [usize; 2]) -> Self {
        let (m, width) = (&l.mixer, l.c.width);
        let heads = l.c.heads[l.i];
        let shape = AttentionShape { kv_heads: heads, ..AttentionShape::of_layer(l.c, l.i) };
        let turned = rope.config.n_rot;
        let rows = heads * (shape.key_dim - turned + shape.value_dim);
        Latent {
            shape,
            latent,
            turned,
            queries: (
                m.linear("attn_q_a", width, query_latent),
                m.norm("attn_q_a_norm", query_latent),
                m.linear("attn_q_b", query_latent, heads * shape.key_dim),
            ),
            down: m.linear("attn_kv_a_mqa", width, latent + turned),
            norm: m.norm("attn_kv_a_norm", latent),
            up: m.linear("attn_kv_b", latent, rows),
            rope: rope.clone(),
            cache: KvCache::new(l, &shape, None),
            scores: op::Attend::new(1.0 / (shape.key_dim as f32).sqrt()),
            out: m.linear("attn_output", heads * shape.value_dim, width),
        }
    }

    /// A head's part without positions, if there is one, before its turned part.
    fn join(&self, g: &mut Graph, from: Node, turned: Node) -> Node {
        match self.shape.key_dim - self.turned {
            0 => g.push(op::Copy, &[turned]),
            n => {
                let plain = g.slice(from, 0, n);
                g.push(op::Concat, &[plain, turned])
            }
        }
    }
}

impl Block for Latent {
    fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let s = &self.shape;
        let plain = s.key_dim - self.turned;
        let h = self.queries.0.apply(g, x);
        let h = self.queries.1.apply(g, h);
        let q = self.queries.2.apply(g, h);
        let q = g.split_heads(q, s.key_dim);
        let part = g.slice(q, plain, self.turned);
        let part = self.rope.turn(g, part, step);
        let q = self.join(g, q, part);
        let y = self.down.apply(g, x);
        let part = g.slice(y, self.latent, self.turned);
        let part = g.split_heads(part, self.turned);
        let part = self.rope.turn(g, part, step);
        let part = g.merge_heads(part);
        let part = streams::spread(g, part, s.heads);
        let latent = g.slice(y, 0, self.latent);
        let latent = self.norm.apply(g, latent);
        let both = self.up.apply(g, latent);
        let both = g.split_heads(both, plain + s.value_dim);
        let k = self.join(g, both, part);
        let v = g.slice(both, plain, s.value_dim);
        let y =
            self.cache.attend(g, step, self.scores, q, (k, Some(v)), Seen::All { sinks: None, near: None });
        let y = g.merge_heads(y);
        self.out.apply(g, y)
    }
}
