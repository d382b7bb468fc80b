//! The product with a weight.

use firth_quant::Dtype;

use super::{OpDef, exactly, f32s, tensor};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::{Array, RefCall};

/// `y[o] = sum_i w[i, o] x[i]` for each row of `x`.
///
/// Shapes: `w: [k, n]` of any float or block type, `x: [k, …]` f32, `y: [n, …]` f32. The form in which `x`
/// meets `w` belongs to `w`'s type (docs/numerics.md).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MatMul;

impl OpDef for MatMul {
    const NAME: &'static str = "mat_mul";
    /// Activations are rounded to 8 bits where the weight is quantised.
    const TOLERANCE: f64 = 5e-4;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        let [_, _] = exactly(inputs)?;
        let ((k, n), x) = (matrix(inputs, 0)?, f32s(inputs, 1)?);
        if x.shape.constant(0) != Some(k) {
            let expected = format!("[{k}, …]");
            return Err(ShapeError::Mismatch { operand: 1, expected, found: x.shape });
        }
        Ok(vec![super::dense(g, x.dtype, x.shape.with_axis0(n))?])
    }

    fn reference(&self, call: &mut RefCall) {
        let [w, x] = &call.inputs[..] else { unreachable!("inferred") };
        for r in 0..x.n_rows() {
            product(w, 0, x.row(r), call.outputs[0].row_mut(r));
        }
    }
}

/// Rows and columns of a weight matrix, or of each matrix of a stack: what can be widened to floats.
pub(super) fn matrix(inputs: &[Type], operand: usize) -> Result<(usize, usize), ShapeError> {
    const EXPECTED: &str = "a float or block type";
    let w = tensor(inputs, operand, &[], EXPECTED)?;
    if matches!(w.dtype, Dtype::I8 | Dtype::I16 | Dtype::I32 | Dtype::I64) {
        return Err(ShapeError::Dtype { operand, expected: EXPECTED, found: w.dtype.name().into() });
    }
    match (w.shape.constant(0), w.shape.constant(1)) {
        (Some(k), Some(n)) => Ok((k, n)),
        _ => Err(ShapeError::Mismatch { operand, expected: "[k, n]".into(), found: w.shape }),
    }
}

/// One row times matrix `e` of `w`, in f64.
pub(super) fn product(w: &Array, e: usize, x: &[f32], y: &mut [f32]) {
    let n = w.dims[1];
    for (o, y) in y.iter_mut().enumerate() {
        let row = w.row(e * n + o);
        *y = row.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>() as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{Embed, MatMulExperts, Op};
    use crate::{Extents, Node, Part, Shape, Sym, WeightSource};

    /// Why an op does not take a weight of a type.
    fn refusal(dtype: Dtype, op: Op, inputs: &dyn Fn(&mut Graph) -> Vec<Node>) -> Option<String> {
        let mut g = Graph::new(Extents { t: 2, o: 0, p: 0, s: 0 });
        let w = g.weight(WeightSource::File("w".into()), dtype, Shape::fixed(&[256, 4, 2]), Part::Head);
        let rest = inputs(&mut g);
        let y = g.push(op, &[&[w], &rest[..]].concat());
        g.output("y", y);
        g.finish().err().map(|e| e.to_string())
    }

    #[test]
    fn integers_are_no_weights() {
        let floats = |g: &mut Graph, name: &str, n| g.input(name, Dtype::F32, Shape::new([n, Sym::T.into()]));
        let ids = |g: &mut Graph| g.input("ids", Dtype::I32, Shape::new([1.into(), Sym::T.into()]));
        let tokens = |g: &mut Graph| g.input("tokens", Dtype::I32, Shape::new([Sym::T.into()]));
        let row = |g: &mut Graph| g.input("x", Dtype::F32, Shape::new([256.into(), 1.into(), Sym::T.into()]));
        let check = |dtype: Dtype, expected: bool| {
            let found = [
                refusal(dtype, MatMul.into(), &|g| vec![floats(g, "x", 256.into())]),
                refusal(dtype, MatMulExperts.into(), &|g| vec![row(g), ids(g)]),
                refusal(dtype, Embed { scale: 1.0 }.into(), &|g| vec![tokens(g), floats(g, "x", 256.into())]),
            ];
            for e in found {
                let named = |e: &String| e.contains("a float or block type") && e.contains(dtype.name());
                assert_eq!(e.is_none(), expected, "{}: {e:?}", dtype.name());
                assert!(e.iter().all(named), "{e:?}");
            }
        };
        [Dtype::I8, Dtype::I16, Dtype::I32, Dtype::I64].iter().for_each(|d| check(*d, false));
        [Dtype::F32, Dtype::BF16, Dtype::Q8_0, Dtype::Q4_K].iter().for_each(|d| check(*d, true));
    }
}
