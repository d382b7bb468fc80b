//! Weights on the device.
//!
//! A matrix is kept in panels of 32 rows: word `w` of unit `u` of the panel's rows stands in 32 neighbouring
//! words, so that 32 threads with a row each read neighbouring words. A matrix beyond one binding is cut into
//! parts of whole panels, experts into parts of whole matrices.

use std::ops::{ControlFlow, Range};

use firth_graph::{Extents, LoadError, Use, WeightBytes, WeightSpec};
use firth_quant::Dtype;

use crate::format::{CHUNK, Format};
use crate::shared::Shared;

/// Rows of a panel.
pub const PANEL: usize = 32;

/// Bytes handed to the queue before it is told to go on: staging memory is freed only then.
const UPLOAD: usize = 32 << 20;

/// A buffer that holds some of a weight.
pub(crate) struct Part {
    pub buffer: wgpu::Buffer,
    /// Rows of the matrix, or matrices of experts.
    pub range: Range<usize>,
}

/// A loaded weight.
pub(crate) struct StoredWeight {
    pub dims: [usize; 4],
    /// `None` for a weight kept as the file's bytes, read by element.
    pub format: Option<Format>,
    pub parts: Vec<Part>,
}

impl StoredWeight {
    /// Units of a row.
    pub fn units(&self) -> usize {
        let (values, _) = self.format.expect("a weight in panels").unit();
        self.dims[0].div_ceil(values)
    }

    /// Chunks of a row that hold values.
    pub fn chunks(&self) -> usize {
        self.dims[0].div_ceil(CHUNK)
    }

    /// Panels of a matrix.
    pub fn panels(&self) -> usize {
        self.dims[1].div_ceil(PANEL)
    }

    /// Words of a panel.
    pub fn panel_words(&self) -> usize {
        self.units() * self.format.expect("a weight in panels").unit().1 * PANEL
    }

    /// Matrices: more than one of experts.
    pub fn n_matrices(&self) -> usize {
        self.dims[2] * self.dims[3]
    }

    /// Lanes that share the sum of one output: a function of the row's length alone, so that every kernel of
    /// the weight adds in the same order.
    pub fn lanes(&self) -> usize {
        match self.chunks() {
            ..=7 => 1,
            8..=63 => 4,
            _ => 8,
        }
    }
}

fn dims(w: &WeightSpec) -> [usize; 4] {
    w.shape.dims(&Extents::default())
}

fn in_panels(w: &WeightSpec) -> bool {
    !w.uses.contains(&Use::Elements)
}

/// A weight as it would be loaded, over a buffer that holds nothing.
pub(crate) fn imagined(shared: &Shared, w: &WeightSpec) -> StoredWeight {
    let format = in_panels(w).then(|| Format::of(w.dtype));
    let mut out = StoredWeight { dims: dims(w), format, parts: Vec::new() };
    let part = |range| Part { buffer: shared.nothing.clone(), range };
    out.parts = match format {
        None => vec![part(0..out.dims[1])],
        Some(_) => Cut::new(shared, &out).ranges(&out).into_iter().map(part).collect(),
    };
    out
}

/// Bytes that a weight takes.
pub(crate) fn weight_bytes(w: &WeightSpec) -> u64 {
    let d = dims(w);
    let matrices = (d[2] * d[3]) as u64;
    if !in_panels(w) {
        return w.dtype.row_bytes(d[0]).unwrap_or(0) as u64 * d[1] as u64 * matrices;
    }
    let (values, words) = Format::of(w.dtype).unit();
    (d[0].div_ceil(values) * words * PANEL * 4) as u64 * d[1].div_ceil(PANEL) as u64 * matrices
}

/// Words on their way to a buffer.
struct Upload<'a> {
    shared: &'a Shared,
    pending: usize,
}

impl Upload<'_> {
    fn write(&mut self, buffer: &wgpu::Buffer, at: u64, bytes: &[u8]) -> Result<(), LoadError> {
        // Whole words; what fills them up lies in the buffer, whose size is a multiple of 16.
        let whole = bytes.len() / 4 * 4;
        self.shared.conn.queue.write_buffer(buffer, at, &bytes[..whole]);
        if whole < bytes.len() {
            let mut last = [0; 4];
            last[..bytes.len() - whole].copy_from_slice(&bytes[whole..]);
            self.shared.conn.queue.write_buffer(buffer, at + whole as u64, &last);
        }
        self.pending += bytes.len();
        if self.pending < UPLOAD { Ok(()) } else { self.flush() }
    }

    fn flush(&mut self) -> Result<(), LoadError> {
        self.pending = 0;
        self.shared.conn.queue.submit([]);
        // Losing the device is told by the check.
        let _ = self.shared.wait();
        self.shared.alive()
    }
}

