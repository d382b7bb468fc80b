//! The choice of experts.

use firth_quant::Dtype;

use super::{OpDef, f32s};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;
use crate::shape::Shape;

/// How logits become weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gating {
    /// Softmax over all experts.
    Softmax,
}

/// Chooses the `n_used` experts of the largest score, ties to the lowest number, in descending order.
///
/// Shapes: `logits: [experts, T]` f32; results `ids: [n_used, T]` i32 and `weights: [n_used, T]` f32. With
/// `normalise` the chosen weights are divided by their sum (at least 2^-14). Softmax subtracts the maximum;
/// its sum runs over experts ascending.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    /// How logits become weights.
    pub gating: Gating,
    /// Experts per token.
    pub n_used: usize,
    /// Whether the chosen weights are made to sum to 1.
    pub normalise: bool,
}

/// The least sum that chosen weights are divided by.
pub const MIN_WEIGHT_SUM: f32 = 6.103_515_6e-5;

impl OpDef for Router {
    const NAME: &'static str = "router";
    const TOLERANCE: f64 = 1e-11;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        let [_] = super::exactly(inputs)?;
        let logits = f32s(inputs, 0)?;
        let n = logits.shape.constant(0).unwrap_or(0);
        if self.n_used == 0 || self.n_used > n {
            return Err(ShapeError::Param(format!("{} of {n} experts used", self.n_used)));
        }
        let shape = Shape::new([self.n_used.into(), logits.shape.axes()[1]]);
        Ok(vec![super::dense(g, Dtype::I32, shape)?, super::dense(g, Dtype::F32, shape)?])
    }

    fn reference(&self, call: &mut RefCall) {
        let logits = &call.inputs[0];
        let [ids, weights] = &mut call.outputs[..] else { unreachable!("inferred") };
        for t in 0..logits.n_rows() {
            let row: Vec<f64> = logits.row(t).iter().map(|v| f64::from(*v)).collect();
            let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let e: Vec<f64> = row.iter().map(|v| (v - max).exp()).collect();
            let sum: f64 = e.iter().sum();
            let mut order: Vec<usize> = (0..row.len()).collect();
            order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
            let chosen: f64 = order[..self.n_used].iter().map(|&i| e[i] / sum).sum();
            let by = if self.normalise { chosen.max(f64::from(MIN_WEIGHT_SUM)) } else { 1.0 };
            for (u, &i) in order[..self.n_used].iter().enumerate() {
                ids.i[t * self.n_used + u] = i as i32;
                weights.f[t * self.n_used + u] = (e[i] / sum / by) as f32;
            }
        }
    }
}
