//! States of the device: pools of pages of keys and values, and of slots of recurrences and rings.
//!
//! A page holds [`PAGE`] tokens. A head's keys lie as `[64]` words for each word of a key (so that threads with
//! a key each read neighbouring words), its values as rows of words. Two halves or four integers share a word.
//! The scales of Q8_0 follow the integers, two blocks to a word, in the same orders.
//!
//! A slot holds words: of a recurrence first its base with columns side by side (`[column][key]`, column fastest),
//! then the rows of its log; of a ring its rows.

use firth_graph::{KvSpec, LoadError, Lost, PAGE, StateSpec};
use firth_quant::Dtype;

use crate::shared::Shared;

/// Pages or slots of one state, in as many buffers as bindings ask for.
pub(crate) struct Pool {
    /// Pages.
    n: usize,
    /// Words of a page.
    pub words: usize,
    /// Pages of a buffer.
    pub per_buffer: usize,
    pub buffers: Vec<wgpu::Buffer>,
}

/// A state of the device.
pub(crate) struct State {
    pub spec: StateSpec,
    pub pool: Pool,
}

/// Buffers that a kernel can see besides arena and two operands of its own.
const MAX_BUFFERS: usize = 5;

const USAGE: wgpu::BufferUsages =
    wgpu::BufferUsages::STORAGE.union(wgpu::BufferUsages::COPY_DST).union(wgpu::BufferUsages::COPY_SRC);

/// Words of one row of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowWords {
    /// Words of elements.
    pub elements: usize,
    /// Words of scales behind them.
    pub scales: usize,
}

impl RowWords {
    pub fn new(dtype: Dtype, n: usize) -> Self {
        match dtype {
            Dtype::F32 => RowWords { elements: n, scales: 0 },
            Dtype::F16 => RowWords { elements: n.div_ceil(2), scales: 0 },
            _ => RowWords { elements: n / 4, scales: (n / 32).div_ceil(2) },
        }
    }

    pub fn all(self) -> usize {
        self.elements + self.scales
    }
}

/// Whether the device keeps such a state.
pub(crate) fn is_supported(kv: &KvSpec) -> bool {
    match kv.dtype {
        Dtype::F32 | Dtype::F16 => true,
        Dtype::Q8_0 => kv.key_dim.is_multiple_of(32) && kv.value_dim.is_multiple_of(32),
        _ => false,
    }
}

/// A layer's keys and values: how its pages are laid out.
#[derive(Clone, Copy)]
pub(crate) struct KvLayout(pub KvSpec);

impl KvLayout {
    pub fn key(&self) -> RowWords {
        RowWords::new(self.0.dtype, self.0.key_dim)
    }

    pub fn value(&self) -> RowWords {
        RowWords::new(self.0.dtype, self.0.stored_value_dim())
    }

    /// Words of one head of a page.
    fn head_words(&self) -> usize {
        (self.key().all() + self.value().all()) * PAGE
    }

    /// Words of a page.
    fn page_words(&self) -> usize {
        self.head_words() * self.0.n_heads
    }

    /// Ranges of device bytes, in the order of the saved page: everything but what fills up words.
    fn used(&self) -> Vec<(usize, usize)> {
        let (key, value) = (self.key(), self.value());
        let dtype = self.0.dtype;
        let (keys, values) = (self.0.key_dim, self.0.stored_value_dim());
        let mut out = Vec::new();
        for head in 0..self.0.n_heads {
            let mut at = head * self.head_words() * 4;
            for (words, n, transposed) in [(key, keys, true), (value, values, false)] {
                plane(&mut out, at, words.elements, n * element_bytes(dtype), transposed);
                at += words.elements * PAGE * 4;
                let scales = if dtype == Dtype::Q8_0 { n / 32 * 2 } else { 0 };
                plane(&mut out, at, words.scales, scales, transposed);
                at += words.scales * PAGE * 4;
            }
        }
        out
    }
}

impl Pool {
    fn new(shared: &Shared, words: usize, n: usize) -> Result<Self, LoadError> {
        let page = words as u64 * 4;
        let per_buffer = ((shared.max_binding() / page.max(1)) as usize).min(n.max(1));
        if per_buffer == 0 || n.div_ceil(per_buffer) > MAX_BUFFERS {
            let free = shared.max_binding() * MAX_BUFFERS as u64;
            let (what, device) = ("the state of a layer".into(), shared.name.clone());
            return Err(LoadError::OutOfMemory { what, device, needed: page * n as u64, free });
        }
        let mut buffers = Vec::new();
        for first in (0..n.max(1)).step_by(per_buffer) {
            let pages = per_buffer.min(n.max(1) - first) as u64;
            buffers.push(shared.zeros("state", pages * page, USAGE)?);
        }
        Ok(Pool { n, words, per_buffer, buffers })
    }

    fn bytes(&self) -> u64 {
        self.words as u64 * 4
    }

    /// Buffer of a page and its first byte there.
    fn at(&self, page: usize) -> (&wgpu::Buffer, u64) {
        assert!(page < self.n, "page {page} of {}", self.n);
        (&self.buffers[page / self.per_buffer], (page % self.per_buffer) as u64 * self.bytes())
    }

