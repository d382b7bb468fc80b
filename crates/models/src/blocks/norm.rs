//! Norms with their weights.

use firth_graph::{Graph, Node, Part, op};

use crate::StepNodes;
use crate::blocks::Block;
use crate::error::ModelError;
use crate::weights::{Tensor, Weights};

/// Which norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// Root mean square.
    Rms,
    /// Mean and variance.
    Layer,
}

/// A norm with its epsilon.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormSpec {
    /// Which.
    pub kind: NormKind,
    /// Added under the root.
    pub eps: f32,
}

impl NormSpec {
    /// With the file's epsilon, `attention.layer_norm_rms_epsilon` or `attention.layer_norm_epsilon`.
    pub fn read(w: &Weights, kind: NormKind) -> Result<Self, ModelError> {
        let key = w.key(match kind {
            NormKind::Rms => "attention.layer_norm_rms_epsilon",
            NormKind::Layer => "attention.layer_norm_epsilon",
        });
        let eps = w.metadata().require_f32(&key)?;
        match eps.is_finite() && eps >= 0.0 {
            true => Ok(NormSpec { kind, eps }),
            false => Err(ModelError::value(key, eps, "finite and not negative")),
        }
    }

    /// Rows of `[n, …]` normalised, without a weight.
    pub fn forward(&self, g: &mut Graph, x: Node) -> Node {
        match self.kind {
            NormKind::Rms => g.push(op::RmsNorm { eps: self.eps }, &[x]),
            NormKind::Layer => g.push(op::LayerNorm { eps: self.eps }, &[x]),
        }
    }
}

/// A norm, times a weight, plus a bias.
#[derive(Clone, Debug)]
pub struct Norm {
    /// Which norm.
    pub spec: NormSpec,
    weight: Option<Tensor>,
    bias: Option<Tensor>,
}

impl Norm {
    /// `name.weight {shape}` and, where the file has it, `name.bias`. A shape `{d, heads}` gives every head its
    /// own weights.
    pub fn new(w: &Weights, name: &str, shape: &[usize], spec: NormSpec, part: Part) -> Self {
        let bias = format!("{name}.bias");
        Norm {
            spec,
            weight: Some(w.table(&format!("{name}.weight"), shape, part)),
            bias: w.has(&bias).then(|| w.table(&bias, shape, part)),
        }
    }

    /// With a weight of any name.
    pub fn of(weight: Tensor, spec: NormSpec) -> Self {
        Norm { spec, weight: Some(weight), bias: None }
    }

    /// Without a weight.
    pub fn bare(spec: NormSpec) -> Self {
        Norm { spec, weight: None, bias: None }
    }

    /// Normalises rows of `[n, …]`: hidden rows, or each head of `[d, heads, T]`.
    pub fn apply(&self, g: &mut Graph, x: Node) -> Node {
        let mut y = self.spec.forward(g, x);
        if let Some(weight) = &self.weight {
            let weight = weight.node(g);
            y = g.push(op::Mul, &[y, weight]);
        }
        if let Some(bias) = &self.bias {
            let bias = bias.node(g);
            y = g.push(op::Add, &[y, bias]);
        }
        y
    }
}

impl Block for Norm {
    fn forward(&self, g: &mut Graph, x: Node, _: &StepNodes) -> Node {
        self.apply(g, x)
    }
}
