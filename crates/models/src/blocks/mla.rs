//! Multi-head latent attention, absorbed: one latent row a token is key and value of every head.
//! Source: DeepSeek-AI 2024, arXiv 2405.04434, section 2.1.

use firth_graph::{Graph, Node, op};

use crate::StepNodes;
use crate::blocks::{Block, Gate, KvCache, Layer, Linear, Mixer, Norm, Rope, Seen, Temperature};
use crate::config;
use crate::error::ModelError;
use crate::weights::{Tensor, Weights};

/// Sizes of latent attention.
#[derive(Clone, Copy, Debug)]
pub struct MlaShape {
    /// Heads.
    pub heads: usize,
    /// Numbers of a query head, the turned part included.
    pub key_dim: usize,
    /// Numbers of a value head.
    pub value_dim: usize,
    /// Numbers of the latent.
    pub latent: usize,
    /// Numbers of the query's latent, 0 for none.
    pub query_latent: usize,
    /// Numbers of the part with positions, which may be 0.
    pub turned: usize,
}

impl MlaShape {
    /// Reads `attention.key_length_mla`, `value_length_mla`, `kv_lora_rank`, `q_lora_rank`.
    pub fn read(w: &Weights, heads: usize, turned: usize) -> Result<Self, ModelError> {
        let size = |name: &str| config::extent(w, &format!("attention.{name}"), 1, 1 << 16);
        let s = MlaShape {
            heads,
            key_dim: size("key_length_mla")?,
            value_dim: size("value_length_mla")?,
            latent: size("kv_lora_rank")?,
            query_latent: config::optional(w, "attention.q_lora_rank", 0, 1 << 16)?,
            turned,
        };
        if s.key_dim <= turned {
            let expected = format!("above rope.dimension_count, which is {turned}");
            return Err(ModelError::value(w.key("attention.key_length_mla"), s.key_dim, expected));
        }
        Ok(s)
    }
}

/// The projection of queries: direct, or through a normed latent.
#[derive(Clone, Debug)]
pub enum Queries {
    /// `attn_q`.
    Direct(Linear),
    /// `attn_q_a`, `attn_q_a_norm`, `attn_q_b`.
    Latent(Box<(Linear, Norm, Linear)>),
}

impl Queries {
    fn new(l: &Layer, s: &MlaShape) -> Self {
        let (m, width, n) = (&l.mixer, l.c.width, s.heads * s.key_dim);
        match s.query_latent > 0 && m.has("attn_q_a.weight") {
            false => Queries::Direct(m.linear("attn_q", width, n)),
            true => Queries::Latent(Box::new((
                m.linear("attn_q_a", width, s.query_latent),
                m.norm("attn_q_a_norm", s.query_latent),
                m.linear("attn_q_b", s.query_latent, n),
            ))),
        }
    }

    /// The normed latent, or the rows themselves.
    fn latent(&self, g: &mut Graph, x: Node) -> Node {
        match self {
            Queries::Direct(_) => x,
            Queries::Latent(parts) => {
                let h = parts.0.apply(g, x);
                parts.1.apply(g, h)
            }
        }
    }

    /// Queries of all heads from what [`Queries::latent`] gave.
    fn up(&self, g: &mut Graph, latent: Node) -> Node {
        match self {
            Queries::Direct(q) => q.apply(g, latent),
            Queries::Latent(parts) => parts.2.apply(g, latent),
        }
    }
}

/// One layer's latent attention.
pub struct Mla {
    /// Sizes.
    pub shape: MlaShape,
    queries: Queries,
    down: Linear,
    norm: Norm,
    /// Norm of the shared key part with positions, before rope.
    pub key_norm: Option<Norm>,
    key_up: Tensor,
    value_up: Tensor,
    /// Rotation of the parts with positions; none where they are not turned.
    pub rope: Option<Rope>,
    /// Growth of queries with their position.
    pub temperature: Option<Temperature>,
    cache: KvCache,
    /// Scale and window of the scores.
    pub scores: op::Attend,
    /// One more score per head, without a value.
    pub sinks: Option<Tensor>,
    /// What the values are multiplied by before the output.
    pub gate: Option<Gate>,
    out: Linear,
}