/// Loads a weight; `on` is told bytes of the file consumed.
pub(crate) fn load(
    shared: &Shared,
    w: &WeightSpec,
    src: &dyn WeightBytes,
    on: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<StoredWeight, LoadError> {
    let dims = dims(w);
    let format = in_panels(w).then(|| Format::of(w.dtype));
    let mut out = StoredWeight { dims, format, parts: Vec::new() };
    let mut up = Upload { shared, pending: 0 };
    match format {
        None => elements(&mut up, w, src, on, &mut out)?,
        Some(f) => panels(&mut up, f, w, src, on, &mut out)?,
    }
    up.flush()?;
    src.done(src.bytes().len());
    Ok(out)
}

const USAGE: wgpu::BufferUsages = wgpu::BufferUsages::STORAGE.union(wgpu::BufferUsages::COPY_DST);

fn too_large(shared: &Shared, w: &WeightSpec, what: &str, bytes: u64) -> LoadError {
    let reason =
        format!("{what} of weight `{}` takes {bytes} bytes, a kernel sees {}", w.name, shared.max_binding());
    LoadError::Device { device: shared.name.clone(), reason }
}

fn elements(
    up: &mut Upload,
    w: &WeightSpec,
    src: &dyn WeightBytes,
    on: &mut dyn FnMut(u64) -> ControlFlow<()>,
    out: &mut StoredWeight,
) -> Result<(), LoadError> {
    let bytes = src.bytes();
    src.check(0..bytes.len())?;
    if bytes.len() as u64 > up.shared.max_binding() {
        return Err(too_large(up.shared, w, "the whole", bytes.len() as u64));
    }
    let buffer = up.shared.buffer(&w.name, bytes.len() as u64, USAGE)?;
    up.shared.clear(&buffer, bytes.len().next_multiple_of(4) as u64);
    for (i, piece) in bytes.chunks(UPLOAD).enumerate() {
        up.write(&buffer, (i * UPLOAD) as u64, piece)?;
        proceed(on(piece.len() as u64))?;
    }
    out.parts.push(Part { buffer, range: 0..w.shape.dims(&Extents::default())[1] });
    Ok(())
}

fn proceed(flow: ControlFlow<()>) -> Result<(), LoadError> {
    match flow {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(LoadError::Cancelled),
    }
}

fn panels(
    up: &mut Upload,
    format: Format,
    w: &WeightSpec,
    src: &dyn WeightBytes,
    on: &mut dyn FnMut(u64) -> ControlFlow<()>,
    out: &mut StoredWeight,
) -> Result<(), LoadError> {
    let n = out.dims[1];
    let (panels, panel_bytes) = (out.panels(), out.panel_words() as u64 * 4);
    let cut = Cut::new(up.shared, out);
    if cut.fit == 0 {
        let what = if out.n_matrices() == 1 { "a panel of 32 rows" } else { "an expert" };
        return Err(too_large(up.shared, w, what, cut.item_bytes));
    }
    let mut packer =
        Packer { format, dtype: w.dtype, words: Vec::new(), row: Vec::new(), widened: Vec::new() };
    let row_bytes = w.dtype.row_bytes(out.dims[0]).expect("rows are whole blocks");
    for (items, range) in cut.items().zip(cut.ranges(out)) {
        let buffer = up.shared.buffer(&w.name, cut.item_bytes * items.len() as u64, USAGE)?;
        let first = items.start * cut.item_panels;
        for p in first..items.end * cut.item_panels {
            let (matrix, panel) = (p / panels, p % panels);
            let rows = matrix * n + panel * PANEL..matrix * n + n.min((panel + 1) * PANEL);
            let end = rows.end * row_bytes;
            src.check(rows.start * row_bytes..end)?;
            let bytes = &src.bytes()[rows.start * row_bytes..end];
            let packed = packer.panel(bytes, row_bytes);
            up.write(&buffer, (p - first) as u64 * panel_bytes, bytemuck::cast_slice(packed))?;
            src.done(end);
            proceed(on(bytes.len() as u64))?;
        }
        out.parts.push(Part { buffer, range });
    }
    Ok(())
}

/// How a weight is cut into parts: of a matrix panels, of experts whole matrices.
struct Cut {
    n: usize,
    /// Items of a part at most.
    fit: usize,
    item_panels: usize,
    item_bytes: u64,
}

impl Cut {
    fn new(shared: &Shared, w: &StoredWeight) -> Self {
        let (matrices, panels) = (w.n_matrices(), w.panels());
        let (n, item_panels) = if matrices == 1 { (panels, 1) } else { (matrices, panels) };
        let item_bytes = w.panel_words() as u64 * 4 * item_panels as u64;
        Cut { n, fit: (shared.max_binding() / item_bytes.max(1)) as usize, item_panels, item_bytes }
    }

    fn items(&self) -> impl Iterator<Item = Range<usize>> {
        let (n, fit) = (self.n, self.fit.max(1));
        (0..n).step_by(fit).map(move |first| first..n.min(first + fit))
    }

    /// Rows or matrices of each part.
    fn ranges(&self, w: &StoredWeight) -> Vec<Range<usize>> {
        let rows = |r: Range<usize>| match w.n_matrices() {
            1 => r.start * PANEL..w.dims[1].min(r.end * PANEL),
            _ => r,
        };
        self.items().map(rows).collect()
    }
}

struct Packer {
    format: Format,
    dtype: Dtype,
    words: Vec<u32>,
    row: Vec<u32>,
    widened: Vec<f32>,
}

impl Packer {
    /// Up to 32 rows, each word beside that of the next row.
    fn panel(&mut self, bytes: &[u8], row_bytes: usize) -> &[u32] {
        self.words.clear();
        for (r, row) in bytes.chunks(row_bytes.max(1)).enumerate() {
            self.format.pack_row(self.dtype, row, &mut self.widened, &mut self.row);
            self.words.resize(self.row.len() * PANEL, 0);
            for (i, w) in self.row.iter().enumerate() {
                self.words[i * PANEL + r] = *w;
            }
        }
        &self.words
    }
}
