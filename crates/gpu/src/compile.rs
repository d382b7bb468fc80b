//! From an op of a segment to dispatches: operands described, parameters written, pipelines and bind groups made.

use std::sync::Arc;

use firth_graph::{Extent, Extents, Layout, LoadError, Place, SegOp, Segment, Sym, Type};

use crate::module::{self, Source};
use crate::shared::Shared;
use crate::states::State;
use crate::store::StoredWeight;

/// Bytes of the parameters of one dispatch.
pub const PARAM_BYTES: usize = 512;
/// Operands that parameters describe.
const MAX_OPERANDS: usize = 9;
/// First word of the scalars.
const SCALARS: usize = 27 * 4;
/// Scalars of a dispatch at most; the word behind them stays 0.
const MAX_SCALARS: usize = 19;

/// Workgroups along one axis that every adapter takes.
pub const MAX_GROUPS: usize = 65535;

/// Workgroups of a dispatch in a step; none of any axis skips it.
pub(crate) type Groups = Box<dyn Fn(&Extents) -> [usize; 3] + Send>;

/// What a dispatch is made of.
pub(crate) struct Kernel<'a> {
    pub name: &'static str,
    /// Values of the segment, in the order of the kernel's operands.
    pub operands: &'a [usize],
    /// Numbers of the kernel, as bits.
    pub scalars: &'a [u32],
    /// Buffers besides those of operands, and whether they are written.
    pub buffers: Vec<(wgpu::Buffer, bool)>,
    /// Parts of its text, and what stands for the names in it. `$BUF` is the number of the first of `buffers`.
    pub parts: &'a [&'a str],
    pub values: Vec<(&'static str, String)>,
    pub groups: Groups,
}

/// A dispatch, ready but for its bind group.
pub(crate) struct Draft {
    pub name: &'static str,
    pub pipeline: crate::shared::Pipeline,
    pub buffers: Vec<wgpu::Buffer>,
    pub params: [u32; PARAM_BYTES / 4],
    pub groups: Groups,
}

/// Collects the dispatches of a segment.
pub(crate) struct CompileCx<'a> {
    pub segment: &'a Segment,
    pub shared: &'a Arc<Shared>,
    /// Byte of the arena at which each host slot lies.
    pub slots: &'a [usize],
    pub drafts: Vec<Draft>,
    /// Bytes of buffers that kernels asked for.
    pub own_bytes: u64,
}

impl CompileCx<'_> {
    /// The layout of a tensor value.
    pub fn layout(&self, v: usize) -> &Layout {
        self.segment.values[v].ty.layout().expect("a tensor")
    }

    /// The weight that a value is, or is a view of.
    pub fn weight(&self, v: usize) -> Option<Arc<StoredWeight>> {
        match self.segment.values[v].place {
            Place::Weight(w) => Some(self.shared.weight(self.segment.weights[w])),
            _ => None,
        }
    }

    /// The state that a value is a version of.
    pub fn state(&self, v: usize) -> Arc<State> {
        let Place::State(s) = self.segment.values[v].place else { unreachable!("the operand is a state") };
        self.shared.state(self.segment.states[s])
    }

    /// A storage buffer for a kernel alone.
    pub fn buffer(&mut self, what: &str, bytes: usize) -> Result<wgpu::Buffer, LoadError> {
        let (needed, free) = (bytes as u64, self.shared.max_binding());
        if needed > free {
            let (what, device) = (what.to_string(), self.shared.name.clone());
            return Err(LoadError::OutOfMemory { what, device, needed, free });
        }
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
        let buffer = self.shared.buffer(what, needed, usage)?;
        self.own_bytes += buffer.size();
        Ok(buffer)
    }

    /// Byte of the arena where a value's storage starts.
    pub fn arena_byte(&self, v: usize) -> usize {
        match self.segment.values[v].place {
            Place::Arena(at) => at,
            Place::Host(slot) => self.slots[slot],
            Place::Weight(_) | Place::State(_) => 0,
        }
    }

    /// Adds a dispatch.
    pub fn push(&mut self, k: Kernel) -> Result<(), LoadError> {
        assert!(
            k.operands.len() <= MAX_OPERANDS && k.scalars.len() <= MAX_SCALARS,
            "parameters fit their place"
        );
        let mut params = [0u32; PARAM_BYTES / 4];
        let mut buffers: Vec<(wgpu::Buffer, bool)> = Vec::new();
        let mut sources = Vec::new();
        for (i, &v) in k.operands.iter().enumerate() {
            sources.push(match self.weight(v) {
                Some(w) if w.format.is_none() => {
                    buffers.push((w.parts[0].buffer.clone(), false));
                    Source::Buffer(buffers.len() - 1)
                }
                _ => Source::Arena,
            });
            self.describe(v, &mut params[12 * i..12 * (i + 1)]);
        }
        params[SCALARS..SCALARS + k.scalars.len()].copy_from_slice(k.scalars);
        let first = buffers.len();
        buffers.extend(k.buffers);
        let writable: Vec<bool> = buffers.iter().map(|b| b.1).collect();
        let mut values = k.values;
        values.push(("BUF", first.to_string()));
        let text = module::text(self.shared.compact, &sources, &writable, k.parts, &values);
        let pipeline = self.shared.pipeline(k.name, &text, &writable)?;
        let buffers = buffers.into_iter().map(|b| b.0).collect();
        self.drafts.push(Draft { name: k.name, pipeline, buffers, params, groups: k.groups });
        Ok(())
    }

    /// Offset, strides and axes of an operand in words; of byte layouts the kernel makes its own.
    fn describe(&self, v: usize, out: &mut [u32]) {
        let Type::Tensor(l) = &self.segment.values[v].ty else { return };
        out[0] = ((self.arena_byte(v) + l.offset) / 4) as u32;
        for (i, s) in l.strides.iter().enumerate() {
            out[1 + i] = (s / 4) as u32;
        }
        for (i, e) in l.shape.axes().iter().enumerate() {
            out[5 + i] = extent_code(*e);
        }
    }
}

/// An axis as kernels read it.
pub(crate) fn extent_code(e: Extent) -> u32 {
    match e {
        Extent::Const(n) => n as u32,
        Extent::Sym(s) => {
            0x8000_0000
                | match s {
                    Sym::T => 0,
                    Sym::O => 1,
                    Sym::P => 2,
                    Sym::S => 3,
                }
        }
    }
}

/// `n` workgroups spread over two axes; kernels join them by `id.x + id.y * count.x`.
pub(crate) fn linear(n: usize) -> [usize; 3] {
    match n {
        ..=MAX_GROUPS => [n, 1, 1],
        _ => [MAX_GROUPS, n.div_ceil(MAX_GROUPS), 1],
    }
}

/// Workgroups for an invocation per element of a layout.
pub(crate) fn per_element(l: &Layout, group: usize) -> Groups {
    let shape = l.shape;
    Box::new(move |x| linear(shape.elements(x).div_ceil(group)))
}

/// A workgroup per row of a layout.
pub(crate) fn per_row(l: &Layout) -> Groups {
    let shape = l.shape;
    Box::new(move |x| {
        let d = shape.dims(x);
        linear(d[1] * d[2] * d[3])
    })
}

/// Whether kernels can address the words of an operand of 4-byte elements.
pub(crate) fn in_words(l: &Layout) -> bool {
    l.unit() == 4 && l.offset.is_multiple_of(4) && l.strides.iter().all(|s| s.is_multiple_of(4))
}

/// The op with its values, as kernels' compile functions take it.
pub(crate) type CompileFn = fn(&mut CompileCx, &SegOp) -> Result<(), LoadError>;
