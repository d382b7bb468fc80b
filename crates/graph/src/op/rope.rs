//! Rotary position embedding.

use super::{OpDef, exactly, f32s, i32s};
use crate::graph::{Graph, ShapeError, Type};
use crate::reference::RefCall;

/// Which elements of a head make a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopePairs {
    /// `(2i, 2i + 1)`.
    Adjacent,
    /// `(i, i + n_rot / 2)`.
    Half,
}

impl RopePairs {
    /// The two elements of pair `i`.
    pub fn of(self, i: usize, n_rot: usize) -> (usize, usize) {
        match self {
            RopePairs::Adjacent => (2 * i, 2 * i + 1),
            RopePairs::Half => (i, i + n_rot / 2),
        }
    }
}

/// Rotates the first `n_rot` elements of each head by its position; the rest pass.
///
/// Shapes: `x: [d, heads, T]` f32, `table: [n_rot, positions]` f32 (first the cosines of all pairs, then the
/// sines), `pos: [T]` i32 below `positions`, `y` as `x`. `y0 = fma(x0, c, -(x1 * s))`,
/// `y1 = fma(x0, s, x1 * c)`. Source: Su et al. 2021.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Pairing.
    pub pairs: RopePairs,
    /// Rotated elements of a head, even.
    pub n_rot: usize,
}

impl OpDef for Rope {
    const NAME: &'static str = "rope";
    const TOLERANCE: f64 = 1e-12;

    fn infer(&self, inputs: &[Type], g: &Graph) -> Result<Vec<Type>, ShapeError> {
        let [_, _, _] = exactly(inputs)?;
        let (x, table, pos) = (f32s(inputs, 0)?, f32s(inputs, 1)?, i32s(inputs, 2)?);
        let d = x.shape.constant(0).unwrap_or(0);
        if !self.n_rot.is_multiple_of(2) || self.n_rot > d {
            return Err(ShapeError::Param(format!("{} rotated elements of a head of {d}: must be even and fit", self.n_rot)));
        }
        if table.shape.constant(0) != Some(self.n_rot) {
            let expected = format!("[{}, positions]", self.n_rot);
            return Err(ShapeError::Mismatch { operand: 1, expected, found: table.shape });
        }
        if pos.shape.axes()[0] != x.shape.axes()[2] {
            let expected = format!("[{:?}]", x.shape.axes()[2]);
            return Err(ShapeError::Mismatch { operand: 2, expected, found: pos.shape });
        }
        Ok(vec![super::dense(g, x.dtype, x.shape)?])
    }

    fn reference(&self, call: &mut RefCall) {
        let [x, table, pos] = &call.inputs[..] else { unreachable!("inferred") };
        let heads = x.dims[1];
        for r in 0..x.n_rows() {
            let cs = table.row(pos.i[r / heads] as usize);
            let (xr, y) = (x.row(r), call.outputs[0].row_mut(r));
            y.copy_from_slice(xr);
            for i in 0..self.n_rot / 2 {
                let (a, b) = self.pairs.of(i, self.n_rot);
                let (c, s) = (f64::from(cs[i]), f64::from(cs[self.n_rot / 2 + i]));
                let (x0, x1) = (f64::from(xr[a]), f64::from(xr[b]));
                y[a] = (x0 * c - x1 * s) as f32;
                y[b] = (x0 * s + x1 * c) as f32;
            }
        }
    }
}
