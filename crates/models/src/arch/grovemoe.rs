//! GroveMoE: Qwen3's attention, and experts in groups that share a smaller expert.
//!
//! Layer:  x += attention(norm(x));  x += m + s chunk(m) with m = experts(norm(x))
//! Rope:   half-split pairs.
//! Source: Wu et al. 2025, arXiv 2508.07785, and the authors' server; GGUF keys `grovemoe.*`. In both the small experts see
//! what the others see; here, as in other engines, they see what those made. An expert's group is its number divided by
//! the size of a group, and its weight counts for both; llama.cpp takes the weight of the expert whose number is the
//! group's.

use firth_graph::{ActKind, Gating, Graph, Node, Part, RopePairs, Shape, WeightSource, op};
use firth_quant::Dtype;

use crate::StepNodes;
use crate::blocks::{Block, Decoder, Experts, Layer, NormKind, QkNorm, Rope, Route, one_for_all, softmax};
use crate::config::{self, Config};
use crate::error::ModelError;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "grovemoe", load };

fn load(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let rope = Rope::new(&c, RopePairs::Half);
    let hidden = config::expert_width(w, &c)?;
    let group = config::extent(w, "experts_per_group", 1, c.n_experts.max(1))?;
    if !c.n_experts.is_multiple_of(group) || c.n_experts == 0 {
        let expected = format!("a divisor of expert_count, which is {}", c.n_experts);
        return Err(ModelError::value(w.key("experts_per_group"), group, expected));
    }
    let chunk = config::width_or(w, "expert_chunk_feed_forward_length", c.key_dim)?;
    let scale = config::float(w, "expert_group_scale", 0.05)? as f32;
    Decoder::new(w, &c, |l| {
        let attention = l.attention().qk_norm(QkNorm::Head(QkNorm::heads(l))).rope(&rope);
        l.pre_norm(attention, Grove::new(l, hidden, group, chunk, scale))
    })
    .boxed()
}

struct Grove {
    route: Route,
    experts: Experts,
    chunks: Experts,
    /// Experts, and those of a group.
    sizes: (usize, usize),
    scale: f32,
}

impl Grove {
    fn new(l: &Layer, hidden: usize, group: usize, chunk: usize, scale: f32) -> Self {
        let (p, n, width) = (&l.experts, l.c.n_experts, l.c.width);
        Grove {
            route: Route::new(l, softmax(l.c, true)),
            experts: Experts::new(p, n, width, hidden, ActKind::Silu),
            chunks: Experts::named(p, "chexps", n / group, width, chunk, ActKind::Silu),
            sizes: (n, group),
            scale,
        }
    }

    /// The groups of experts.
    fn groups(&self, g: &mut Graph, logits: Node, ids: Node) -> Node {
        let (n, group) = self.sizes;
        if group == 1 {
            return ids;
        }
        let values = (0..n).map(|i| (i / group) as f32).collect();
        let table = WeightSource::Values { name: "expert groups".into(), values };
        let table = g.weight(table, Dtype::F32, Shape::fixed(&[1, n]), Part::Tables);
        let by = op::RouteByTable { gating: Gating::Softmax, normalise: false, scale: 1.0 };
        let [groups, _] = g.push_n(by, &[logits, ids, table]);
        groups
    }
}

impl Block for Grove {
    fn forward(&self, g: &mut Graph, x: Node, _: &StepNodes) -> Node {
        let logits = self.route.logits.apply(g, x);
        let [ids, weights] = g.push_n(self.route.choice, &[logits]);
        let sum = |g: &mut Graph, experts: &Experts, x, ids| {
            let rows = one_for_all(g, x);
            let y = experts.apply(g, rows, ids);
            g.push(op::MoeSum, &[y, weights])
        };
        let first = sum(g, &self.experts, x, ids);
        let groups = self.groups(g, logits, ids);
        let second = sum(g, &self.chunks, first, groups);
        let second = g.push(op::Scale { by: self.scale }, &[second]);
        g.push(op::Add, &[second, first])
    }
}
