//! Nemotron-H, dense and with experts: each layer is one thing, Mamba-2, attention without positions, or a
//! feed-forward.
//!
//! Layer:  x += one(norm(x))
//! Ffn:    `down(relu(up(x))^2)`; or experts of that kind, in a latent space where the file has one, by sigmoid.
//! Source: transformers `modeling_nemotron_h.py`; GGUF keys `nemotron_h.*`, `nemotron_h_moe.*`. A layer is
//! Mamba-2 without key heads and feed-forward, attention without feed-forward.

use firth_graph::{ActKind, Gating, Graph, Node, op};

use crate::StepNodes;
use crate::blocks::{
    Block, Chain, Decoder, Experts, Layer, Linear, Mamba2, MambaShape, Mlp, NormKind, Residual, Route, Sum,
    by_keys, one_for_all,
};
use crate::config::{self, Config};
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entries.
pub const DENSE: Arch = Arch { name: "nemotron_h", load };
/// With experts.
pub const EXPERTS: Arch = Arch { name: "nemotron_h_moe", load };

fn load(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let shape = MambaShape::of_heads(w)?;
    let sizes = Sizes {
        experts: config::expert_width(w, &c)?,
        shared: config::optional(w, "expert_shared_feed_forward_length", 0, 1 << 24)?,
        latent: config::width_or(w, "moe_latent_size", c.width)?,
        choice: by_keys(w, &c, Gating::Sigmoid)?,
    };
    Decoder::new(w, &c, |l| {
        let block: Box<dyn Block> = match (c.hidden[l.i], c.kv_heads[l.i]) {
            (0, 0) => Box::new(Mamba2::new(l, shape)),
            (0, _) => Box::new(l.attention()),
            (hidden, _) if c.n_experts == 0 => {
                Box::new(Mlp::plain(&l.ffn, "", c.width, hidden, ActKind::ReluSquared))
            }
            _ => {
                let shared = Mlp::plain(&l.ffn, "_shexp", c.width, sizes.shared, ActKind::ReluSquared);
                Box::new(Sum(LatentMoe::new(l, &sizes), shared))
            }
        };
        Chain(vec![Box::new(Residual::pre(l.mixer.norm("attn_norm", c.width), block))])
    })
    .boxed()
}

struct Sizes {
    experts: usize,
    shared: usize,
    latent: usize,
    choice: op::Router,
}

/// Experts over a projection of the rows.
struct LatentMoe {
    route: Route,
    down: Option<Linear>,
    experts: Experts,
    up: Option<Linear>,
}

impl LatentMoe {
    fn new(l: &Layer, s: &Sizes) -> Self {
        let linear =
            |name: &str, i, o| l.ffn.has(&format!("{name}.weight")).then(|| l.ffn.linear(name, i, o));
        LatentMoe {
            route: Route::new(l, s.choice).biased(l),
            down: linear("ffn_latent_down", l.c.width, s.latent),
            experts: Experts::new(&l.experts, l.c.n_experts, s.latent, s.experts, ActKind::ReluSquared),
            up: linear("ffn_latent_up", s.latent, l.c.width),
        }
    }
}

impl Block for LatentMoe {
    fn forward(&self, g: &mut Graph, x: Node, _: &StepNodes) -> Node {
        let [ids, weights] = self.route.choose(g, x);
        let t = self.down.as_ref().map_or(x, |w| w.apply(g, x));
        let rows = one_for_all(g, t);
        let y = self.experts.apply(g, rows, ids);
        let y = g.push(op::MoeSum, &[y, weights]);
        self.up.as_ref().map_or(y, |w| w.apply(g, y))
    }
}
