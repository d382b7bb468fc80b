//! Attention with grouped heads over pages.

use firth_graph::{Graph, Node, Part, Shape, WeightSource, op};
use firth_quant::Dtype;

use crate::StepNodes;
use crate::blocks::{Block, Gated, KvCache, Layer, Linear, Mixer, Norm, Place, Rope, Seen, Temperature};
use crate::config::Config;
use crate::weights::Tensor;

/// Sizes of a layer's attention.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    /// Hidden width.
    pub width: usize,
    /// Query heads.
    pub heads: usize,
    /// Key heads.
    pub kv_heads: usize,
    /// Elements of a query or key.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
}

impl AttentionShape {
    /// The sizes of layer `i`.
    pub fn of_layer(c: &Config, i: usize) -> Self {
        AttentionShape {
            width: c.width,
            heads: c.heads[i],
            kv_heads: c.kv_heads[i],
            key_dim: c.key_dim,
            value_dim: c.value_dim,
        }
    }

    /// Rows of queries, keys and values.
    pub fn widths(&self) -> [usize; 3] {
        [self.heads * self.key_dim, self.kv_heads * self.key_dim, self.kv_heads * self.value_dim]
    }
}

/// The projections to queries, keys and values: three weights, or one that holds all rows.
#[derive(Clone, Debug)]
pub enum Qkv {
    /// `attn_q`, `attn_k`, `attn_v`.
    Separate(Box<[Linear; 3]>),
    /// `attn_qkv`: rows of queries, then keys, then values, so many of each.
    Fused(Box<Linear>, [usize; 3]),
}

impl Qkv {
    /// Whichever form the file has, of rows `[q, k, v]`.
    pub fn new(p: &Place, width: usize, [q, k, v]: [usize; 3]) -> Self {
        match p.has("attn_qkv.weight") {
            true => Qkv::Fused(Box::new(p.linear("attn_qkv", width, q + k + v)), [q, k, v]),
            false => {
                let linear = |name: &str, n| p.linear(name, width, n);
                Qkv::Separate(Box::new([linear("attn_q", q), linear("attn_k", k), linear("attn_v", v)]))
            }
        }
    }

    /// Without the biases that the file may have.
    pub fn unbiased(self) -> Self {
        match self {
            Qkv::Separate(all) => Qkv::Separate(Box::new(all.map(Linear::unbiased))),
            Qkv::Fused(all, n) => Qkv::Fused(Box::new(all.unbiased()), n),
        }
    }

    /// Queries, keys and values, each `[rows, T]`.
    pub fn apply(&self, g: &mut Graph, x: Node) -> [Node; 3] {
        match self {
            Qkv::Separate(all) => [all[0].apply(g, x), all[1].apply(g, x), all[2].apply(g, x)],
            Qkv::Fused(all, [q, k, v]) => {
                let y = all.apply(g, x);
                [g.slice(y, 0, *q), g.slice(y, *q, *k), g.slice(y, q + k, *v)]
            }
        }
    }
}

impl Qkv {
    /// Keys and values alone, each `[rows, T]`.
    pub fn keys_and_values(&self, g: &mut Graph, x: Node) -> [Node; 2] {
        match self {
            Qkv::Separate(all) => [all[1].apply(g, x), all[2].apply(g, x)],
            Qkv::Fused(..) => {
                let [_, k, v] = self.apply(g, x);
                [k, v]
            }
        }
    }
}

/// Norms of queries and keys.
#[derive(Clone, Debug)]
pub enum QkNorm {
    /// Of each head, before rope.
    Head([Norm; 2]),
    /// Of each head, after rope.
    AfterRope([Norm; 2]),
    /// Of all heads of a row together, before rope.
    Row([Norm; 2]),
}

impl QkNorm {
    /// `attn_q_norm`, `attn_k_norm {d}`.
    pub fn heads(l: &Layer) -> [Norm; 2] {
        ["attn_q_norm", "attn_k_norm"].map(|n| l.mixer.norm(n, l.c.key_dim))
    }

    /// `attn_q_norm {d, heads}`, `attn_k_norm {d, kv heads}`: weights of each head.
    pub fn own_heads(l: &Layer) -> [Norm; 2] {
        let (d, heads) = (l.c.key_dim, [l.c.heads[l.i], l.c.kv_heads[l.i]]);
        [l.mixer.head_norm("attn_q_norm", d, heads[0]), l.mixer.head_norm("attn_k_norm", d, heads[1])]
    }

    /// `attn_q_norm {d * heads}`, `attn_k_norm {d * kv heads}`.
    pub fn rows(l: &Layer) -> [Norm; 2] {
        let [q, k, _] = AttentionShape::of_layer(l.c, l.i).widths();
        [l.mixer.norm("attn_q_norm", q), l.mixer.norm("attn_k_norm", k)]
    }
}

/// What is added to the scores of near keys, in every layer the same.
#[derive(Clone, Debug)]
pub struct Near {
    /// Numbers `[2 reach + 1, heads]`.
    pub values: WeightSource,
    /// Keys to either side that have numbers of their own.
    pub reach: usize,
    /// Query heads.
    pub heads: usize,
}

impl Near {
    fn node(&self, g: &mut Graph) -> Node {
        let shape = Shape::fixed(&[2 * self.reach + 1, self.heads]);
        g.weight(self.values.clone(), Dtype::F32, shape, Part::Tables)
    }
}

