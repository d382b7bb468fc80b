//! Weights as the CPU keeps them: each once, in the layout that serves all its uses.

use std::ops::ControlFlow;
use std::sync::Arc;

use firth_graph::{Extents, LoadError, Use, WeightBytes, WeightSpec};
use firth_quant::Dtype;

use crate::memory::Region;
use crate::panel::{self, PanelLayout, Product};
use crate::pool::Pool;

/// How a weight lies.
enum Form {
    /// As in the file: what kernels read element by element.
    Elements,
    /// Blocks as in the file, row after row: embedding tables that no product uses.
    Blocks,
    /// Panels of 32 outputs, matrix after matrix.
    Panels(PanelLayout),
}

/// Where a weight lies.
enum Memory {
    /// In memory of the device, laid out.
    Own(Region),
    /// In the file's mapping, as it is there; panels are made where a product uses them.
    Mapped(Arc<dyn WeightBytes + Send + Sync>),
}

/// A weight as the device reads it.
pub struct StoredWeight {
    form: Form,
    dtype: Dtype,
    dims: [usize; 4],
    memory: Memory,
}

/// Bytes past the end that a kernel's whole-register load may read.
const PADDING: usize = 256;

fn form_of(w: &WeightSpec) -> Form {
    let dims = w.shape.dims(&Extents::default());
    let product = w.uses.iter().any(|u| matches!(u, Use::MatMul | Use::Experts));
    match product {
        true => Form::Panels(
            PanelLayout::new(w.dtype, dims[0], dims[1]).expect("the planner asked whether it has panels"),
        ),
        false if w.uses.contains(&Use::Rows) => Form::Blocks,
        false => Form::Elements,
    }
}

/// Whether a weight can stay in the file's mapping: what is read by whole rows can.
pub fn can_stay(w: &WeightSpec) -> bool {
    !matches!(form_of(w), Form::Elements)
}

/// Bytes that a weight will take, laid out.
pub fn weight_bytes(w: &WeightSpec) -> u64 {
    let dims = w.shape.dims(&Extents::default());
    let matrices = dims[2] * dims[3];
    let row = w.dtype.row_bytes(dims[0]).unwrap_or(0);
    let bytes = match form_of(w) {
        Form::Panels(layout) => layout.bytes() * matrices,
        Form::Blocks | Form::Elements => row * dims[1] * matrices,
    };
    (bytes + PADDING) as u64
}

impl StoredWeight {
    fn new(w: &WeightSpec, memory: Memory, len: usize) -> Result<Self, LoadError> {
        let dims = w.shape.dims(&Extents::default());
        let out = StoredWeight { form: form_of(w), dtype: w.dtype, dims, memory };
        let expected = out.row_bytes() * dims[1] * dims[2] * dims[3];
        if len != expected {
            let reason = format!("weight `{}`: {len} bytes, expected {expected}", w.name);
            return Err(LoadError::Device { device: "cpu".into(), reason });
        }
        Ok(out)
    }

    /// A weight that stays in the file's mapping. It [`can_stay`].
    pub fn mapped(w: &WeightSpec, bytes: Arc<dyn WeightBytes + Send + Sync>) -> Result<Self, LoadError> {
        assert!(can_stay(w), "elements are aligned in memory of their own");
        let len = bytes.bytes().len();
        StoredWeight::new(w, Memory::Mapped(bytes), len)
    }

