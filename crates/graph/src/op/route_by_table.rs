//! Experts that a table names.

use firth_quant::Dtype;

use super::{Gating, OpDef, Router, exactly, f32s, i32s};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;
use crate::shape::{Shape, Sym};

/// The experts that the rows `keys[k, t]` of a table name, and their weights by logits as [`Router`] makes them.
///
/// Shapes: `logits: [experts, T]` f32, `keys: [K, T]` i32 below `rows` (a negative one reads row 0: a row of a step that
/// has no token), `table: [n, rows]` f32 of whole numbers below `experts`, which whoever builds the graph has checked;
/// results `ids: [n K, T]` i32, keys in order, and `weights: [n K, T]` f32. An expert may be named twice. A softmax over the
/// chosen alone is refused.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteByTable {
    /// How logits become weights.
    pub gating: Gating,
    /// Whether the weights of a token are made to sum to 1.
    pub normalise: bool,
    /// Factor of the weights, 1 for none.
    pub scale: f32,
}

impl RouteByTable {
    /// The router whose weights these are.
    pub fn weights_of(&self) -> Router {
        Router { gating: self.gating, normalise: self.normalise, scale: self.scale, ..Router::default() }
    }

    /// The table's row of a key.
    pub fn row(key: i32) -> usize {
        usize::try_from(key).unwrap_or(0)
    }
}

impl OpDef for RouteByTable {
    const NAME: &'static str = "route_by_table";
    const TOLERANCE: f64 = 1e-11;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        let [_, _, _] = exactly(inputs)?;
        if self.gating == Gating::SoftmaxOfChosen {
            return Err(ShapeError::Param("a softmax over the experts that a table names".into()));
        }
        let logits = f32s(inputs, 0)?;
        let experts = logits.shape.constant(0).unwrap_or(0);
        super::expect_shape(0, logits.shape, Shape::new([experts.into(), Sym::T.into()]))?;
        let keys = i32s(inputs, 1)?;
        let per_token = keys.shape.constant(0).unwrap_or(0);
        super::expect_shape(1, keys.shape, Shape::new([per_token.into(), Sym::T.into()]))?;
        let table = f32s(inputs, 2)?;
        let (n, rows) = super::mat_mul::matrix(inputs, 2)?;
        super::expect_shape(2, table.shape, Shape::fixed(&[n, rows]))?;
        if n * per_token == 0 || rows == 0 {
            return Err(ShapeError::Param(format!("{per_token} rows of {n} experts for a token")));
        }
        let shape = Shape::new([(n * per_token).into(), Sym::T.into()]);
        Ok(vec![super::dense(g, Dtype::I32, shape)?, super::dense(g, Dtype::F32, shape)?])
    }

    fn reference(&self, call: &mut RefCall) {
        let [logits, keys, table] = &call.inputs[..] else { unreachable!("inferred") };
        let [ids, weights] = &mut call.outputs[..] else { unreachable!("inferred") };
        let (router, per_token, used) = (self.weights_of(), keys.dims[0], ids.dims[0]);
        for t in 0..logits.n_rows() {
            let keys = &keys.i[t * per_token..(t + 1) * per_token];
            let named = keys.iter().flat_map(|k| table.row(RouteByTable::row(*k)));
            let chosen: Vec<usize> = named.map(|id| *id as usize).collect();
            let w = router.weigh(&router.probabilities(logits.row(t)), &chosen);
            for (u, (i, w)) in chosen.iter().zip(w).enumerate() {
                ids.i[t * used + u] = *i as i32;
                weights.f[t * used + u] = w as f32;
            }
        }
    }
}
