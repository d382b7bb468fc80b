//! How kernels reach memory: operands resolved at load to a place and a layout, tensors of a step as strided
//! rows.
//!
//! This is the door between the plan's promises and raw memory. The plan proved that every operand's reach
//! lies inside its storage at the largest step, that values alive together do not overlap, and that a result
//! aliases no operand of its op; kernels keep their side by writing each row of a result from one chunk only.

use std::sync::Arc;

use firth_graph::{Extents, HostValues, Layout, Place, SegValue, Type};

use crate::memory::Region;
use crate::store::StoredWeight;

/// Where an operand starts.
#[derive(Clone)]
pub enum At {
    /// Byte of the program's arena.
    Arena(usize),
    /// Host slot.
    Host(usize),
    /// A weight kept as plain elements.
    Weight(Arc<StoredWeight>),
}

/// A tensor operand of a compiled op.
#[derive(Clone)]
pub struct Operand {
    /// Start of its storage.
    pub at: At,
    /// Its layout from there.
    pub layout: Layout,
}

impl Operand {
    /// Resolves a value of a segment. `None` for a state, or for a weight that is not kept as elements.
    pub fn new(v: &SegValue, weight: impl FnOnce(usize) -> Arc<StoredWeight>) -> Option<Operand> {
        let Type::Tensor(layout) = v.ty else { return None };
        let at = match v.place {
            Place::Arena(offset) => At::Arena(offset),
            Place::Host(slot) => At::Host(slot),
            Place::Weight(w) => At::Weight(weight(w)),
            Place::State(_) => return None,
        };
        Some(Operand { at, layout })
    }

    /// The rows of a weight, which lie in memory already when an op is compiled. `None` for what a step makes.
    pub fn weight_rows(&self) -> Option<Rows> {
        let At::Weight(w) = &self.at else { return None };
        let (base, l) = (w.elements(), &self.layout);
        let dims = l.shape.dims(&Extents::default());
        Some(Rows { base: base.wrapping_add(l.offset), dims, strides: l.strides })
    }
}

/// Base addresses of one step.
pub struct Bases {
    arena: *mut u8,
    host: Vec<*mut u8>,
}

// SAFETY: the addresses are used under the contract of this module: disjoint writes, no write to what is read.
unsafe impl Send for Bases {}
// SAFETY: as above.
unsafe impl Sync for Bases {}

impl Bases {
    /// For an arena and `n` host slots; the slots' addresses are taken at each step.
    pub fn new(arena: &Region, n: usize) -> Self {
        Bases { arena: arena.ptr(), host: vec![std::ptr::null_mut(); n] }
    }

    /// Takes the slots' addresses for a step. `host` stays borrowed by the step until it is finished.
    pub fn attach(&mut self, host: &mut HostValues) {
        self.host.resize(host.len(), std::ptr::null_mut());
        for (i, p) in self.host.iter_mut().enumerate() {
            *p = host.bytes_mut(i).as_mut_ptr();
        }
    }
}

/// What a kernel sees of a step.
pub struct Cx<'a> {
    /// Extents of the step.
    pub x: Extents,
    /// Base addresses.
    pub bases: &'a Bases,
}

impl Cx<'_> {
    /// The rows of an operand in this step.
    pub fn rows(&self, o: &Operand) -> Rows {
        let base = match &o.at {
            At::Arena(offset) => self.bases.arena.wrapping_add(*offset),
            At::Host(slot) => self.bases.host[*slot],
            At::Weight(w) => w.elements(),
        };
        let l = &o.layout;
        Rows { base: base.wrapping_add(l.offset), dims: l.shape.dims(&self.x), strides: l.strides }
    }
}

/// A tensor of a step: rows along axis 0, each contiguous, at strides.
#[derive(Clone, Copy)]
pub struct Rows {
    base: *mut u8,
    /// Axis lengths.
    pub dims: [usize; 4],
    /// Bytes from one index to the next.
    pub strides: [usize; 4],
}

// SAFETY: see the module: rows written by one chunk are touched by no other.
unsafe impl Send for Rows {}
// SAFETY: as above.
unsafe impl Sync for Rows {}

impl Rows {
    /// Rows along axis 0.
    pub fn n(&self) -> usize {
        self.dims[1] * self.dims[2] * self.dims[3]
    }

    /// Length of a row.
    pub fn width(&self) -> usize {
        self.dims[0]
    }

    /// Indices on axes 1 to 3 of row `r`.
    pub fn split(&self, r: usize) -> [usize; 3] {
        let (a, b) = (self.dims[1].max(1), self.dims[2].max(1));
        [r % a, r / a % b, r / a / b]
    }

