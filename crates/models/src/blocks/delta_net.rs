//! Gated delta net: linear attention whose state forgets by a decay and corrects what it holds.

use firth_graph::{ActKind, Graph, Node, op};

use crate::StepNodes;
use crate::blocks::{Block, CausalConv, Layer, Linear, Norm, SlotState};
use crate::config;
use crate::error::ModelError;
use crate::weights::{Tensor, Weights};

/// Sizes of a delta net, from the keys `ssm.*`.
#[derive(Clone, Copy, Debug)]
pub struct DeltaShape {
    /// Taps of the convolution.
    pub kernel: usize,
    /// Numbers of a key and of a value.
    pub dim: usize,
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values.
    pub heads: usize,
    /// Whether value heads that share a key follow one another, as in a checkpoint; else they alternate.
    pub grouped: bool,
}

impl DeltaShape {
    /// Reads and checks the keys.
    pub fn read(w: &Weights, grouped: bool) -> Result<Self, ModelError> {
        let size = |name: &str| config::extent(w, name, 1, 1 << 20);
        let s = DeltaShape {
            kernel: size("ssm.conv_kernel")?,
            dim: size("ssm.state_size")?,
            key_heads: size("ssm.group_count")?,
            heads: size("ssm.time_step_rank")?,
            grouped,
        };
        if !s.heads.is_multiple_of(s.key_heads) {
            let expected = format!("a multiple of ssm.group_count, which is {}", s.key_heads);
            return Err(ModelError::value(w.key("ssm.time_step_rank"), s.heads, expected));
        }
        let inner = size("ssm.inner_size")?;
        if inner != s.heads * s.dim {
            let expected = format!("{} heads of {}", s.heads, s.dim);
            return Err(ModelError::value(w.key("ssm.inner_size"), inner, expected));
        }
        Ok(s)
    }

    /// Rows of queries, or of keys, and of values.
    pub fn widths(&self) -> [usize; 2] {
        [self.dim * self.key_heads, self.dim * self.heads]
    }
}

/// The projections of normalised rows.
pub trait DeltaRows: Send + Sync {
    /// `qkv: [2 keys + values, T]`, the output gate `z: [values, T]`, and `beta` and `alpha: [heads, T]` before their
    /// functions.
    fn rows(&self, g: &mut Graph, x: Node) -> [Node; 4];
}

/// One layer's delta net.
pub struct DeltaNet {
    shape: DeltaShape,
    rows: Box<dyn DeltaRows>,
    conv: CausalConv,
    state: SlotState,
    dt: Tensor,
    decay: Tensor,
    norm: Norm,
    /// What the output gate goes through.
    pub gate: ActKind,
    out: Linear,
}

impl DeltaNet {
    /// `ssm_conv1d`, `ssm_dt.bias`, `ssm_a`, `ssm_norm`, `ssm_out` behind the projections `rows`.
    pub fn new(l: &Layer, shape: DeltaShape, rows: Box<dyn DeltaRows>) -> Self {
        let [keys, values] = shape.widths();
        DeltaNet {
            shape,
            rows,
            conv: CausalConv::new(l, "conv", "ssm_conv1d", shape.kernel, 2 * keys + values),
            state: SlotState::new(l, "rec"),
            dt: l.mixer.table("ssm_dt.bias", &[shape.heads]),
            decay: l.mixer.table("ssm_a", &[shape.heads]),
            norm: l.mixer.norm("ssm_norm", shape.dim),
            gate: ActKind::Silu,
            out: l.mixer.linear("ssm_out", values, l.c.width),
        }
    }

    /// `[1, heads, T]`: the logarithm of the decay, `a softplus(alpha + dt)`; `a` is negative.
    fn log_decay(&self, g: &mut Graph, alpha: Node) -> Node {
        let dt = self.dt.node(g);
        let x = g.push(op::Add, &[alpha, dt]);
        let x = g.push(op::Act { kind: ActKind::Softplus }, &[x]);
        let a = self.decay.node(g);
        let x = g.push(op::Mul, &[x, a]);
        g.split_heads(x, 1)
    }
}

impl Block for DeltaNet {
    fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let s = &self.shape;
        let [keys, values] = s.widths();
        let [qkv, z, beta, alpha] = self.rows.rows(g, x);
        let beta = g.push(op::Act { kind: ActKind::Sigmoid }, &[beta]);
        let beta = g.split_heads(beta, 1);
        let decay = self.log_decay(g, alpha);
        let u = self.conv.apply(g, qkv, step);
        let heads = |g: &mut Graph, start: usize, n: usize| {
            let rows = g.slice(u, start, n);
            g.split_heads(rows, s.dim)
        };
        let unit = op::L2Norm { eps: self.norm.spec.eps };
        let q = heads(g, 0, keys);
        let q = g.push(unit, &[q]);
        let k = heads(g, keys, keys);
        let k = g.push(unit, &[k]);
        let v = heads(g, 2 * keys, values);
        let dims =
            op::DeltaDims { key: s.dim, value: s.dim, key_heads: s.key_heads, heads: s.heads, decay: 1 };
        let state = self.state.recurrence(g, [s.dim, s.dim, s.heads], dims.log_row(), step);
        let delta = op::GatedDelta { grouped: s.grouped };
        let [o, _] = g.push_n(delta, &[state, q, k, v, decay, beta, step.seqs, step.slots()]);
        let o = self.norm.apply(g, o);
        let z = g.split_heads(z, s.dim);
        let y = g.push(op::GatedAct { kind: self.gate }, &[z, o]);
        let y = g.merge_heads(y);
        self.out.apply(g, y)
    }
}