/// One layer's attention.
pub struct Attention {
    /// Sizes.
    pub shape: AttentionShape,
    /// Projections.
    pub qkv: Qkv,
    /// Bound of what the projections make, 0 for none.
    pub clamp: f32,
    /// Norms of queries and keys.
    pub qk_norm: Option<QkNorm>,
    /// Rotation; none where positions play no part.
    pub rope: Option<Rope>,
    /// Growth of queries with their position.
    pub temperature: Option<Temperature>,
    /// The pages.
    pub cache: KvCache,
    /// Scale, soft cap and bias of the scores, and which keys are seen.
    pub scores: op::Attend,
    /// One more score per head, without a value.
    pub sinks: Option<Tensor>,
    /// What is added to the scores of near keys, and how far it reaches.
    pub near: Option<Near>,
    /// What the values are multiplied by before the output.
    pub gate: Gated,
    /// Output projection.
    pub out: Linear,
}

impl Attention {
    /// By the model's sizes and the layer's window: scale `1 / sqrt(key_dim)`, no norms, no rope.
    pub fn new(l: &Layer) -> Self {
        Attention::of_rows(l, AttentionShape::of_layer(l.c, l.i).widths())
    }

    /// As [`Attention::new`], where the projections make so many rows of queries, keys and values.
    pub fn of_rows(l: &Layer, rows: [usize; 3]) -> Self {
        let shape = AttentionShape::of_layer(l.c, l.i);
        let out = if l.mixer.has("attn_o.weight") { "attn_o" } else { "attn_output" };
        Attention {
            shape,
            qkv: Qkv::new(&l.mixer, shape.width, rows),
            clamp: 0.0,
            qk_norm: None,
            rope: None,
            temperature: None,
            cache: KvCache::new(l, &shape, l.c.window(l.i)),
            scores: op::Attend {
                sight: l.c.sight(l.i),
                ..op::Attend::new(1.0 / (shape.key_dim as f32).sqrt())
            },
            sinks: None,
            near: None,
            gate: Gated::No,
            out: l.mixer.linear(out, shape.heads * shape.value_dim, shape.width),
        }
    }

    /// With norms of queries and keys.
    pub fn qk_norm(mut self, norm: QkNorm) -> Self {
        self.qk_norm = Some(norm);
        self
    }

    /// With numbers added to the scores of near keys.
    pub fn near(mut self, near: &Near) -> Self {
        self.scores.reach = near.reach;
        self.near = Some(near.clone());
        self
    }

    /// With rotation.
    pub fn rope(mut self, rope: &Rope) -> Self {
        self.rope = Some(rope.clone());
        self
    }

    /// Rows within the bound.
    fn clamped(&self, g: &mut Graph, x: Node) -> Node {
        match self.clamp {
            0.0 => x,
            c => g.push(op::Clamp { low: -c, high: c }, &[x]),
        }
    }

    /// Keys `[key_dim, kv_heads, T]`, normed and turned, and values `[value_dim, kv_heads, T]`.
    fn keys_and_values(&self, g: &mut Graph, k: Node, v: Node, step: &StepNodes) -> [Node; 2] {
        let k = g.split_heads(k, self.shape.key_dim);
        [self.placed(g, k, 1, step), g.split_heads(v, self.shape.value_dim)]
    }

    /// Queries (0) or keys (1) `[key_dim, heads, T]`, normed and turned.
    fn placed(&self, g: &mut Graph, mut x: Node, which: usize, step: &StepNodes) -> Node {
        if let Some(QkNorm::Row(n)) = &self.qk_norm {
            let row = g.merge_heads(x);
            let row = n[which].apply(g, row);
            x = g.split_heads(row, self.shape.key_dim);
        }
        if let Some(QkNorm::Head(n)) = &self.qk_norm {
            x = n[which].apply(g, x);
        }
        if let Some(rope) = &self.rope {
            x = rope.turn(g, x, step);
        }
        match &self.qk_norm {
            Some(QkNorm::AfterRope(n)) => n[which].apply(g, x),
            _ => x,
        }
    }
}

impl Attention {
    /// Attention over keys that somebody else has chosen.
    pub fn over(&self, g: &mut Graph, x: Node, step: &StepNodes, seen: Seen) -> Node {
        let [q, k, v] = self.qkv.apply(g, x).map(|y| self.clamped(g, y));
        let (q, gate) = self.gate.split(g, x, q, &self.shape);
        let mut q = self.placed(g, q, 0, step);
        if let Some(temperature) = &self.temperature {
            q = temperature.apply(g, q, step);
        }
        let [k, v] = self.keys_and_values(g, k, v, step);
        let mut y = self.cache.attend(g, step, self.scores, q, (k, Some(v)), seen);
        if let Some(gate) = gate {
            y = g.push(op::Mul, &[y, gate]);
        }
        let y = g.merge_heads(y);
        self.out.apply(g, y)
    }
}

impl Block for Attention {
    fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let sinks = self.sinks.as_ref().map(|s| s.node(g));
        let near = self.near.as_ref().map(|n| n.node(g));
        self.over(g, x, step, Seen::All { sinks, near })
    }
}

impl Mixer for Attention {
    fn remember(&self, g: &mut Graph, x: Node, step: &StepNodes) {
        let [k, v] = self.qkv.keys_and_values(g, x).map(|y| self.clamped(g, y));
        let [k, v] = self.keys_and_values(g, k, v, step);
        self.cache.write(g, step, (k, Some(v)));
    }
}