    fn copy(&self, shared: &Shared, from: usize, to: usize) -> Result<(), Lost> {
        assert_ne!(from, to, "a page is not copied onto itself");
        let ((a, at_a), (b, at_b)) = (self.at(from), self.at(to));
        let mut encoder = shared.conn.device.create_command_encoder(&Default::default());
        if a == b {
            // No copy within one buffer: it goes through another.
            let between = self.staging(shared, wgpu::BufferUsages::COPY_SRC);
            encoder.copy_buffer_to_buffer(a, at_a, &between, 0, self.bytes());
            encoder.copy_buffer_to_buffer(&between, 0, b, at_b, self.bytes());
        } else {
            encoder.copy_buffer_to_buffer(a, at_a, b, at_b, self.bytes());
        }
        shared.conn.queue.submit([encoder.finish()]);
        shared.check()
    }

    fn staging(&self, shared: &Shared, usage: wgpu::BufferUsages) -> wgpu::Buffer {
        shared.conn.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("page"),
            size: self.bytes().max(4),
            usage: usage | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        })
    }

    /// Hands the words of a page to `f`.
    fn read(&self, shared: &Shared, page: usize, f: impl FnOnce(&[u8])) -> Result<(), Lost> {
        let staging = self.staging(shared, wgpu::BufferUsages::MAP_READ);
        let (buffer, at) = self.at(page);
        let mut encoder = shared.conn.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(buffer, at, &staging, 0, self.bytes());
        shared.conn.queue.submit([encoder.finish()]);
        let slice = staging.slice(..self.bytes());
        let fault = shared.conn.fault.clone();
        slice.map_async(wgpu::MapMode::Read, move |r| {
            if let Err(e) = r {
                fault.set(format!("a page cannot be read: {e}"));
            }
        });
        shared.wait()?;
        match slice.get_mapped_range() {
            Ok(view) => f(&view),
            Err(e) => shared.conn.fault.set(format!("a page cannot be read: {e}")),
        }
        shared.check()
    }

    fn write(&self, shared: &Shared, page: usize, bytes: &[u8]) -> Result<(), Lost> {
        let (buffer, at) = self.at(page);
        shared.conn.queue.write_buffer(buffer, at, bytes);
        shared.conn.queue.submit([]);
        shared.check()
    }
}

impl State {
    /// `n` pages or slots.
    pub fn new(shared: &Shared, spec: &StateSpec, n: usize) -> Result<Self, LoadError> {
        Ok(State { spec: spec.clone(), pool: Pool::new(shared, words(spec), n)? })
    }

    /// A state as it would be made, in one buffer that holds nothing.
    pub fn imagined(shared: &Shared, spec: &StateSpec) -> Self {
        let words = words(spec);
        let pool = Pool { n: 1, words, per_buffer: 1, buffers: vec![shared.nothing.clone()] };
        State { spec: spec.clone(), pool }
    }

    /// The layout of keys and values.
    pub fn kv(&self) -> KvLayout {
        let StateSpec::Kv(kv) = self.spec else { unreachable!("the op's rule makes it keys and values") };
        KvLayout(kv)
    }

    /// Copies page `from` to page `to`.
    pub fn copy(&self, shared: &Shared, from: usize, to: usize) -> Result<(), Lost> {
        self.pool.copy(shared, from, to)
    }

    /// Reads a page in the size that its specification states: without what fills up words.
    pub fn read(&self, shared: &Shared, page: usize, out: &mut [u8]) -> Result<(), Lost> {
        assert_eq!(out.len(), self.spec.page_bytes(), "bytes of a page");
        self.pool.read(shared, page, |device| {
            let mut to = 0;
            for (at, len) in self.used() {
                out[to..to + len].copy_from_slice(&device[at..at + len]);
                to += len;
            }
            assert_eq!(to, out.len(), "a page holds what its specification says");
        })
    }

    /// Writes a page.
    pub fn write(&self, shared: &Shared, page: usize, bytes: &[u8]) -> Result<(), Lost> {
        assert_eq!(bytes.len(), self.spec.page_bytes(), "bytes of a page");
        let mut device = vec![0; self.pool.words * 4];
        let mut at_saved = 0;
        for (at, len) in self.used() {
            device[at..at + len].copy_from_slice(&bytes[at_saved..at_saved + len]);
            at_saved += len;
        }
        self.pool.write(shared, page, &device)
    }

    fn used(&self) -> Vec<(usize, usize)> {
        match self.spec {
            StateSpec::Kv(kv) => KvLayout(kv).used(),
            _ => vec![(0, self.pool.words * 4)],
        }
    }
}

/// Words of a page or slot.
fn words(spec: &StateSpec) -> usize {
    match spec {
        StateSpec::Kv(kv) => KvLayout(*kv).page_words(),
        StateSpec::Recurrent(_) | StateSpec::Ring(_) => spec.page_bytes() / 4,
    }
}

/// Bytes of a state at most: what a kernel can see of it, less what pages that fill no buffer leave over.
pub(crate) fn max_bytes(max_binding: u64) -> u64 {
    max_binding / 8 * 7 * MAX_BUFFERS as u64
}

fn element_bytes(dtype: Dtype) -> usize {
    match dtype {
        Dtype::F32 => 4,
        Dtype::F16 => 2,
        _ => 1,
    }
}

/// The used bytes of 64 rows of `words` words of which `bytes` bytes carry something.
fn plane(out: &mut Vec<(usize, usize)>, at: usize, words: usize, bytes: usize, transposed: bool) {
    if bytes == words * 4 {
        out.push((at, words * 4 * PAGE));
        return;
    }
    for row in 0..PAGE {
        for w in 0..words {
            let index = if transposed { w * PAGE + row } else { row * words + w };
            out.push((at + index * 4, bytes.saturating_sub(w * 4).min(4)));
        }
    }
}
