//! The row before each row of a sequence.

use super::{OpDef, exactly, expect_shape, f32s, slots, state};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;
use crate::shape::{Shape, Sym};

/// `y[:, t] = x[:, t - 1]` within a sequence: the row before a sequence's first row of the step comes from the ring,
/// the row before the sequence is zero. (A head that predicts further tokens pairs a token with the hidden row
/// before it.)
///
/// Shapes: `ring` (rows of `W` f32), `x: [W, T]` f32, `seqs: [4, S]`, `slots: [4, S]` i32; results `y: [W, T]` f32 and
/// the ring's next version with the step's rows of `x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrevRow;

impl OpDef for PrevRow {
    const NAME: &'static str = "prev_row";
    const TOLERANCE: f64 = 0.0;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        let [_, _, _, _] = exactly(inputs)?;
        let s = state(inputs, 0)?;
        let x = f32s(inputs, 1)?;
        let w = x.shape.constant(0).unwrap_or(0);
        slots::ring(g, s, w, 1)?;
        expect_shape(1, x.shape, Shape::new([w.into(), Sym::T.into()]))?;
        slots::expect_tables(inputs, 2)?;
        Ok(vec![super::dense(g, x.dtype, x.shape)?, Type::State(s)])
    }

    fn reference(&self, call: &mut RefCall) {
        let [_, x, seqs, slots] = &call.inputs[..] else { unreachable!("inferred") };
        let spans = slots::spans(seqs, slots);
        let state = call.state.as_deref_mut().expect("a state op has a state");
        let y = &mut call.outputs[0];
        slots::run_ring(state, &spans, x, |row, past| match past(1) {
            Some(before) => y.row_mut(row).copy_from_slice(&before.f),
            None => y.row_mut(row).fill(0.0),
        });
    }
}
