//! Whether two kernels give the same bits on this adapter: asked when a model is loaded, of random rows; products in the shape
//! that they have.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use firth_graph::op::{LayerNorm, RmsNorm, Softmax};
use firth_graph::{
    Extent, Extents, HostValues, Layout, LoadError, Op, Place, Program, SegOp, SegValue, Segment, Shape, Sym,
    Type,
};
use firth_quant::Dtype;

use crate::format::Format;
use crate::kernels::rows_of_tiles;
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

/// What was found.
#[derive(Default)]
pub(crate) struct Agreed {
    /// Of products, by format and shape of the weight.
    products: Mutex<HashMap<(Format, [usize; 2]), bool>>,
    /// Of sums by subgroups.
    subgroups: Mutex<Option<bool>>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // Entries are added whole, so a panic elsewhere cannot have broken them.
    m.lock().unwrap_or_else(|e| e.into_inner())
}

impl Agreed {
    /// How many may be used, of how many that were tried.
    pub fn count(&self) -> (usize, usize) {
        let all = lock(&self.products);
        (all.values().filter(|v| **v).count(), all.len())
    }

    /// Whether sums by subgroups are used; `None` where it was not asked.
    pub fn sums(&self) -> Option<bool> {
        *lock(&self.subgroups)
    }

    /// Whether sums by subgroups may be used. Says so where they differ, or where they cannot be tried.
    pub fn ask_subgroups(&self, shared: &Arc<Shared>, segment: &Segment) -> Result<bool, LoadError> {
        if let Some(found) = self.sums() {
            return Ok(found);
        }
        let not_used = |why: &str| tracing::warn!("{}: sums by subgroups are not used: {why}", shared.name);
        let equal = match sums(shared, segment) {
            Ok(true) => true,
            Ok(false) => {
                not_used("their bits differ");
                false
            }
            Err(e) => {
                shared.alive()?;
                not_used(&e.to_string());
                false
            }
        };
        *lock(&self.subgroups) = Some(equal);
        Ok(equal)
    }

    /// Whether the fast kernels of a product with a weight of this format and shape may be used. Says so where they differ.
    pub fn ask(
        &self,
        shared: &Arc<Shared>,
        segment: &Segment,
        op: &SegOp,
        format: Format,
        dims: [usize; 2],
    ) -> Result<bool, LoadError> {
        let known = |m: &HashMap<_, bool>| m.get(&(format, dims)).copied();
        if let Some(found) = known(&lock(&self.products)) {
            return Ok(found);
        }
        let (device, [k, n]) = (&shared.name, dims);
        let equal = match trial(shared, segment, op, dims) {
            Err(LoadError::OutOfMemory { .. }) => {
                tracing::warn!(
                    "{device}: no room to try the fast kernels of {format:?} [{k}, {n}], they are not used"
                );
                false
            }
            Ok(false) => {
                tracing::warn!(
                    "{device}: the fast kernels of {format:?} [{k}, {n}] are not used: their bits differ"
                );
                false
            }
            found => found?,
        };
        lock(&self.products).insert((format, dims), equal);
        Ok(equal)
    }
}

/// Runs the product of an op on the same random rows by both kernels, in a step for each tile: the kernel for one token may
/// differ from its twin as well as that for many.
fn trial(shared: &Arc<Shared>, segment: &Segment, op: &SegOp, dims: [usize; 2]) -> Result<bool, LoadError> {
    let values = vec![segment.values[op.inputs[0]], rows(0, dims[0]), rows(1, dims[1])];
    let op = SegOp { op: op.op.clone(), inputs: vec![0, 1], results: vec![2], scope: op.scope.clone() };
    equal(shared, Segment { values, ops: vec![op], ..segment.clone() }, dims)
}

/// Reduces the same random rows through workgroup memory and by subgroups.
fn sums(shared: &Arc<Shared>, segment: &Segment) -> Result<bool, LoadError> {
    const WIDTH: usize = 1000;
    let ops = [Op::from(RmsNorm { eps: 1e-6 }), Softmax.into(), LayerNorm { eps: 1e-6 }.into()];
    for op in ops {
        let op = SegOp { op, inputs: vec![0], results: vec![1], scope: "trial".into() };
        let values = vec![rows(0, WIDTH), rows(1, WIDTH)];
        if !equal(shared, Segment { values, ops: vec![op], ..segment.clone() }, [WIDTH; 2])? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Rows of activations in a trial's largest step.
const ROWS: usize = {
    let all = rows_of_tiles();
    all[all.len() - 1]
};

/// A step of a trial.
const fn extents(t: usize) -> Extents {
    Extents { t, o: 0, p: 0, s: 0 }
}

/// The bounds of a trial.
const BOUNDS: Extents = extents(ROWS);

/// Rows of `n` floats in a host slot.
fn rows(slot: usize, n: usize) -> SegValue {
    let shape = Shape::new([Extent::Const(n), Extent::Sym(Sym::T)]);
    let ty = Type::Tensor(Layout::dense(Dtype::F32, shape, &BOUNDS).expect("rows of floats"));
    SegValue { ty, place: Place::Host(slot) }
}

/// Whether both kernels of an op that makes rows of `dims[1]` in host slot 1 of rows of `dims[0]` in slot 0 give the same bits
/// in steps of all sizes that have kernels of their own.
fn equal(shared: &Arc<Shared>, alone: Segment, dims: [usize; 2]) -> Result<bool, LoadError> {
    let alone = Segment { bounds: BOUNDS, arena_bytes: 0, reads: vec![0], writes: vec![1], ..alone };
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
        let mut all = Vec::new();
        for t in rows_of_tiles() {
            let ticket = program.submit(extents(t), &mut host).map_err(lost)?;
            program.finish(ticket, &mut host).map_err(lost)?;
            all.extend_from_slice(&host.bytes(1)[..4 * t * dims[1]]);
        }
        Ok(all)
    };
    Ok(run(Choice::Portable)? == run(Choice::Fast)?)
}
