//! Rows of the embedding table, or rows handed in ready.

use super::{OpDef, exactly, expect_shape, f32s, i32s};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;
use crate::shape::{Extent, Shape};

/// What a token input of this value means: the row comes ready from `rows`.
pub const READY_ROW: i32 = -1;

/// `y[:, t] = table[:, tokens[t]] * scale`, or `rows[:, t]` unscaled where `tokens[t]` is [`READY_ROW`].
///
/// Shapes: `table: [n, vocab]` of any type, `tokens: [T]` i32 in `-1 .. vocab`, `rows: [n, T]` f32,
/// `y: [n, T]` f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Embed {
    /// Factor of table rows, 1 for none.
    pub scale: f32,
}

impl OpDef for Embed {
    const NAME: &'static str = "embed";
    const TOLERANCE: f64 = 0.0;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        let [_, _, _] = exactly(inputs)?;
        let (tokens, rows) = (i32s(inputs, 1)?, f32s(inputs, 2)?);
        let (n, _) = super::mat_mul::matrix(inputs, 0)?;
        let y = Shape::new([Extent::Const(n), tokens.shape.axes()[0]]);
        expect_shape(2, rows.shape, y)?;
        Ok(vec![super::dense(g, rows.dtype, y)?])
    }

    fn reference(&self, call: &mut RefCall) {
        let [table, tokens, rows] = &call.inputs[..] else { unreachable!("inferred") };
        for (t, &id) in tokens.i.iter().enumerate() {
            let y = call.outputs[0].row_mut(t);
            if id == READY_ROW {
                y.copy_from_slice(rows.row(t));
                continue;
            }
            for (y, x) in y.iter_mut().zip(table.row(id as usize)) {
                *y = x * self.scale;
            }
        }
    }
}
