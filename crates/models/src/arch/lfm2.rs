//! LFM2, dense and with experts: short convolutions between gates, with attention on some layers.
//!
//! Layer:  x += mixer(norm(x));  x += ffn(norm(x))
//! Mixer:  `b, c, v = in_proj(x)`; `out_proj(c * conv(b * v))`; or attention with norms of heads.
//! Rope:   half-split pairs.
//! Source: transformers `modeling_lfm2.py`; GGUF keys `lfm2.*`, `lfm2moe.*`. A layer without key heads is a
//! convolution; the final norm is called `token_embd_norm`.

use firth_graph::{Gating, Graph, Node, Part, RopePairs, op};

use crate::StepNodes;
use crate::blocks::{
    Block, CausalConv, Decoder, Embedding, FfnPlan, Head, Layer, Linear, Norm, NormKind, QkNorm, Rope, by,
};
use crate::config::{self, Config};
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entries.
pub const DENSE: Arch = Arch { name: "lfm2", load };
/// With experts.
pub const EXPERTS: Arch = Arch { name: "lfm2moe", load };

fn load(w: &Weights) -> Loaded {
    let mut c = Config::read(w, NormKind::Rms)?;
    let taps = config::extent(w, "shortconv.l_cache", 2, 1024)?;
    let window = config::optional(w, "attention.sliding_window", 0, u32::MAX as usize)?;
    c.windows = vec![(window > 0).then_some(window); c.n_layers];
    let ffn = FfnPlan::read(w, &c, by(&c, Gating::Sigmoid, true))?;
    let rope = Rope::new(&c, RopePairs::Half);
    let embed = Embedding::new(w, &c);
    let mut head = Head::bare(w, &c, &embed);
    head.norm = Some(Norm::new(w, "token_embd_norm", &[c.width], c.norm, Part::Head));
    Decoder::with(w, &c, embed, head, |l| {
        let mixer: Box<dyn Block> = match c.kv_heads[l.i] {
            0 => Box::new(ShortConv::new(l, taps)),
            _ => Box::new(l.attention().qk_norm(QkNorm::Head(QkNorm::heads(l))).rope(&rope)),
        };
        l.pre_norm(mixer, ffn.block(l))
    })
    .boxed()
}

/// A convolution of a few taps between two gates.
struct ShortConv {
    width: usize,
    input: Linear,
    conv: CausalConv,
    out: Linear,
}

impl ShortConv {
    fn new(l: &Layer, taps: usize) -> Self {
        let width = l.c.width;
        ShortConv {
            width,
            input: l.mixer.linear("shortconv.in_proj", width, 3 * width),
            conv: CausalConv::new(l, "conv", "shortconv.conv", taps, width).linear(),
            out: l.mixer.linear("shortconv.out_proj", width, width),
        }
    }
}

impl Block for ShortConv {
    fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let y = self.input.apply(g, x);
        let [b, c, v] = [0, 1, 2].map(|i| g.slice(y, i * self.width, self.width));
        let u = g.push(op::Mul, &[b, v]);
        let u = self.conv.apply(g, u, step);
        let y = g.push(op::Mul, &[c, u]);
        self.out.apply(g, y)
    }
}
