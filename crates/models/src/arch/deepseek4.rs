//! DeepSeek 4: one row a token is key and value of all heads; attention reads a window of rows and, on most layers, pools of
//! them; experts; residual streams mixed by doubly stochastic weights.
//!
//! Half:   R' = post f(norm(pre R)) + comb R, with pre, post and comb from a product of all streams' norm
//! Pools:  of 128 tokens, all of them; or of 4, each with the 4 before it, those that an indexer chooses.
//! Rope:   adjacent pairs of each head's last numbers, turned back in the values; layers with pools have a base of their
//!         own and the file's scaling, without its magnitude. A pool stands where its first token does.
//! Source: DeepSeek-AI 2026, "DeepSeek-V4"; GGUF keys `deepseek4.*`. The first layers' experts are named by a table of ids.
//! The drafting head is left aside.

use firth_graph::{Gating, Graph, Node, Part, RopePairs, op};

use super::deepseek4_named as named;
use super::deepseek4_pools::{PoolSizes, Pools};
use crate::StepNodes;
use crate::blocks::{
    Block, Decoder, Embedding, FfnPlan, Glu, Head, Hyper, KvCache, Layer, Linear, Norm, NormKind, Place,
    Rope, Seen, SparseHalf, StreamGates, StreamHalf, StreamLayers, StreamPart, by_keys,
};
use crate::config::{self, Config};
use crate::error::ModelError;
use crate::registry::{Arch, Loaded};
use crate::weights::{Tensor, Weights};

/// Registry entry.
pub const ARCH: Arch = Arch { name: "deepseek4", load };

fn load(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let s = Sizes::read(w, &c)?;
    let embed = Embedding::new(w, &c);
    let head = Head::new(w, &c, &embed);
    let root = Place::root(w, &c, Part::Head);
    Decoder::of_body(w, &c, embed, head, |states| StreamLayers {
        n: s.hyper.streams,
        layers: (0..c.n_layers).map(|i| s.layer(&Layer::new(w, &c, i, states))).collect(),
        end: StreamGates::new(&root, &c, "output_hc", s.hyper.streams, 1, s.hyper.eps),
    })
    .boxed()
}

struct Sizes {
    hyper: op::HyperWeights,
    window: usize,
    latent: usize,
    /// Groups of heads whose values are projected together, and to how many numbers.
    output: (usize, usize),
    /// Without pools, and with.
    ropes: [Rope; 2],
    ffn: FfnPlan,
    /// First layers whose experts a table names.
    named: usize,
    limits: [Vec<f32>; 2],
    /// Tokens of each layer's pools, 0 for none.
    ratios: Vec<u32>,
    pools: PoolSizes,
}

impl Sizes {
    fn read(w: &Weights, c: &Config) -> Result<Self, ModelError> {
        let size = |name: &str| config::extent(w, name, 1, 1 << 24);
        let named = config::optional(w, "hash_layer_count", 0, c.n_layers)?;
        (0..named).try_for_each(|i| named::check(w, c, i))?;
        let ratios = w.metadata().u32_per_layer(&w.key("attention.compress_ratios"), c.n_blocks)?;
        let ratios = ratios.unwrap_or_else(|| vec![0; c.n_blocks]);
        if let Some(ratio) = ratios.iter().find(|r| ![0, 4, 128].contains(*r)) {
            return Err(ModelError::value(w.key("attention.compress_ratios"), ratio, "0, 4 or 128"));
        }
        let groups = size("attention.output_group_count")?;
        if !c.first_heads().is_multiple_of(groups) {
            let expected = format!("a divisor of head_count, which is {}", c.first_heads());
            return Err(ModelError::value(w.key("attention.output_group_count"), groups, expected));
        }
        let mut rope = Rope::new(c, RopePairs::Adjacent);
        let plain = rope.unscaled(c.rope.base);
        rope.config.base = config::positive(w, "attention.compress_rope_freq_base", c.rope.base as f32)?;
        rope.config.attn_factor /= rope.config.magnitude();
        let latent = size("attention.q_lora_rank")?;
        Ok(Sizes {
            hyper: Hyper::read(w)?,
            window: size("attention.sliding_window")?,
            latent,
            output: (groups, size("attention.output_lora_rank")?),
            ropes: [plain, rope.clone()],
            ffn: FfnPlan { dense: 0, ..FfnPlan::read(w, c, by_keys(w, c, Gating::RootSoftplus)?)? },
            named,
            limits: config::clamps(w, c)?,
            ratios,
            pools: PoolSizes::read(w, c.key_dim, latent, rope)?,
        })
    }

