//! Selective state spaces: Mamba and Mamba-2. Source: Gu and Dao 2023, arXiv 2312.00752; Dao and Gu 2024,
//! arXiv 2405.21060.

use firth_graph::{ActKind, Graph, Node, op};

use crate::StepNodes;
use crate::blocks::{Block, CausalConv, Layer, Linear, Norm, SlotState};
use crate::config;
use crate::error::ModelError;
use crate::weights::{Tensor, Weights};

/// Sizes of a state space, from the keys `ssm.*`.
#[derive(Clone, Copy, Debug)]
pub struct MambaShape {
    /// Taps of the convolution.
    pub kernel: usize,
    /// Channels.
    pub inner: usize,
    /// Numbers of a channel's state.
    pub state: usize,
    /// Rank of the step's projection (Mamba), or heads (Mamba-2).
    pub rank: usize,
    /// Groups of heads that share the state's input and output (Mamba-2).
    pub groups: usize,
}

impl MambaShape {
    /// Reads the keys.
    pub fn read(w: &Weights) -> Result<Self, ModelError> {
        let size = |name: &str| config::extent(w, name, 1, 1 << 20);
        Ok(MambaShape {
            kernel: size("ssm.conv_kernel")?,
            inner: size("ssm.inner_size")?,
            state: size("ssm.state_size")?,
            rank: size("ssm.time_step_rank")?,
            groups: config::optional(w, "ssm.group_count", 1, 1 << 16)?,
        })
    }

    /// As [`MambaShape::read`], where the channels divide into heads and the heads into groups.
    pub fn of_heads(w: &Weights) -> Result<Self, ModelError> {
        let s = MambaShape::read(w)?;
        if s.inner % s.rank != 0 {
            let expected = format!("a multiple of ssm.time_step_rank, which is {}", s.rank);
            return Err(ModelError::value(w.key("ssm.inner_size"), s.inner, expected));
        }
        if s.groups == 0 || s.rank % s.groups != 0 {
            let expected = format!("a divisor of ssm.time_step_rank, which is {}", s.rank);
            return Err(ModelError::value(w.key("ssm.group_count"), s.groups, expected));
        }
        Ok(s)
    }

    /// Channels of a head.
    pub fn channels(&self) -> usize {
        self.inner / self.rank
    }
}

/// The recurrence with its decay, and the direct path of the input.
#[derive(Clone, Debug)]
pub struct StateSpace {
    state: SlotState,
    decay: Tensor,
    direct: Tensor,
    /// State numbers, channels of a head, heads, groups.
    dims: [usize; 4],
}

impl StateSpace {
    /// `ssm_a {decays, heads}`, `ssm_d {heads}`.
    pub fn new(l: &Layer, dims: [usize; 4], decays: usize) -> Self {
        StateSpace {
            state: SlotState::new(l, "rec"),
            decay: l.mixer.table("ssm_a", &[decays, dims[2]]),
            direct: l.mixer.table("ssm_d", &[1, dims[2]]),
            dims,
        }
    }

    /// `x: [inner, T]`, `dt: [heads, T]` with its bias, `b` and `c: [state * groups, T]` to `[channels, heads, T]`.
    pub fn apply(&self, g: &mut Graph, [x, dt, b, c]: [Node; 4], step: &StepNodes) -> Node {
        let [state, channels, heads, groups] = self.dims;
        let x = g.split_heads(x, channels);
        let (b, c) = (g.split_heads(b, state), g.split_heads(c, state));
        let decay = self.decay.node(g);
        let decays = self.decay.shape[0];
        let dims = op::ScanDims { state, channels, heads, groups, decays };
        let kept = self.state.recurrence(g, [state, channels, heads], dims.log_row(), step);
        let [y, _] = g.push_n(op::Scan, &[kept, x, dt, decay, b, c, step.seqs, step.slots()]);
        let direct = self.direct.node(g);
        let own = g.push(op::Mul, &[x, direct]);
        g.push(op::Add, &[y, own])
    }
}

/// How Mamba normalises what it projects its inputs to.
#[derive(Clone, Debug)]
pub enum InputNorms {
    /// Not at all.
    None,
    /// Step, input and output, each by its own.
    Each(Box<[Norm; 3]>),
}

/// One layer of Mamba: a state per channel, its step, input and output projected from the channels.
pub struct Mamba {
    shape: MambaShape,
    input: Linear,
    conv: CausalConv,
    project: Linear,
    norms: InputNorms,
    step: Linear,
    space: StateSpace,
    out: Linear,
}

