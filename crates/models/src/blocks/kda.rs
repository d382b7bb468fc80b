//! Kimi delta attention: a delta net whose decay is per key dim, with a convolution each for queries, keys and
//! values. Source: Kimi Team 2025, arXiv 2510.26692.

use firth_graph::{ActKind, Graph, Node, op};

use crate::StepNodes;
use crate::blocks::{Block, CausalConv, Chain, Layer, Linear, Norm, SlotState};
use crate::config;
use crate::error::ModelError;
use crate::weights::{Tensor, Weights};

/// Two products one after the other, `name_a {width, dim}` and `name_b {dim, heads * dim}`.
pub fn low_rank(l: &Layer, s: &KdaShape, name: &str) -> Chain {
    let half = |half, n_in, n_out| l.mixer.linear(&format!("{name}_{half}"), n_in, n_out);
    Chain::of(half("a", l.c.width, s.dim), half("b", s.dim, s.inner()))
}

/// Sizes of Kimi delta attention.
#[derive(Clone, Copy, Debug)]
pub struct KdaShape {
    /// Taps of the convolutions.
    pub kernel: usize,
    /// Numbers of a query, key and value.
    pub dim: usize,
    /// Heads.
    pub heads: usize,
}

impl KdaShape {
    /// Reads the keys `ssm.conv_kernel` and `kda.head_dim`; heads as attention has them.
    pub fn read(w: &Weights, heads: usize) -> Result<Self, ModelError> {
        let size = |name: &str| config::extent(w, name, 1, 1 << 16);
        Ok(KdaShape { kernel: size("ssm.conv_kernel")?, dim: size("kda.head_dim")?, heads })
    }

    /// All heads' numbers.
    pub fn inner(&self) -> usize {
        self.dim * self.heads
    }
}

/// How projected numbers become the logarithm of a decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decay {
    /// `a softplus(x)`, `a` negative.
    Softplus,
    /// `bound sigmoid(sign a x)`: `sign` is -1 where the file stores `a` negative.
    Bounded {
        /// The least logarithm, below 0.
        bound: f32,
        /// Of the stored factor.
        sign: f32,
    },
}

impl Decay {
    /// Bounded where the file gives `kda.gate_lower_bound`, by a factor stored negative; else by softplus.
    pub fn read(w: &Weights) -> Result<Self, ModelError> {
        Ok(match w.metadata().f32(&w.key("kda.gate_lower_bound"))? {
            Some(bound) if bound.is_finite() => Decay::Bounded { bound, sign: -1.0 },
            _ => Decay::Softplus,
        })
    }
}

/// One layer of Kimi delta attention.
pub struct Kda {
    shape: KdaShape,
    /// Queries, keys, values.
    qkv: [(Linear, CausalConv); 3],
    beta: Linear,
    forget: Chain,
    dt: Tensor,
    factor: Tensor,
    decay: Decay,
    gate: Chain,
    norm: Norm,
    state: SlotState,
    /// Added to the square of a query's or key's length.
    pub unit_eps: f32,
    out: Linear,
}

impl Kda {
    /// `attn_q/k/v` (their biases play no part) with `ssm_conv1d_q/k/v`, `ssm_beta`, `ssm_dt.bias`, `ssm_a`,
    /// `ssm_norm`, `attn_output`; `forget` and `gate` project to all heads' numbers.
    pub fn new(l: &Layer, shape: KdaShape, forget: Chain, gate: Chain, decay: Decay) -> Self {
        let (m, n, width) = (&l.mixer, shape.inner(), l.c.width);
        let one = |name: &str| {
            let conv =
                CausalConv::new(l, &format!("conv_{name}"), &format!("ssm_conv1d_{name}"), shape.kernel, n);
            (m.linear(&format!("attn_{name}"), width, n).unbiased(), conv)
        };
        Kda {
            shape,
            qkv: ["q", "k", "v"].map(one),
            beta: m.linear("ssm_beta", width, shape.heads),
            forget,
            dt: m.table("ssm_dt.bias", &[n]),
            factor: m.table("ssm_a", &[1, shape.heads]),
            decay,
            gate,
            norm: m.norm("ssm_norm", shape.dim),
            state: SlotState::new(l, "rec"),
            unit_eps: l.c.norm.eps,
            out: m.linear("attn_output", n, width),
        }
    }

    /// `[dim, heads, T]`: the logarithm of the decay per key dim.
    fn log_decay(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let f = self.forget.forward(g, x, step);
        let dt = self.dt.node(g);
        let f = g.push(op::Add, &[f, dt]);
        let mut f = g.split_heads(f, self.shape.dim);
        let a = self.factor.node(g);
        match self.decay {
            Decay::Softplus => {
                f = g.push(op::Act { kind: ActKind::Softplus }, &[f]);
                g.push(op::Mul, &[f, a])
            }
            Decay::Bounded { bound, sign } => {
                f = g.push(op::Mul, &[f, a]);
                if sign != 1.0 {
                    f = g.push(op::Scale { by: sign }, &[f]);
                }
                f = g.push(op::Act { kind: ActKind::Sigmoid }, &[f]);
                g.push(op::Scale { by: bound }, &[f])
            }
        }
    }
}

impl Block for Kda {
    fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let s = &self.shape;
        let [q, k, v] = [0, 1, 2].map(|i| {
            let (project, conv) = &self.qkv[i];
            let rows = project.apply(g, x);
            let rows = conv.apply(g, rows, step);
            g.split_heads(rows, s.dim)
        });
        let unit = op::L2Norm { eps: self.unit_eps };
        let (q, k) = (g.push(unit, &[q]), g.push(unit, &[k]));
        let beta = self.beta.apply(g, x);
        let beta = g.push(op::Act { kind: ActKind::Sigmoid }, &[beta]);
        let beta = g.split_heads(beta, 1);
        let decay = self.log_decay(g, x, step);
        let dims =
            op::DeltaDims { key: s.dim, value: s.dim, key_heads: s.heads, heads: s.heads, decay: s.dim };
        let state = self.state.recurrence(g, [s.dim, s.dim, s.heads], dims.log_row(), step);
        let delta = op::GatedDelta { grouped: false };
        let [o, _] = g.push_n(delta, &[state, q, k, v, decay, beta, step.seqs, step.slots()]);
        let o = self.norm.apply(g, o);
        let z = self.gate.forward(g, x, step);
        let z = g.split_heads(z, s.dim);
        let y = g.push(op::GatedAct { kind: ActKind::Sigmoid }, &[z, o]);
        let y = g.merge_heads(y);
        self.out.apply(g, y)
    }
}
