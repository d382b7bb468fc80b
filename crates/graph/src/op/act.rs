//! Activations of one operand.

use super::OpDef;
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;

/// Which function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActKind {
    /// `x * sigmoid(x)`.
    Silu,
    /// `0.5 x (1 + tanh(0.7978845608 (x + 0.044715 x^3)))`.
    GeluTanh,
    /// `0.5 x (1 + erf(x / sqrt 2))`.
    GeluErf,
    /// `x * sigmoid(1.702 x)`.
    GeluQuick,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)^2`.
    ReluSquared,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// `tanh x`.
    Tanh,
    /// `ln(1 + e^x)`, and `x` above 20.
    Softplus,
    /// `e^x`.
    Exp,
    /// `sign(x) sqrt(max(|x|, 1e-6))`, and 0 at 0.
    SignedRoot,
}

impl ActKind {
    /// All kinds.
    pub const ALL: [ActKind; 11] = [
        ActKind::Silu,
        ActKind::GeluTanh,
        ActKind::GeluErf,
        ActKind::GeluQuick,
        ActKind::Relu,
        ActKind::ReluSquared,
        ActKind::Sigmoid,
        ActKind::Tanh,
        ActKind::Softplus,
        ActKind::Exp,
        ActKind::SignedRoot,
    ];

    /// The function in f64.
    pub fn exact(self, x: f64) -> f64 {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        // `f64::max` would hide a NaN.
        let positive = |x: f64| if x < 0.0 { 0.0 } else { x };
        match self {
            ActKind::Silu => x * sigmoid(x),
            ActKind::GeluTanh => 0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044715 * x * x * x)).tanh()),
            ActKind::GeluErf => 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2)),
            ActKind::GeluQuick => x * sigmoid(1.702 * x),
            ActKind::Relu => positive(x),
            ActKind::ReluSquared => positive(x) * positive(x),
            ActKind::Sigmoid => sigmoid(x),
            ActKind::Tanh => x.tanh(),
            ActKind::Softplus if x > 20.0 => x,
            ActKind::Softplus => x.exp().ln_1p(),
            ActKind::Exp => x.exp(),
            ActKind::SignedRoot if x == 0.0 || x.is_nan() => x,
            ActKind::SignedRoot => x.abs().max(1e-6).sqrt().copysign(x),
        }
    }
}

/// erf by its Maclaurin series up to 3, by the continued fraction of erfc beyond.
fn erf(x: f64) -> f64 {
    let a = x.abs();
    let value = if a < 3.0 {
        let mut term = a;
        let mut sum = a;
        for n in 1..80 {
            term *= -a * a / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    } else {
        let mut tail = a;
        for n in (1..60).rev() {
            tail = a + f64::from(n) / 2.0 / tail;
        }
        1.0 - (-a * a).exp() / (tail * std::f64::consts::PI.sqrt())
    };
    value.copysign(x)
}

/// `y = f(x)`, element by element.
///
/// Shapes: `x` any, `y` the same; f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Act {
    /// The function.
    pub kind: ActKind,
}

impl OpDef for Act {
    const NAME: &'static str = "act";
    const TOLERANCE: f64 = 1e-11;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        super::same_shape(inputs, g)
    }

    fn reference(&self, call: &mut RefCall) {
        for (y, x) in call.outputs[0].f.iter_mut().zip(&call.inputs[0].f) {
            *y = self.kind.exact(f64::from(*x)) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn erf_meets_known_values() {
        for (x, y) in [(0.5, 0.5204998778130465), (2.0, 0.9953222650189527), (3.5, 0.9999992569016276)] {
            assert!((super::erf(x) - y).abs() < 1e-14, "erf({x}) = {}", super::erf(x));
        }
    }
}
