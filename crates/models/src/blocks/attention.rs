//! Attention with grouped heads over pages.

use firth_graph::{Graph, KvSpec, Node, PageGroup, Part, RopePairs, RopeSpec, StateSpec, WeightSource, op};
use firth_quant::Dtype;

use crate::StepNodes;
use crate::blocks::{Linear, RmsNorm};
use crate::config::Config;
use crate::weights::Weights;

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
    Separate([Box<Linear>; 3]),
    /// `attn_qkv`: rows of queries, then keys, then values.
    Fused(Box<Linear>),
}

impl Qkv {
    /// Whichever form the file has.
    pub fn new(w: &Weights, prefix: &str, s: &AttentionShape, part: Part) -> Self {
        let [q, k, v] = s.widths();
        let linear = |name: &str, n| Box::new(Linear::new(w, &format!("{prefix}.{name}"), s.width, n, part));
        match w.has(&format!("{prefix}.attn_qkv.weight")) {
            true => Qkv::Fused(linear("attn_qkv", q + k + v)),
            false => Qkv::Separate([linear("attn_q", q), linear("attn_k", k), linear("attn_v", v)]),
        }
    }

    /// Queries, keys and values, each `[rows, T]`.
    fn forward(&self, g: &mut Graph, x: Node, s: &AttentionShape) -> [Node; 3] {
        match self {
            Qkv::Separate([q, k, v]) => [q.forward(g, x), k.forward(g, x), v.forward(g, x)],
            Qkv::Fused(all) => {
                let y = all.forward(g, x);
                let [q, k, v] = s.widths();
                [g.slice(y, 0, q), g.slice(y, q, k), g.slice(y, q + k, v)]
            }
        }
    }
}

/// One layer's attention.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Sizes.
    pub shape: AttentionShape,
    /// Projections.
    pub qkv: Qkv,
    /// Output projection.
    pub out: Linear,
    /// Norms of each head's query and key, before rope.
    pub qk_norm: Option<[RmsNorm; 2]>,
    /// Pairing of rope.
    pub pairs: RopePairs,
    /// Factor of the scores.
    pub scale: f32,
    /// Keys further back are hidden.
    pub window: Option<usize>,
    /// The page list that the layer follows.
    pub group: PageGroup,
    /// The layer.
    pub layer: u32,
}

impl Attention {
    /// The state of the layer.
    pub fn state(&self, kv: Dtype) -> StateSpec {
        StateSpec::Kv(KvSpec {
            key_dim: self.shape.key_dim,
            value_dim: self.shape.value_dim,
            n_heads: self.shape.kv_heads,
            dtype: kv,
            group: self.group,
            window: self.window,
            value_in_key: false,
        })
    }

    /// `x: [width, T]` to `[width, T]`; `rope` is the layer's table.
    pub fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes, rope: RopeSpec) -> Node {
        let s = &self.shape;
        let [q, k, v] = self.qkv.forward(g, x, s);
        let mut q = g.split_heads(q, s.key_dim);
        let mut k = g.split_heads(k, s.key_dim);
        let v = g.split_heads(v, s.value_dim);
        if let Some([q_norm, k_norm]) = &self.qk_norm {
            q = q_norm.forward(g, q);
            k = k_norm.forward(g, k);
        }
        let n_rot = rope.n_rot;
        let shape = firth_graph::Shape::fixed(&[n_rot, rope.n_positions]);
        let table = g.weight(WeightSource::Rope(rope), Dtype::F32, shape, Part::Tables);
        let turn = op::Rope { pairs: self.pairs, n_rot };
        let q = g.push(turn, &[q, table, step.positions]);
        let k = g.push(turn, &[k, table, step.positions]);
        let pages = step.pages_of(self.group);
        let name = format!("blk.{}.kv", self.layer);
        let before = g.state(name, self.state(step.options.kv), Part::Mixer(self.layer));
        let after = g.push(op::KvWrite, &[before, k, v, step.seqs, pages]);
        let attend = op::Attend { scale: self.scale, softcap: 0.0, window: self.window };
        let y = g.push(attend, &[after, q, step.seqs, pages]);
        let y = g.merge_heads(y);
        self.out.forward(g, y)
    }
}
