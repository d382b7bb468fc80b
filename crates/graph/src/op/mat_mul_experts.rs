//! The product with chosen experts' weights.

use super::{OpDef, f32s, i32s, tensor};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;
use crate::shape::{Extent, Shape};

/// `y[:, u, t] = w[:, :, ids[u, t]] x[:, u, t]`; without `ids` row `u` meets matrix `u` (a product per head).
///
/// Shapes: `w: [k, n, experts]`, `x: [k, U, T]` or `[k, 1, T]` (one row for all experts), `ids: [U, T]` i32
/// below `experts`, or left out with `U` rows for as many matrices; `y: [n, U, T]` f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MatMulExperts;

impl OpDef for MatMulExperts {
    const NAME: &'static str = "mat_mul_experts";
    const TOLERANCE: f64 = 5e-4;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        if !(2..=3).contains(&inputs.len()) {
            return Err(ShapeError::Arity { expected: "2 or 3", found: inputs.len() });
        }
        let (k, n) = super::mat_mul::matrix(inputs, 0)?;
        let x = f32s(inputs, 1)?;
        let [xk, xu, xr, _] = x.shape.axes();
        let [used, rows, ..] = match inputs.get(2) {
            Some(_) => i32s(inputs, 2)?.shape.axes(),
            None => [tensor(inputs, 0, &[], "a matrix")?.shape.axes()[2], xr, xr, xr],
        };
        if xk != Extent::Const(k) || (xu != used && xu != Extent::Const(1)) || xr != rows {
            let expected = Shape::new([k.into(), used, rows]).to_string();
            return Err(ShapeError::Mismatch { operand: 1, expected, found: x.shape });
        }
        Ok(vec![super::dense(g, x.dtype, Shape::new([n.into(), used, rows]))?])
    }

    fn reference(&self, call: &mut RefCall) {
        let (w, x, ids) = (&call.inputs[0], &call.inputs[1], call.inputs.get(2));
        let (used, shared) = (call.outputs[0].dims[1], x.dims[1] == 1);
        for r in 0..call.outputs[0].n_rows() {
            let from = if shared { r / used } else { r };
            let matrix = ids.map_or(r % used, |ids| ids.i[r] as usize);
            super::mat_mul::product(w, matrix, x.row(from), call.outputs[0].row_mut(r));
        }
    }
}
