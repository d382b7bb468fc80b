//! Maple: norms of heads, windows with rope on some layers, experts with a clipped unit. SmallThinker: windows without
//! rope on every fourth layer, experts chosen before the attention, with a ReLU gate.
//!
//! Layer:  x += attention(norm(x));  x += experts(norm(x))
//! Rope:   half-split pairs.
//! Source: GGUF keys `maple.*`; PowerInfer `modeling_smallthinker.py`, GGUF keys `smallthinker.*`.

use firth_graph::{ActKind, Gating, Graph, Node, RopePairs, op};

use crate::StepNodes;
use crate::blocks::{
    Block, Chain, Decoder, Experts, Glu, Moe, Norm, NormKind, QkNorm, Residual, Rope, Route, by_keys,
    one_for_all, softmax,
};
use crate::config::{self, Config};
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Maple.
pub const MAPLE: Arch = Arch { name: "maple", load: maple };
/// SmallThinker.
pub const SMALLTHINKER: Arch = Arch { name: "smallthinker", load: smallthinker };

fn maple(w: &Weights) -> Loaded {
    let mut c = Config::read(w, NormKind::Rms)?;
    c.windows = config::windows(w, c.n_layers, None, 0)?;
    let mut rope = Rope::new(&c, RopePairs::Half);
    rope.config.base = config::positive(w, "rope.freq_base_swa", c.rope.base as f32)?;
    let limits = config::per_layer_f32(w, "swiglu_clamp_exp", c.n_blocks)?;
    let hidden = config::expert_width(w, &c)?;
    Decoder::new(w, &c, |l| {
        let mut attention = l.attention().qk_norm(QkNorm::Head(QkNorm::heads(l)));
        attention.rope = c.windows[l.i].map(|_| rope.clone());
        let glu = Glu::silu(limits[l.i], Glu::Clipped);
        l.pre_norm(attention, Moe::new(l, hidden, glu, softmax(&c, true)))
    })
    .boxed()
}

/// Windows of this many tokens, whatever the file says.
const SMALL_WINDOW: usize = 4096;

fn smallthinker(w: &Weights) -> Loaded {
    let mut c = Config::read(w, NormKind::Rms)?;
    let windows = config::windows_but_first(w, c.n_layers, None, 4)?;
    c.windows = windows.iter().map(|w| w.map(|_| SMALL_WINDOW)).collect();
    let always = c.windows.iter().all(Option::is_none) || c.n_layers == 4;
    let rope = Rope::new(&c, RopePairs::Half);
    let hidden = config::expert_width(w, &c)?;
    let choice = op::Router { normalise: true, scale: 1.0, ..by_keys(w, &c, Gating::Sigmoid)? };
    Decoder::new(w, &c, |l| {
        let mut attention = l.attention();
        attention.rope = (always || l.i % 4 != 0).then(|| rope.clone());
        Chain(vec![Box::new(ChosenBefore {
            route: Route::new(l, choice).biased(l),
            attention: Residual::pre(l.mixer.norm("attn_norm", c.width), attention),
            norm: l.ffn.norm("ffn_norm", c.width),
            experts: Experts::new(&l.experts, c.n_experts, c.width, hidden, ActKind::Relu),
        })])
    })
    .boxed()
}

/// A layer whose experts are chosen by what enters it.
struct ChosenBefore {
    route: Route,
    attention: Residual,
    norm: Norm,
    experts: Experts,
}

impl Block for ChosenBefore {
    fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let [ids, weights] = self.route.choose(g, x);
        let x = self.attention.forward(g, x, step);
        let f = self.norm.apply(g, x);
        let rows = one_for_all(g, f);
        let y = self.experts.apply(g, rows, ids);
        let y = g.push(op::MoeSum, &[y, weights]);
        g.push(op::Add, &[y, x])
    }
}