    fn layer(&self, l: &Layer) -> Vec<Box<dyn StreamPart>> {
        let [glu, dense_glu] = [0, 1].map(|i| Glu::silu(self.limits[i][l.i], Glu::Clipped));
        let plan = FfnPlan { glu, dense_glu, ..self.ffn };
        let ffn = if l.i < self.named { named::block(l, &plan) } else { plan.block(l) };
        let half = |p: &Place, part: &str, block| {
            let hyper = Hyper::new(p, l, &format!("hc_{part}"), self.hyper);
            StreamHalf::boxed(hyper, p.norm(&format!("{part}_norm"), l.c.width), SparseHalf::Plain(block))
        };
        vec![half(&l.mixer, "attn", Box::new(Attention::new(l, self))), half(&l.ffn, "ffn", ffn)]
    }
}

/// Attention over a window of rows, and over pools where the layer has them.
struct Attention {
    /// Numbers of a head.
    dim: usize,
    window: usize,
    queries: (Linear, Norm, Linear),
    row: (Linear, Norm),
    rope: Rope,
    cache: KvCache,
    sinks: Tensor,
    pools: Option<Pools>,
    out: (Tensor, Linear),
}

impl Attention {
    fn new(l: &Layer, s: &Sizes) -> Self {
        let (m, width, dim, heads) = (&l.mixer, l.c.width, l.c.key_dim, l.c.heads[l.i]);
        let ratio = s.ratios[l.i] as usize;
        let (groups, rank) = s.output;
        Attention {
            dim,
            window: s.window,
            queries: (
                m.linear("attn_q_a", width, s.latent),
                m.norm("attn_q_a_norm", s.latent),
                m.linear("attn_q_b", s.latent, heads * dim),
            ),
            row: (m.linear("attn_kv", width, dim), m.norm("attn_kv_a_norm", dim)),
            rope: s.ropes[usize::from(ratio > 0)].clone(),
            cache: match ratio {
                0 => KvCache::latent(l, dim, dim, Some(s.window)),
                _ => KvCache::latent(l, dim, dim, None).pairs(),
            },
            sinks: m.table("attn_sinks.weight", &[heads]),
            pools: (ratio > 0).then(|| Pools::new(l, &s.pools, ratio)),
            out: (
                m.matrix("attn_output_a", &[heads / groups * dim, rank, groups]),
                m.linear("attn_output_b", groups * rank, width),
            ),
        }
    }
}

impl Block for Attention {
    fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let latent = self.queries.0.apply(g, x);
        let latent = self.queries.1.apply(g, latent);
        let q = self.queries.2.apply(g, latent);
        let q = g.split_heads(q, self.dim);
        let q = Norm::bare(self.row.1.spec).apply(g, q);
        let q = self.rope.turn_last(g, q, step.positions, step);
        let row = self.row.0.apply(g, x);
        let row = self.row.1.apply(g, row);
        let row = g.split_heads(row, self.dim);
        let row = self.rope.turn_last(g, row, step.positions, step);
        let scale = 1.0 / (self.dim as f32).sqrt();
        let sinks = Some(self.sinks.node(g));
        let y = match &self.pools {
            None => {
                let scores = op::Attend { sight: op::Sight::Window(self.window), ..op::Attend::new(scale) };
                self.cache.attend(g, step, scores, q, (row, None), Seen::All { sinks, near: None })
            }
            Some(pools) => {
                let (pool, chosen) = pools.apply(g, x, latent, step);
                let both = g.push(op::Concat, &[row, pool]);
                let both = g.merge_heads(both);
                let rows = g.split_heads(both, self.dim);
                let (window, ratio) = (self.window, pools.ratio);
                let op = op::AttendPools { scale, window, ratio, chosen: chosen.is_some() };
                self.cache.attend_pools(g, step, op, q, rows, (chosen, sinks))
            }
        };
        let y = self.rope.turn_last_back(g, y, step);
        let y = g.merge_heads(y);
        let n = self.out.0.shape[0];
        let y = g.split_heads(y, n);
        let down = self.out.0.node(g);
        let y = g.push(op::MatMulExperts, &[down, y]);
        let y = g.merge_heads(y);
        self.out.1.apply(g, y)
    }
}
