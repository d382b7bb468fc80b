//! MiniMax-Text-01: lightning attention with softmax attention on every eighth layer, experts on all.
//!
//! Layer:  n = norm(x);  x = mixer(n) + r n;  n = norm(x);  x = experts(n) + r n
//! Mixer:  linear attention with a fixed decay per head and layer, gated; or attention with grouped heads.
//! Rope:   half-split pairs over part of the head, softmax attention alone.
//! Source: MiniMax 2025, arXiv 2501.08313; transformers `modeling_minimax.py`; GGUF keys `minimax-01.*`.

use firth_graph::math::exp2;
use firth_graph::{ActKind, Graph, Node, RopePairs, op};

use crate::StepNodes;
use crate::blocks::{
    Block, Chain, Decoder, Gate, Layer, Linear, Moe, Norm, NormKind, Rope, SlotState, softmax,
};
use crate::config::{self, Config};
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

/// Registry entry.
pub const ARCH: Arch = Arch { name: "minimax-01", load };

fn load(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let scale = config::float(w, "residual_scale", 1.0)? as f32;
    let linear = config::recurrent_layers(w, &c, 8)?;
    let rope = Rope::new(&c, RopePairs::Half);
    Decoder::new(w, &c, |l| {
        let mixer: Box<dyn Block> = match linear[l.i] {
            true => Box::new(Lightning::new(l)),
            false => Box::new(l.attention().rope(&rope)),
        };
        let moe = Moe::new(l, c.hidden[l.i], ActKind::Silu, softmax(&c, true));
        let half = |norm, block| NormedResidual { norm, block, scale };
        Chain::of(
            half(l.mixer.norm("attn_norm", c.width), mixer),
            half(l.ffn.norm("ffn_norm", c.width), Box::new(moe)),
        )
    })
    .boxed()
}

/// `n = norm(x)`, then `block(n) + scale n`.
struct NormedResidual {
    norm: Norm,
    block: Box<dyn Block>,
    scale: f32,
}

impl Block for NormedResidual {
    fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let n = self.norm.apply(g, x);
        let h = self.block.forward(g, n, step);
        let n = g.push(op::Scale { by: self.scale }, &[n]);
        g.push(op::Add, &[h, n])
    }
}

/// Linear attention: `qkv = silu(W x)`, a decay per head, a norm over all heads, a sigmoid gate.
struct Lightning {
    dim: usize,
    heads: usize,
    qkv: Linear,
    decay: Vec<f32>,
    state: SlotState,
    norm: Norm,
    gate: Gate,
    out: Linear,
}

impl Lightning {
    fn new(l: &Layer) -> Self {
        let (m, d, heads) = (&l.mixer, l.c.key_dim, l.c.heads[l.i]);
        let linear = |name: &str, n_in, n_out| m.linear(name, n_in, n_out);
        Lightning {
            dim: d,
            heads,
            qkv: linear("attn_qkv", l.c.width, 3 * d * heads),
            decay: (0..heads).map(|h| decay(h, heads, l.i, l.c.n_layers)).collect(),
            state: SlotState::new(l, "rec"),
            norm: m.norm("attn_norm_2", d * heads),
            gate: Gate::sigmoid(linear("attn_gate", l.c.width, d * heads)),
            out: linear("attn_output", d * heads, l.c.width),
        }
    }
}

/// `exp(-slope)` with ALiBi's slopes, smaller from layer to layer.
fn decay(head: usize, heads: usize, layer: usize, layers: usize) -> f32 {
    let slope = exp2(-8.0 * (head + 1) as f64 / heads as f64);
    let depth = layer as f64 / (layers - 1).max(1) as f64;
    exp2(-slope * (1.0 - depth + 1e-5) * std::f64::consts::LOG2_E) as f32
}

impl Block for Lightning {
    fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let (d, heads) = (self.dim, self.heads);
        let qkv = self.qkv.apply(g, x);
        let qkv = g.push(op::Act { kind: ActKind::Silu }, &[qkv]);
        let qkv = g.split_heads(qkv, 3 * d);
        let [q, k, v] = [0, d, 2 * d].map(|at| g.slice(qkv, at, d));
        let state = self.state.recurrence(g, [d, d, heads], 2 * d * heads, step);
        let attention = op::LinearAttention { decay: self.decay.clone() };
        let [o, _] = g.push_n(attention, &[state, q, k, v, step.seqs, step.slots()]);
        let o = g.merge_heads(o);
        let o = self.norm.apply(g, o);
        let gate = self.gate.rows(g, x, 1);
        let gate = g.merge_heads(gate);
        let y = g.push(op::Mul, &[o, gate]);
        self.out.apply(g, y)
    }
}
