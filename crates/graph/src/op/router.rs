//! The choice of experts.

use firth_quant::Dtype;

use super::{OpDef, f32s};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;
use crate::shape::Shape;

/// How logits become the score and the weight of an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gating {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each.
    Sigmoid,
    /// The logit itself, and softmax over the chosen.
    SoftmaxOfChosen,
    /// `sqrt(softplus)` of each.
    RootSoftplus,
}

/// Chooses the `n_used` experts of the largest score, ties to the lowest number, in descending order.
///
/// Shapes: `logits: [experts, T]` f32, optionally `bias: [experts]` f32, which is added to the scores for the choice
/// alone; results `ids: [n_used, T]` i32 and `weights: [n_used, T]` f32. With groups (runs of `experts / n_groups`)
/// only the `n_groups_used` groups with the largest sum of their two best scores take part. With `normalise` the
/// chosen weights are divided by their sum (at least 2^-14), then all are multiplied by `scale`. Softmax subtracts
/// the maximum; its sum runs over experts ascending. Without bias and groups softmax and sigmoid choose by logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    /// How logits become weights.
    pub gating: Gating,
    /// Experts per token.
    pub n_used: usize,
    /// Whether the chosen weights are made to sum to 1.
    pub normalise: bool,
    /// Groups that experts are chosen by, 1 for none.
    pub n_groups: usize,
    /// Groups that take part.
    pub n_groups_used: usize,
    /// Factor of the weights, 1 for none.
    pub scale: f32,
}

impl Default for Router {
    /// One expert by softmax, its weight made 1.
    fn default() -> Self {
        Router { gating: Gating::Softmax, n_used: 1, normalise: true, n_groups: 1, n_groups_used: 1, scale: 1.0 }
    }
}

/// The least sum that chosen weights are divided by.
pub const MIN_WEIGHT_SUM: f32 = 6.103_515_6e-5;

impl OpDef for Router {
    const NAME: &'static str = "router";
    const TOLERANCE: f64 = 1e-11;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        if !(1..=2).contains(&inputs.len()) {
            return Err(ShapeError::Arity { expected: "1 or 2", found: inputs.len() });
        }
        let logits = f32s(inputs, 0)?;
        let n = logits.shape.constant(0).unwrap_or(0);
        if self.n_used == 0 || self.n_used > n {
            return Err(ShapeError::Param(format!("{} of {n} experts used", self.n_used)));
        }
        if inputs.len() == 2 {
            super::expect_shape(1, f32s(inputs, 1)?.shape, Shape::fixed(&[n]))?;
        }
        let (groups, used) = (self.n_groups, self.n_groups_used);
        if groups == 0 || !n.is_multiple_of(groups) || used == 0 || used > groups {
            return Err(ShapeError::Param(format!("{used} of {groups} groups of {n} experts")));
        }
        if self.n_used > n / groups * used {
            return Err(ShapeError::Param(format!("{} experts out of {used} groups of {}", self.n_used, n / groups)));
        }
        let shape = Shape::new([self.n_used.into(), logits.shape.axes()[1]]);
        Ok(vec![super::dense(g, Dtype::I32, shape)?, super::dense(g, Dtype::F32, shape)?])
    }

    fn reference(&self, call: &mut RefCall) {
        let logits = &call.inputs[0];
        let [ids, weights] = &mut call.outputs[..] else { unreachable!("inferred") };
        for t in 0..logits.n_rows() {
            let p = self.probabilities(logits.row(t));
            let mut score: Vec<f64> = if self.chooses_by_logit(call.inputs.len() == 2) {
                logits.row(t).iter().map(|v| f64::from(*v)).collect()
            } else {
                p.clone()
            };
            if let Some(bias) = call.inputs.get(1) {
                score.iter_mut().zip(&bias.f).for_each(|(s, b)| *s += f64::from(*b));
            }
            self.drop_groups(&mut score);
            let mut chosen: Vec<usize> = (0..score.len()).collect();
            chosen.sort_by(|&a, &b| score[b].total_cmp(&score[a]).then(a.cmp(&b)));
            chosen.truncate(self.n_used);
            let w = self.weigh(&p, &chosen);
            for (u, (i, w)) in chosen.iter().zip(w).enumerate() {
                ids.i[t * self.n_used + u] = *i as i32;
                weights.f[t * self.n_used + u] = w as f32;
            }
        }
    }
}

impl Router {
    /// Whether the order of logits is the order of the scores: softmax and sigmoid keep it, but round.
    pub fn chooses_by_logit(&self, bias: bool) -> bool {
        match self.gating {
            Gating::Softmax | Gating::Sigmoid => !bias && self.n_groups == 1,
            Gating::SoftmaxOfChosen => true,
            Gating::RootSoftplus => false,
        }
    }

    /// The weights of the chosen from the probabilities of all.
    pub(super) fn weigh(&self, p: &[f64], chosen: &[usize]) -> Vec<f64> {
        let mut w: Vec<f64> = chosen.iter().map(|&i| p[i]).collect();
        if self.gating == Gating::SoftmaxOfChosen {
            w = super::softmax::of(&w);
        }
        let sum = w.iter().sum::<f64>().max(f64::from(MIN_WEIGHT_SUM));
        let by = f64::from(self.scale) / if self.normalise { sum } else { 1.0 };
        w.iter_mut().for_each(|w| *w *= by);
        w
    }

    /// The weight of each expert, before any is chosen.
    pub(super) fn probabilities(&self, logits: &[f32]) -> Vec<f64> {
        let wide: Vec<f64> = logits.iter().map(|v| f64::from(*v)).collect();
        let each = |kind: super::ActKind| wide.iter().map(|v| kind.exact(*v)).collect::<Vec<f64>>();
        match self.gating {
            Gating::Softmax => super::softmax::of(&wide),
            Gating::Sigmoid => each(super::ActKind::Sigmoid),
            Gating::SoftmaxOfChosen => wide,
            Gating::RootSoftplus => each(super::ActKind::Softplus).iter().map(|v| v.sqrt()).collect(),
        }
    }

    /// Takes the scores of the groups that do not take part to -infinity.
    fn drop_groups(&self, score: &mut [f64]) {
        let width = score.len() / self.n_groups;
        let best_two = |g: &[f64]| {
            let mut g = g.to_vec();
            g.sort_by(|a, b| b.total_cmp(a));
            g.iter().take(2).sum::<f64>()
        };
        let sums: Vec<f64> = score.chunks(width).map(best_two).collect();
        let mut order: Vec<usize> = (0..self.n_groups).collect();
        order.sort_by(|&a, &b| sums[b].total_cmp(&sums[a]).then(a.cmp(&b)));
        for &g in &order[self.n_groups_used..] {
            score[g * width..(g + 1) * width].fill(f64::NEG_INFINITY);
        }
    }
}
