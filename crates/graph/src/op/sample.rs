//! Logits to token.

use firth_quant::Dtype;
use firth_sampling::{Lists, RowParams, Scratch};

use super::{OpDef, exactly, expect_shape, f32s, i32s};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;
use crate::shape::Shape;

/// What an output row holds where no token can be sampled: a NaN logit.
pub const SAMPLE_NAN: i32 = -1;
/// What an output row holds where no token can be sampled: nothing allowed.
pub const SAMPLE_NONE: i32 = -2;

/// Samples one token per logits row by its parameter row; crate `sampling` is the meaning.
///
/// Shapes: `logits: [V, O]` f32, `params: [words, O]` i32 (a `RowParams`), `penalties: [2, n]`,
/// `biases: [2, m]`, `masks: [words, rows]` i32; the result `ids: [O]` i32, or [`SAMPLE_NAN`], [`SAMPLE_NONE`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample;

impl OpDef for Sample {
    const NAME: &'static str = "sample";
    const TOLERANCE: f64 = 0.0;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        let [_, _, _, _, _] = exactly(inputs)?;
        let (logits, params) = (f32s(inputs, 0)?, i32s(inputs, 1)?);
        let rows = logits.shape.axes()[1];
        expect_shape(1, params.shape, Shape::new([RowParams::WORDS.into(), rows]))?;
        for operand in 2..5 {
            i32s(inputs, operand)?;
        }
        Ok(vec![super::dense(g, Dtype::I32, Shape::new([rows]))?])
    }

    fn reference(&self, call: &mut RefCall) {
        let [logits, params, penalties, biases, masks] = &call.inputs[..] else { unreachable!("inferred") };
        let pairs = |x: &[i32]| x.chunks_exact(2).map(|p| [p[0] as u32, p[1] as u32]).collect::<Vec<_>>();
        let (penalties, biases) = (pairs(&penalties.i), pairs(&biases.i));
        let masks: Vec<u32> = masks.i.iter().map(|w| *w as u32).collect();
        let lists = Lists { penalties: &penalties, biases: &biases, masks: &masks };
        let mut scratch = Scratch::new(logits.dims[0]);
        for o in 0..logits.n_rows() {
            let mut words = [0; RowParams::WORDS];
            for (w, p) in words.iter_mut().zip(&params.i[o * RowParams::WORDS..]) {
                *w = *p as u32;
            }
            let row = RowParams::from_words(&words);
            call.outputs[0].i[o] = outcome(firth_sampling::sample(&row, &lists, logits.row(o), &mut scratch));
        }
    }
}

/// The integer that stands for a sampled id or the reason there is none.
pub fn outcome(r: Result<u32, firth_sampling::SampleError>) -> i32 {
    match r {
        Ok(id) => id as i32,
        Err(firth_sampling::SampleError::Nan { .. }) => SAMPLE_NAN,
        Err(_) => SAMPLE_NONE,
    }
}