impl Mla {
    /// `attn_q…`, `attn_kv_a_mqa {width, latent + turned}`, `attn_kv_a_norm`, `attn_k_b {key part, latent, heads}`,
    /// `attn_v_b {latent, value, heads}`, `attn_output`; scale `1 / sqrt(key_dim)`.
    pub fn new(l: &Layer, shape: MlaShape) -> Self {
        let (m, s, width) = (&l.mixer, &shape, l.c.width);
        Mla {
            shape,
            queries: Queries::new(l, s),
            down: m.linear("attn_kv_a_mqa", width, s.latent + s.turned),
            norm: m.norm("attn_kv_a_norm", s.latent),
            key_norm: None,
            key_up: m.matrix("attn_k_b", &[s.key_dim - s.turned, s.latent, s.heads]),
            value_up: m.matrix("attn_v_b", &[s.latent, s.value_dim, s.heads]),
            rope: None,
            temperature: None,
            cache: KvCache::latent(l, s.latent + s.turned, s.latent, l.c.window(l.i)),
            scores: op::Attend { sight: l.c.sight(l.i), ..op::Attend::new(1.0 / (s.key_dim as f32).sqrt()) },
            sinks: None,
            gate: None,
            out: m.linear("attn_output", s.heads * s.value_dim, width),
        }
    }

    /// With rotation.
    pub fn rope(mut self, rope: &Rope) -> Self {
        self.rope = Some(rope.clone());
        self
    }

    /// `[n, heads, T]` with positions.
    fn turn(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        self.rope.as_ref().map_or(x, |rope| rope.turn(g, x, step))
    }

    /// The row `[latent + turned, 1, T]` that is kept of a token.
    fn row(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let s = &self.shape;
        let y = self.down.apply(g, x);
        let latent = g.slice(y, 0, s.latent);
        let latent = self.norm.apply(g, latent);
        if s.turned == 0 {
            return g.split_heads(latent, s.latent);
        }
        let mut part = g.slice(y, s.latent, s.turned);
        if let Some(norm) = &self.key_norm {
            part = norm.apply(g, part);
        }
        let part = g.split_heads(part, s.turned);
        let part = self.turn(g, part, step);
        let latent = g.split_heads(latent, s.latent);
        g.push(op::Concat, &[latent, part])
    }

    /// What queries are projected from: their normed latent, or the rows themselves.
    pub fn query_latent(&self, g: &mut Graph, x: Node) -> Node {
        self.queries.latent(g, x)
    }

    /// Queries `[latent + turned, heads, T]` that meet those rows.
    fn queries(&self, g: &mut Graph, latent: Node, step: &StepNodes) -> Node {
        let s = &self.shape;
        let q = self.queries.up(g, latent);
        let q = g.split_heads(q, s.key_dim);
        let plain = g.slice(q, 0, s.key_dim - s.turned);
        let up = self.key_up.node(g);
        let plain = g.push(op::MatMulExperts, &[up, plain]);
        if s.turned == 0 {
            return plain;
        }
        let part = g.slice(q, s.key_dim - s.turned, s.turned);
        let part = self.turn(g, part, step);
        g.push(op::Concat, &[plain, part])
    }
}

impl Mla {
    /// Attention over keys that somebody else has chosen; `latent` is what [`Mla::query_latent`] gave.
    pub fn over(&self, g: &mut Graph, x: Node, latent: Node, step: &StepNodes, seen: Seen) -> Node {
        let mut q = self.queries(g, latent, step);
        if let Some(temperature) = &self.temperature {
            q = temperature.apply(g, q, step);
        }
        let row = self.row(g, x, step);
        let o = self.cache.attend(g, step, self.scores, q, (row, None), seen);
        let up = self.value_up.node(g);
        let mut y = g.push(op::MatMulExperts, &[up, o]);
        if let Some(gate) = &self.gate {
            let gate = gate.rows(g, x, self.shape.heads);
            y = g.push(op::Mul, &[y, gate]);
        }
        let y = g.merge_heads(y);
        self.out.apply(g, y)
    }
}

impl Block for Mla {
    fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let latent = self.query_latent(g, x);
        let sinks = self.sinks.as_ref().map(|s| s.node(g));
        self.over(g, x, latent, step, Seen::All { sinks, near: None })
    }
}

impl Mixer for Mla {
    fn remember(&self, g: &mut Graph, x: Node, step: &StepNodes) {
        let row = self.row(g, x, step);
        self.cache.write(g, step, (row, None));
    }
}
