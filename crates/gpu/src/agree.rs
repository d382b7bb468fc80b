//! Whether two kernels of a product give the same bits on this adapter: asked when a model is loaded, of random rows of the
//! shape that the product has.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use firth_graph::{
    Extent, Extents, HostValues, Layout, LoadError, Place, Program, SegOp, SegValue, Segment, Shape, Sym,
    Type,
};
use firth_quant::Dtype;

use crate::format::Format;
use crate::program::GpuProgram;
use crate::shared::Shared;

/// Which kernels a program takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Those that suit any adapter.
    Portable,
    /// The fast ones, asked or not.
    Fast,
    /// The fast ones where they give the bits of the portable ones.
    Agreed,
}

/// Rows of activations in a trial: more than a tile, and not whole tiles.
const ROWS: usize = 19;

/// What was found, by format and shape of the weight.
#[derive(Default)]
pub(crate) struct Agreed(Mutex<HashMap<(Format, [usize; 2]), bool>>);

impl Agreed {
    /// How many may be used, of how many that were tried.
    pub fn count(&self) -> (usize, usize) {
        let all = self.0.lock().unwrap_or_else(|e| e.into_inner());
        (all.values().filter(|v| **v).count(), all.len())
    }

    /// Whether the fast kernel of a product with a weight of this format and shape may be used. Says so where it differs.
    pub fn ask(
        &self,
        shared: &Arc<Shared>,
        segment: &Segment,
        op: &SegOp,
        format: Format,
        dims: [usize; 2],
    ) -> Result<bool, LoadError> {
        let known = |m: &HashMap<_, bool>| m.get(&(format, dims)).copied();
        if let Some(found) = known(&self.0.lock().unwrap_or_else(|e| e.into_inner())) {
            return Ok(found);
        }
        let (device, [k, n]) = (&shared.name, dims);
        let equal = match trial(shared, segment, op, dims) {
            Err(LoadError::OutOfMemory { .. }) => {
                tracing::warn!(
                    "{device}: no room to try the tile kernel of {format:?} [{k}, {n}], it is not used"
                );
                false
            }
            Ok(false) => {
                tracing::warn!(
                    "{device}: the tile kernel of {format:?} [{k}, {n}] is not used: its bits differ"
                );
                false
            }
            found => found?,
        };
        self.0.lock().unwrap_or_else(|e| e.into_inner()).insert((format, dims), equal);
        Ok(equal)
    }
}

/// Runs the product of an op on the same random rows by both kernels.
fn trial(shared: &Arc<Shared>, segment: &Segment, op: &SegOp, dims: [usize; 2]) -> Result<bool, LoadError> {
    let bounds = Extents { t: ROWS, o: 0, p: 0, s: 0 };
    let rows = |n: usize| {
        let shape = Shape::new([Extent::Const(n), Extent::Sym(Sym::T)]);
        Type::Tensor(Layout::dense(Dtype::F32, shape, &bounds).expect("rows of floats"))
    };
    let host = |slot, n| SegValue { ty: rows(n), place: Place::Host(slot) };
    let alone = Segment {
        bounds,
        values: vec![segment.values[op.inputs[0]], host(0, dims[0]), host(1, dims[1])],
        ops: vec![SegOp { op: op.op.clone(), inputs: vec![0, 1], results: vec![2], scope: op.scope.clone() }],
        arena_bytes: 0,
        reads: vec![0],
        writes: vec![1],
        ..segment.clone()
    };
    let run = |choice| -> Result<Vec<u8>, LoadError> {
        let mut program = GpuProgram::with(&alone, shared.clone(), choice)?;
        let mut host = HostValues::new(&[4 * ROWS * dims[0], 4 * ROWS * dims[1]]);
        let mut state = 0x9e37_79b9_u32;
        for x in host.f32_mut(0) {
            // xorshift; values of about 1 in all magnitudes' low bits.
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            *x = (state as i32) as f32 / i32::MAX as f32;
        }
        let lost = |e: firth_graph::Lost| LoadError::Device { device: e.device, reason: e.reason };
        let ticket = program.submit(bounds, &mut host).map_err(lost)?;
        program.finish(ticket, &mut host).map_err(lost)?;
        Ok(host.bytes(1).to_vec())
    };
    Ok(run(Choice::Portable)? == run(Choice::Fast)?)
}
