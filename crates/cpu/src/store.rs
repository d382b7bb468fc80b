//! Weights as the CPU keeps them: each once, in the layout that serves all its uses.

use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

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
    Mapped(Kept),
    /// On its way from the file's mapping to memory of the device: read there until all units are `laid` out.
    Moving { bytes: Kept, region: Region, laid: AtomicUsize },
}

type Kept = Arc<dyn WeightBytes + Send + Sync>;

/// A weight as the device reads it.
pub struct StoredWeight {
    form: Form,
    dtype: Dtype,
    dims: [usize; 4],
    memory: Memory,
}

/// Bytes of a file that are read between two looks whether to go on.
const BATCH: usize = 8 << 20;
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
    /// A weight to be laid out in `region` (of [`weight_bytes`] bytes) by [`StoredWeight::read`].
    pub fn new(w: &WeightSpec, region: Region, len: usize) -> Result<Self, LoadError> {
        StoredWeight::of(w, Memory::Own(region), len)
    }

    fn of(w: &WeightSpec, memory: Memory, len: usize) -> Result<Self, LoadError> {
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
    pub fn mapped(w: &WeightSpec, bytes: Kept) -> Result<Self, LoadError> {
        assert!(can_stay(w), "elements are aligned in memory of their own");
        let len = bytes.bytes().len();
        StoredWeight::of(w, Memory::Mapped(bytes), len)
    }

    /// A weight that is to move from the file's mapping into `region` (of [`weight_bytes`] bytes), by
    /// [`StoredWeight::settle`]. It [`can_stay`].
    pub fn moving(w: &WeightSpec, bytes: Kept, region: Region) -> Result<Self, LoadError> {
        assert!(can_stay(w), "elements are aligned in memory of their own");
        let len = bytes.bytes().len();
        StoredWeight::of(w, Memory::Moving { bytes, region, laid: AtomicUsize::new(0) }, len)
    }

    /// Reads all bytes from the file, in parallel: looks whether they are numbers and lays them out, unless that is put
    /// off. `on` is told bytes of the file consumed and may stop the load; what will not be read again is given back to
    /// the file's mapping.
    ///
    /// # Errors
    /// A scale that is no number, or the load was stopped.
    pub fn read(
        &self,
        src: &dyn WeightBytes,
        pool: &Pool,
        on: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<(), LoadError> {
        let bytes = src.bytes();
        let lays_out = matches!(self.memory, Memory::Own(_));
        for units in self.batches(0) {
            // The lowest unit that is refused, whoever finds it.
            let refused: Mutex<Option<(usize, LoadError)>> = Mutex::new(None);
            pool.run(units.len(), &|i, _| {
                let unit = units.start + i;
                if let Err(e) = src.check(self.unit_range(unit, bytes.len())) {
                    let mut refused = refused.lock().unwrap_or_else(|e| e.into_inner());
                    if refused.as_ref().is_none_or(|(other, _)| unit < *other) {
                        *refused = Some((unit, e));
                    }
                } else if lays_out {
                    self.place(unit, bytes);
                }
            });
            if let Some((_, e)) = refused.into_inner().unwrap_or_else(|e| e.into_inner()) {
                return Err(e);
            }
            let end = self.unit_range(units.end - 1, bytes.len()).end;
            if lays_out {
                src.done(end);
            }
            if on((end - self.unit_range(units.start, bytes.len()).start) as u64).is_break() {
                return Err(LoadError::Cancelled);
            }
        }
        Ok(())
    }

    /// Lays out what is left of a weight that is moving, until `by` at the latest; whether all of it lies there. Nobody
    /// else may do so at the same time; products may go on.
    pub fn settle(&self, pool: &Pool, by: Option<Instant>) -> bool {
        let Memory::Moving { bytes: src, laid, .. } = &self.memory else { return true };
        let bytes = src.bytes();
        for units in self.batches(laid.load(Ordering::Relaxed)) {
            if by.is_some_and(|by| Instant::now() >= by) {
                return false;
            }
            pool.run(units.len(), &|i, _| self.place(units.start + i, bytes));
            // From the last batch on products read the region; until then pages that were given back come from the file.
            laid.store(units.end, Ordering::Release);
            src.done(self.unit_range(units.end - 1, bytes.len()).end);
        }
        true
    }

    /// The units from `first` on, some megabytes at a time.
    fn batches(&self, first: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let (unit, units) = self.unit_bytes();
        let batch = (BATCH / unit.max(1)).max(1);
        (first..units).step_by(batch).map(move |first| first..units.min(first + batch))
    }

    fn row_bytes(&self) -> usize {
        self.dtype.row_bytes(self.dims[0]).unwrap_or(0)
    }

    /// Bytes of the file that one unit of work lays out, and the number of units: a panel's rows, or about a megabyte.
    fn unit_bytes(&self) -> (usize, usize) {
        match &self.form {
            Form::Panels(l) => (self.row_bytes() * 32, l.panels() * self.n_matrices()),
            Form::Elements | Form::Blocks => {
                let unit = ((1 << 20) / self.dtype.block_bytes()).max(1) * self.dtype.block_bytes();
                (unit, (self.row_bytes() * self.dims[1] * self.n_matrices()).div_ceil(unit))
            }
        }
    }

    /// The bytes of unit `i` of a file's `len`: whole blocks.
    fn unit_range(&self, i: usize, len: usize) -> Range<usize> {
        match &self.form {
            Form::Panels(l) => {
                let (matrix, panel) = (i / l.panels(), i % l.panels());
                let rows = panel * 32..self.dims[1].min((panel + 1) * 32);
                let at = |row: usize| (matrix * self.dims[1] + row) * self.row_bytes();
                at(rows.start)..at(rows.end)
            }
            Form::Elements | Form::Blocks => {
                let unit = self.unit_bytes().0;
                i * unit..len.min((i + 1) * unit)
            }
        }
    }

    /// Lays out unit `i`.
    fn place(&self, i: usize, bytes: &[u8]) {
        let from = self.unit_range(i, bytes.len());
        let (to, len) = match &self.form {
            Form::Panels(l) => {
                (i / l.panels() * l.bytes() + i % l.panels() * l.panel_bytes(), l.panel_bytes())
            }
            Form::Elements | Form::Blocks => (from.start, from.len()),
        };
        let region = match &self.memory {
            Memory::Own(region) | Memory::Moving { region, .. } => region,
            Memory::Mapped(_) => unreachable!("the weight is laid out"),
        };
        assert!(to + len <= region.len(), "unit {i} lies in the region");
        // SAFETY: the range lies in the region, units are disjoint, and nobody reads the region before all are placed.
        let dst = unsafe { std::slice::from_raw_parts_mut(region.ptr().add(to), len) };
        match &self.form {
            Form::Panels(l) => l.pack_panel_before(&bytes[from.clone()], &bytes[from.end..], dst),
            Form::Elements | Form::Blocks => dst.copy_from_slice(&bytes[from]),
        }
    }

    /// Where the weight is now.
    fn lies(&self) -> Lies<'_> {
        match &self.memory {
            Memory::Own(region) => Lies::Here(region),
            Memory::Mapped(bytes) => Lies::InFile(bytes.bytes()),
            Memory::Moving { bytes, region, laid } => {
                match laid.load(Ordering::Acquire) == self.unit_bytes().1 {
                    true => Lies::Here(region),
                    false => Lies::InFile(bytes.bytes()),
                }
            }
        }
    }

    /// The weight's memory, where it is laid out.
    pub fn laid_out(&self) -> Option<&[u8]> {
        match self.lies() {
            Lies::Here(region) => Some(region.as_slice()),
            Lies::InFile(_) => None,
        }
    }

    /// The start of a weight kept as elements.
    pub fn elements(&self) -> *mut u8 {
        match (&self.form, &self.memory) {
            (Form::Elements, Memory::Own(region)) => region.ptr(),
            _ => unreachable!("the weight is kept as elements"),
        }
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
            Memory::Mapped(_) | Memory::Moving { .. } => self.layout().mapped_scratch_floats(),
        }
    }

    /// A product with matrix `matrix`: [`panel::matmul`].
    pub fn product(&self, matrix: usize, product: Product, scratch: &mut [f32]) {
        let l = self.layout();
        match self.lies() {
            Lies::Here(region) => panel::matmul(l, panels(l, region, matrix), product, scratch),
            Lies::InFile(bytes) => {
                let len = self.row_bytes() * self.dims[1];
                panel::matmul_mapped(l, &bytes[matrix * len..][..len], product, scratch);
            }
        }
    }

    /// The bytes of matrix 0 from panel `panel` on, where they are laid out.
    pub fn ahead(&self, panel: usize) -> Option<&[u8]> {
        let l = self.layout();
        match self.lies() {
            Lies::Here(region) => Some(&panels(l, region, 0)[panel * l.panel_bytes()..]),
            Lies::InFile(_) => None,
        }
    }

    /// Row `i` of a table, decoded.
    pub fn row(&self, i: usize, out: &mut [f32]) {
        assert!(i < self.dims[1], "row {i} of {}", self.dims[1]);
        let n = self.row_bytes();
        match (&self.form, self.lies()) {
            (Form::Elements, _) => unreachable!("a table is kept as blocks or panels"),
            (_, Lies::InFile(bytes)) => firth_quant::decode(self.dtype, &bytes[i * n..(i + 1) * n], out),
            (Form::Panels(l), Lies::Here(region)) => l.row(panels(l, region, 0), i, out),
            (Form::Blocks, Lies::Here(region)) => {
                firth_quant::decode(self.dtype, &region.as_slice()[i * n..(i + 1) * n], out);
            }
        }
    }

    /// Matrices of a weight of experts.
    pub fn n_matrices(&self) -> usize {
        self.dims[2] * self.dims[3]
    }
}

/// Where a weight is at a moment.
enum Lies<'a> {
    Here(&'a Region),
    InFile(&'a [u8]),
}

/// Panels of matrix `i` of a weight that is laid out.
fn panels<'a>(l: &PanelLayout, region: &'a Region, i: usize) -> &'a [u8] {
    &region.as_slice()[i * l.bytes()..(i + 1) * l.bytes()]
}
