//! States in slots: the last rows of a convolution or a head, the state of a recurrence.

use firth_graph::{Graph, Node, Part, RecurrentSpec, RingSpec, StateSpec, op};
use firth_quant::Dtype;

use crate::StepNodes;
use crate::blocks::Layer;
use crate::weights::Tensor;

/// A causal convolution over each channel of a sequence's rows.
#[derive(Clone, Debug)]
pub struct CausalConv {
    state: SlotState,
    weight: Tensor,
    bias: Option<Tensor>,
    op: op::Conv,
}

impl CausalConv {
    /// `name.weight {kernel, channels}` and, where the file has it, `name.bias`; SiLU behind it.
    pub fn new(l: &Layer, state: &str, name: &str, kernel: usize, channels: usize) -> Self {
        let bias = format!("{name}.bias");
        CausalConv {
            state: SlotState::new(l, state),
            weight: l.mixer.table(&format!("{name}.weight"), &[kernel, channels]),
            bias: l.mixer.has(&bias).then(|| l.mixer.table(&bias, &[channels])),
            op: op::Conv { kernel, dilation: 1, silu: true },
        }
    }

    /// Without an activation.
    pub fn linear(mut self) -> Self {
        self.op.silu = false;
        self
    }

    /// With taps further apart.
    pub fn dilated(mut self, dilation: usize) -> Self {
        self.op.dilation = dilation;
        self
    }

    /// `[channels, T]` to `[channels, T]`.
    pub fn apply(&self, g: &mut Graph, x: Node, step: &StepNodes) -> Node {
        let channels = self.weight.shape[1];
        let ring = self.state.ring(g, channels, self.op.reach(), step);
        let mut inputs = vec![ring, x, self.weight.node(g)];
        inputs.extend(self.bias.as_ref().map(|b| b.node(g)));
        inputs.extend([step.seqs, step.slots()]);
        let [y, _] = g.push_n(self.op, &inputs);
        y
    }
}

/// The name and the place of a state in slots.
#[derive(Clone, Debug)]
pub struct SlotState {
    name: String,
    part: Part,
}

impl SlotState {
    /// `blk.i.name`, placed with the layer's mixer.
    pub fn new(l: &Layer, name: &str) -> Self {
        l.states.needs_slots();
        SlotState { name: format!("blk.{}.{name}", l.i), part: Part::Mixer(l.i as u32) }
    }

    /// A ring of rows of `width` that looks back `reach` rows.
    pub fn ring(&self, g: &mut Graph, width: usize, reach: usize, step: &StepNodes) -> Node {
        self.ring_of(g, Dtype::F32, width, reach, step)
    }

    /// As [`SlotState::ring`], of F32 or I32.
    pub fn ring_of(&self, g: &mut Graph, dtype: Dtype, width: usize, reach: usize, step: &StepNodes) -> Node {
        let rows = (reach + step.options.draft).max(1);
        let spec = RingSpec { width, rows, dtype };
        g.state(self.name.clone(), StateSpec::Ring(spec), self.part)
    }

    /// A recurrence with this base and log row.
    pub fn recurrence(&self, g: &mut Graph, base: [usize; 3], log_row: usize, step: &StepNodes) -> Node {
        let spec = RecurrentSpec { base, log_row, log_rows: step.options.draft };
        g.state(self.name.clone(), StateSpec::Recurrent(spec), self.part)
    }
}