    #[inline(always)]
    fn address(&self, i: [usize; 3]) -> *mut u8 {
        self.base.wrapping_add(i[0] * self.strides[1] + i[1] * self.strides[2] + i[2] * self.strides[3])
    }

    #[inline(always)]
    fn in_range(&self, i: [usize; 3]) -> bool {
        i[0] < self.dims[1] && i[1] < self.dims[2] && i[2] < self.dims[3]
    }

    /// Row at indices of axes 1 to 3.
    #[inline(always)]
    pub fn f32_at(&self, i: [usize; 3]) -> &[f32] {
        assert!(self.in_range(i), "row {i:?} of {:?}", self.dims);
        // SAFETY: the index is in range and the plan proved the operand's reach; no chunk writes an operand.
        unsafe { std::slice::from_raw_parts(self.address(i).cast(), self.dims[0]) }
    }

    /// Row `r`, rows counted in memory order.
    pub fn f32(&self, r: usize) -> &[f32] {
        self.f32_at(self.split(r))
    }

    /// Row `r` of integers.
    pub fn i32(&self, r: usize) -> &[i32] {
        let i = self.split(r);
        assert!(self.in_range(i), "row {i:?} of {:?}", self.dims);
        // SAFETY: as in `f32_at`.
        unsafe { std::slice::from_raw_parts(self.address(i).cast(), self.dims[0]) }
    }

    /// Indices of the row that follows.
    #[inline(always)]
    pub fn following(&self, [a, b, c]: [usize; 3]) -> [usize; 3] {
        match (a + 1 < self.dims[1], b + 1 < self.dims[2]) {
            (true, _) => [a + 1, b, c],
            (false, true) => [0, b + 1, c],
            (false, false) => [0, 0, c + 1],
        }
    }

    /// The row that stands for row `i` where this tensor repeats along axes of a larger one.
    #[inline(always)]
    pub fn f32_repeated(&self, i: [usize; 3]) -> &[f32] {
        let wrap = |axis: usize| match self.dims[axis + 1] {
            0 | 1 => 0,
            n => i[axis] % n,
        };
        self.f32_at([wrap(0), wrap(1), wrap(2)])
    }

    /// Row `r` of a result, to write.
    ///
    /// # Safety
    /// Only one live borrow of a row at a time: a chunk writes its own rows, one after the other.
    #[allow(clippy::mut_from_ref, reason = "rows of a result are shared out to chunks, see the module")]
    pub unsafe fn f32_mut(&self, r: usize) -> &mut [f32] {
        // SAFETY: the caller's word.
        unsafe { self.f32_mut_at(self.split(r)) }
    }

    /// Row at indices of axes 1 to 3 of a result, to write.
    ///
    /// # Safety
    /// As [`Rows::f32_mut`].
    #[allow(clippy::mut_from_ref, reason = "rows of a result are shared out to chunks, see the module")]
    #[inline(always)]
    pub unsafe fn f32_mut_at(&self, i: [usize; 3]) -> &mut [f32] {
        assert!(self.in_range(i), "row {i:?} of {:?}", self.dims);
        // SAFETY: in range; the caller vouches that nobody else has the row.
        unsafe { std::slice::from_raw_parts_mut(self.address(i).cast(), self.dims[0]) }
    }

    /// Row `r` of a result of integers, to write.
    ///
    /// # Safety
    /// As [`Rows::f32_mut`].
    #[allow(clippy::mut_from_ref, reason = "rows of a result are shared out to chunks, see the module")]
    pub unsafe fn i32_mut(&self, r: usize) -> &mut [i32] {
        let i = self.split(r);
        assert!(self.in_range(i), "row {i:?} of {:?}", self.dims);
        // SAFETY: in range; the caller vouches that nobody else has the row.
        unsafe { std::slice::from_raw_parts_mut(self.address(i).cast(), self.dims[0]) }
    }

    /// Address of the element (or block) at four indices.
    pub fn element(&self, i: [usize; 4]) -> *mut u8 {
        assert!(i[0] < self.dims[0] && self.in_range([i[1], i[2], i[3]]), "element {i:?} of {:?}", self.dims);
        self.address([i[1], i[2], i[3]]).wrapping_add(i[0] * self.strides[0])
    }

    /// The start of the storage and the stride of axis 1 in bytes, for kernels that write columns of rows.
    pub fn raw(&self) -> (*mut u8, usize) {
        (self.base, self.strides[1])
    }
}