impl Mamba {
    /// `ssm_in {width, 2 inner}`, `ssm_conv1d`, `ssm_x {inner, rank + 2 state}`, `ssm_dt {rank, inner}`, `ssm_a
    /// {state, inner}`, `ssm_d`, `ssm_out`.
    pub fn new(l: &Layer, shape: MambaShape, norms: InputNorms) -> Self {
        let (m, s, width) = (&l.mixer, &shape, l.c.width);
        Mamba {
            shape,
            input: m.linear("ssm_in", width, 2 * s.inner),
            conv: CausalConv::new(l, "conv", "ssm_conv1d", s.kernel, s.inner),
            project: m.linear("ssm_x", s.inner, s.rank + 2 * s.state),
            norms,
            step: m.linear("ssm_dt", s.rank, s.inner),
            space: StateSpace::new(l, [s.state, 1, s.inner, 1], s.state),
            out: m.linear("ssm_out", s.inner, width),
        }
    }
}

impl Block for Mamba {
    fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let s = &self.shape;
        let y = self.input.apply(g, x);
        let (x, z) = (g.slice(y, 0, s.inner), g.slice(y, s.inner, s.inner));
        let x = self.conv.apply(g, x, step);
        let y = self.project.apply(g, x);
        let mut parts =
            [(0, s.rank), (s.rank, s.state), (s.rank + s.state, s.state)].map(|(at, n)| g.slice(y, at, n));
        if let InputNorms::Each(norms) = &self.norms {
            for (part, norm) in parts.iter_mut().zip(norms.iter()) {
                *part = norm.apply(g, *part);
            }
        }
        let [dt, b, c] = parts;
        let dt = self.step.apply(g, dt);
        let y = self.space.apply(g, [x, dt, b, c], step);
        let y = g.merge_heads(y);
        let y = g.push(op::GatedAct { kind: ActKind::Silu }, &[z, y]);
        self.out.apply(g, y)
    }
}

/// One layer of Mamba-2: a decay per head, input and output per group of heads, all from one projection.
pub struct Mamba2 {
    shape: MambaShape,
    input: Linear,
    conv: CausalConv,
    step_bias: Tensor,
    space: StateSpace,
    norm: Option<Norm>,
    out: Linear,
}

impl Mamba2 {
    /// `ssm_in {width, 2 inner + 2 groups * state + heads}`, `ssm_conv1d`, `ssm_dt.bias`, `ssm_a {1, heads}`, `ssm_d`,
    /// where the file has it `ssm_norm {inner / groups, groups}`, `ssm_out`.
    pub fn new(l: &Layer, shape: MambaShape) -> Self {
        let (m, s, width) = (&l.mixer, &shape, l.c.width);
        let both = 2 * s.groups * s.state;
        Mamba2 {
            shape,
            input: m.linear("ssm_in", width, 2 * s.inner + both + s.rank),
            conv: CausalConv::new(l, "conv", "ssm_conv1d", s.kernel, s.inner + both),
            step_bias: m.table("ssm_dt.bias", &[s.rank]),
            space: StateSpace::new(l, [s.state, s.channels(), s.rank, s.groups], 1),
            norm: m.has("ssm_norm.weight").then(|| m.head_norm("ssm_norm", s.inner / s.groups, s.groups)),
            out: m.linear("ssm_out", s.inner, width),
        }
    }
}

impl Block for Mamba2 {
    fn forward(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let s = &self.shape;
        let shared = s.groups * s.state;
        let y = self.input.apply(g, x);
        let z = g.slice(y, 0, s.inner);
        let rows = g.slice(y, s.inner, s.inner + 2 * shared);
        let dt = g.slice(y, 2 * s.inner + 2 * shared, s.rank);
        let u = self.conv.apply(g, rows, step);
        let x = g.slice(u, 0, s.inner);
        let (b, c) = (g.slice(u, s.inner, shared), g.slice(u, s.inner + shared, shared));
        let bias = self.step_bias.node(g);
        let dt = g.push(op::Add, &[dt, bias]);
        let y = self.space.apply(g, [x, dt, b, c], step);
        let y = g.merge_heads(y);
        let mut y = g.push(op::GatedAct { kind: ActKind::Silu }, &[z, y]);
        if let Some(norm) = &self.norm {
            let groups = g.split_heads(y, s.inner / s.groups);
            let groups = norm.apply(g, groups);
            y = g.merge_heads(groups);
        }
        self.out.apply(g, y)
    }
}
