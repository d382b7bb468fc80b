//! PLaMo 2: Mamba with heads, and attention, with norms before and after each half.
//!
//! Layer:  x += norm(mixer(norm(x)));  x += norm(mlp(norm(x)))
//! Mixer:  Mamba-2's scan over a projection that holds each head's gate and input together, with step, input and
//!         output projected and normed as in Jamba; or attention with norms per head, scaled by the value's size.
//! Rope:   half-split pairs over the whole head.
//! Source: pfnet `modeling_plamo.py`; GGUF keys `plamo2.*`. Some norms' tensors have no suffix.

use firth_graph::{ActKind, Graph, Node, RopePairs, op};

use crate::StepNodes;
use crate::blocks::{
    Block, CausalConv, Chain, Decoder, Layer, Linear, MambaShape, Mlp, Norm, NormKind, QkNorm, Residual,
    Rope, StateSpace,
};
use crate::config::Config;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "plamo2", load };

fn load(w: &Weights) -> Loaded {
    let mut c = Config::read(w, NormKind::Rms)?;
    // Files that start with a layer without attention say 0.
    c.rope.n_rot = c.key_dim;
    let shape = MambaShape { groups: 1, ..MambaShape::read(w)? };
    let rope = Rope::new(&c, RopePairs::Half);
    Decoder::new(w, &c, |l| {
        let mixer: Box<dyn Block> = match c.kv_heads[l.i] {
            0 => Box::new(PlamoMamba::new(l, shape)),
            _ => {
                let norms = QkNorm::Head(QkNorm::own_heads(l));
                let mut attention = l.attention().qk_norm(norms).rope(&rope);
                attention.scores.scale = 1.0 / (c.value_dim as f32).sqrt();
                Box::new(attention)
            }
        };
        let mlp = Mlp::merged(&l.ffn, "", c.width, c.hidden[l.i], ActKind::Silu);
        Chain::of(
            Residual::pre(l.mixer.norm("attn_norm", c.width), mixer).post(bare(
                l,
                "post_attention_norm",
                c.width,
            )),
            Residual::pre(l.ffn.norm("ffn_norm", c.width), mlp).post(bare(l, "post_ffw_norm", c.width)),
        )
    })
    .boxed()
}

/// A norm whose tensor has no suffix.
fn bare(l: &Layer, name: &str, n: usize) -> Norm {
    Norm::of(l.mixer.table(name, &[n]), l.c.norm)
}

struct PlamoMamba {
    shape: MambaShape,
    rank: usize,
    input: Linear,
    conv: CausalConv,
    project: Linear,
    /// Of step, input and output.
    norms: [Norm; 3],
    step: Linear,
    space: StateSpace,
    out: Linear,
}

impl PlamoMamba {
    fn new(l: &Layer, shape: MambaShape) -> Self {
        let (m, s, width) = (&l.mixer, &shape, l.c.width);
        let rank = (width / 16).max(64);
        PlamoMamba {
            shape,
            rank,
            input: m.linear("ssm_in", width, 2 * s.inner),
            conv: CausalConv::new(l, "conv", "ssm_conv1d", s.kernel, s.inner),
            project: m.linear("ssm_x", s.inner, rank + 2 * s.state),
            norms: [("ssm_dt_norm", rank), ("ssm_b_norm", s.state), ("ssm_c_norm", s.state)]
                .map(|(name, n)| bare(l, name, n)),
            step: m.linear("ssm_dt", rank, s.rank),
            space: StateSpace::new(l, [s.state, s.inner / s.rank, s.rank, 1], 1),
            out: m.linear("ssm_out", s.inner, width),
        }
    }
}

impl Block for PlamoMamba {
    fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let (s, p) = (&self.shape, self.shape.inner / self.shape.rank);
        let both = self.input.apply(g, x);
        let both = g.split_heads(both, 2 * p);
        let (z, x) = (g.slice(both, 0, p), g.slice(both, p, p));
        let x = g.push(op::Copy, &[x]);
        let x = g.merge_heads(x);
        let x = self.conv.apply(g, x, step);
        let y = self.project.apply(g, x);
        let [dt, b, c] =
            [(2 * s.state, self.rank), (0, s.state), (s.state, s.state)].map(|(at, n)| g.slice(y, at, n));
        let [dt, b, c] = [(dt, 0), (b, 1), (c, 2)].map(|(part, i)| self.norms[i].apply(g, part));
        let dt = self.step.apply(g, dt);
        let y = self.space.apply(g, [x, dt, b, c], step);
        let y = g.push(op::GatedAct { kind: ActKind::Silu }, &[z, y]);
        let y = g.merge_heads(y);
        self.out.apply(g, y)
    }
}
