//! Experts over a projection of the rows.

use firth_graph::{Graph, Node, op};

use crate::StepNodes;
use crate::blocks::{Block, Experts, Glu, Layer, Linear, Norm, Route, one_for_all, softmax};

/// The router sees the rows, experts a projection of them; their sum is projected back. Without the projections a
/// mixture of experts like any other.
pub struct LatentMoe {
    route: Route,
    down: Option<Linear>,
    experts: Experts,
    norm: Option<Norm>,
    up: Option<Linear>,
}

impl LatentMoe {
    /// `{stem}_down {width, latent}`, experts of width `hidden`, `{stem}_norm`, `{stem}_up {latent, width}`: what the
    /// file has of them.
    pub fn new(l: &Layer, stem: &str, latent: usize, hidden: usize, glu: impl Into<Glu>) -> Self {
        let (p, width) = (&l.ffn, l.c.width);
        let name = |part: &str| format!("{stem}_{part}");
        let has = |part: &str| p.has(&format!("{}.weight", name(part)));
        LatentMoe {
            route: Route::new(l, softmax(l.c, true)),
            down: has("down").then(|| p.linear(&name("down"), width, latent)),
            experts: Experts::new(&l.experts, l.c.n_experts, latent, hidden, glu),
            norm: has("norm").then(|| p.norm(&name("norm"), latent)),
            up: has("up").then(|| p.linear(&name("up"), latent, width)),
        }
    }

    /// With this choice, biased where the file has a bias.
    pub fn by(mut self, l: &Layer, choice: op::Router) -> Self {
        self.route = self.route.biased(l);
        self.route.choice = choice;
        self
    }
}

impl Block for LatentMoe {
    fn forward(&self, g: &mut Graph, x: Node, _: &StepNodes) -> Node {
        let [ids, weights] = self.route.choose(g, x);
        let t = self.down.as_ref().map_or(x, |w| w.apply(g, x));
        let rows = one_for_all(g, t);
        let y = self.experts.apply(g, rows, ids);
        let y = g.push(op::MoeSum, &[y, weights]);
        let y = self.norm.as_ref().map_or(y, |n| n.apply(g, y));
        self.up.as_ref().map_or(y, |w| w.apply(g, y))
    }
}