    /// Lays a weight out in `region` (of [`weight_bytes`] bytes), panels in parallel. `on` is told bytes of the
    /// file consumed and may stop the load; consumed bytes are given back to the file's mapping.
    pub fn load(
        w: &WeightSpec,
        src: &dyn WeightBytes,
        region: Region,
        pool: &Pool,
        on: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Self, LoadError> {
        let bytes = src.bytes();
        let out = StoredWeight::new(w, Memory::Own(region), bytes.len())?;
        // Some tens of megabytes at a time, so that a load can be stopped and pages are given back early.
        let (unit, units) = out.unit_bytes();
        let batch = ((32 << 20) / unit.max(1)).max(1);
        for first in (0..units).step_by(batch) {
            let n = batch.min(units - first);
            pool.run(n, &|i, _| out.place(first + i, bytes));
            let end = ((first + n) * unit).min(bytes.len());
            src.done(end);
            if on((end - first * unit) as u64).is_break() {
                return Err(LoadError::Cancelled);
            }
        }
        Ok(out)
    }

    fn row_bytes(&self) -> usize {
        self.dtype.row_bytes(self.dims[0]).unwrap_or(0)
    }

    /// Bytes of the file that one unit of work lays out, and the number of units: a panel's rows, or a megabyte.
    fn unit_bytes(&self) -> (usize, usize) {
        let total = self.row_bytes() * self.dims[1] * self.dims[2] * self.dims[3];
        match &self.form {
            Form::Panels(l) => (self.row_bytes() * 32, l.panels() * self.dims[2] * self.dims[3]),
            Form::Elements | Form::Blocks => (1 << 20, total.div_ceil(1 << 20)),
        }
    }

    /// Lays out unit `i`.
    fn place(&self, i: usize, bytes: &[u8]) {
        let (from, to, len) = match &self.form {
            Form::Panels(l) => {
                let (matrix, panel) = (i / l.panels(), i % l.panels());
                let rows = self.dims[1].min((panel + 1) * 32) - panel * 32;
                let row = self.row_bytes();
                let at = (matrix * self.dims[1] + panel * 32) * row;
                let to = matrix * l.bytes() + panel * l.panel_bytes();
                (at..at + rows * row, to, l.panel_bytes())
            }
            Form::Elements | Form::Blocks => {
                let at = i << 20;
                let end = bytes.len().min(at + (1 << 20));
                (at..end, at, end - at)
            }
        };
        let region = self.region();
        assert!(to + len <= region.len(), "unit {i} lies in the region");
        // SAFETY: the range lies in the region, and units are disjoint.
        let dst = unsafe { std::slice::from_raw_parts_mut(region.ptr().add(to), len) };
        match &self.form {
            Form::Panels(l) => l.pack_panel(&bytes[from], dst),
            Form::Elements | Form::Blocks => dst.copy_from_slice(&bytes[from]),
        }
    }

    fn region(&self) -> &Region {
        let Memory::Own(region) = &self.memory else { unreachable!("the weight is laid out") };
        region
    }

    /// The weight's memory, where it is laid out.
    pub fn laid_out(&self) -> Option<&[u8]> {
        match &self.memory {
            Memory::Own(region) => Some(region.as_slice()),
            Memory::Mapped(_) => None,
        }
    }

    /// The start of a weight kept as elements.
    pub fn elements(&self) -> *mut u8 {
        assert!(matches!(self.form, Form::Elements), "the weight is kept as elements");
        self.region().ptr()
    }

    /// The panels of a weight of products, made or to be made.
    pub fn layout(&self) -> &PanelLayout {
        let Form::Panels(l) = &self.form else { unreachable!("the weight is one of products") };
        l
    }

    /// Scratch floats that [`StoredWeight::product`] needs.
    pub fn scratch_floats(&self) -> usize {
        match self.memory {
            Memory::Own(_) => self.layout().scratch_floats(),
            Memory::Mapped(_) => self.layout().mapped_scratch_floats(),
        }
    }

    /// A product with matrix `matrix`: [`panel::matmul`].
    pub fn product(&self, matrix: usize, product: Product, scratch: &mut [f32]) {
        let l = self.layout();
        match &self.memory {
            Memory::Own(_) => panel::matmul(l, self.panels(matrix), product, scratch),
            Memory::Mapped(bytes) => {
                let len = self.row_bytes() * self.dims[1];
                panel::matmul_mapped(l, &bytes.bytes()[matrix * len..][..len], product, scratch);
            }
        }
    }

    /// The bytes of matrix 0 from panel `panel` on, where they are laid out.
    pub fn ahead(&self, panel: usize) -> Option<&[u8]> {
        matches!(self.memory, Memory::Own(_)).then(|| &self.panels(0)[panel * self.layout().panel_bytes()..])
    }

    /// Panels of matrix `i` of a weight that is laid out.
    fn panels(&self, i: usize) -> &[u8] {
        let bytes = self.layout().bytes();
        &self.region().as_slice()[i * bytes..(i + 1) * bytes]
    }

    /// Row `i` of a table, decoded.
    pub fn row(&self, i: usize, out: &mut [f32]) {
        assert!(i < self.dims[1], "row {i} of {}", self.dims[1]);
        let n = self.row_bytes();
        match (&self.form, &self.memory) {
            (Form::Elements, _) => unreachable!("a table is kept as blocks or panels"),
            (_, Memory::Mapped(bytes)) => {
                firth_quant::decode(self.dtype, &bytes.bytes()[i * n..(i + 1) * n], out);
            }
            (Form::Panels(l), Memory::Own(_)) => l.row(self.panels(0), i, out),
            (Form::Blocks, Memory::Own(region)) => {
                firth_quant::decode(self.dtype, &region.as_slice()[i * n..(i + 1) * n], out);
            }
        }
    }

    /// Matrices of a weight of experts.
    pub fn n_matrices(&self) -> usize {
        self.dims[2] * self.dims[3]
    }
}
