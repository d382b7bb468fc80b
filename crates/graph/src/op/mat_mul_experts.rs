//! The product with chosen experts' weights.

use super::{OpDef, exactly, f32s, i32s};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;
use crate::shape::{Extent, Shape};

/// `y[:, u, t] = w[:, :, ids[u, t]] x[:, u, t]`.
///
/// Shapes: `w: [k, n, experts]`, `x: [k, U, T]` or `[k, 1, T]` (one row for all experts), `ids: [U, T]` i32
/// below `experts`, `y: [n, U, T]` f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MatMulExperts;

impl OpDef for MatMulExperts {
    const NAME: &'static str = "mat_mul_experts";
    const TOLERANCE: f64 = 5e-4;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        let [_, _, _] = exactly(inputs)?;
        let (x, ids) = (f32s(inputs, 1)?, i32s(inputs, 2)?);
        let (k, n) = super::mat_mul::matrix(inputs, 0)?;
        let [used, rows, ..] = ids.shape.axes();
        let [xk, xu, xr, _] = x.shape.axes();
        if xk != Extent::Const(k) || (xu != used && xu != Extent::Const(1)) || xr != rows {
            let expected = Shape::new([k.into(), used, rows]).to_string();
            return Err(ShapeError::Mismatch { operand: 1, expected, found: x.shape });
        }
        Ok(vec![super::dense(g, x.dtype, Shape::new([n.into(), used, rows]))?])
    }

    fn reference(&self, call: &mut RefCall) {
        let [w, x, ids] = &call.inputs[..] else { unreachable!("inferred") };
        let (used, shared) = (ids.dims[0], x.dims[1] == 1);
        for r in 0..used * ids.dims[1] {
            let from = if shared { r / used } else { r };
            super::mat_mul::product(w, ids.i[r] as usize, x.row(from), call.outputs[0].row_mut(r));
        }
    }
}
