//! States of the CPU device: pools of pages of keys and values, and slots of recurrences and rings.
//!
//! One page holds [`PAGE`] tokens: for each head first the keys, transposed (`[key_dim][64]`, so that lanes run
//! along keys), then the values (`[64][value_dim]`, so that lanes run along the head). Q8_0 keeps its scales
//! behind the integers: `[key_dim / 32][64]` for keys, `[64][value_dim / 32]` for values. Of a value that lies in
//! its key nothing is stored besides the key.
//!
//! A slot holds f32 (or i32) words: of a recurrence first the base, its value dims in blocks of
//! [`COLUMNS`] (`[heads][block][key_dim][columns of the block]`, so that lanes run along value dims and the columns
//! that a chunk works on are one stretch of memory), then the log's rows; of a ring its rows.

use std::sync::Arc;

use firth_graph::{KvSpec, PAGE, StateSpec};
use firth_quant::Dtype;
use firth_simd::{Kernel, LANES, Level, Simd, dispatch};

use crate::memory::{Enlarging, Region};

/// Pages of one layer.
pub struct KvPages {
    /// What they hold.
    pub spec: KvSpec,
    n_pages: usize,
    region: Region,
}

/// A state of the device.
#[derive(Clone)]
pub enum CpuState {
    /// Pages of keys and values.
    Kv(Arc<KvPages>),
    /// Slots of a recurrence or a ring.
    Slots(Arc<Slots>),
}

impl CpuState {
    /// `n` pages or slots, or `None` when memory does not suffice.
    pub fn new(spec: &StateSpec, n: usize) -> Option<Self> {
        Some(match spec {
            StateSpec::Kv(kv) => CpuState::Kv(Arc::new(KvPages::new(*kv, n)?)),
            StateSpec::Recurrent(_) | StateSpec::Ring(_) => CpuState::Slots(Arc::new(Slots::new(spec, n)?)),
        })
    }

    /// What gives it huge pages: of a long pool a short text touches little, and gets no more.
    pub fn enlarging(&self) -> Enlarging {
        match self {
            CpuState::Kv(kv) => kv.region.enlarging(),
            CpuState::Slots(s) => s.region.enlarging(),
        }
    }

    /// The start of a page or slot, and its bytes.
    fn bytes(&self, at: usize) -> (*mut u8, usize) {
        match self {
            CpuState::Kv(kv) => (kv.page(at), kv.spec.page_bytes()),
            CpuState::Slots(s) => (s.slot(at).cast(), s.words * 4),
        }
    }

    /// Copies page or slot `from` to `to`.
    pub fn copy(&self, from: usize, to: usize) {
        assert_ne!(from, to, "a page is not copied onto itself");
        let ((from, n), (to, _)) = (self.bytes(from), self.bytes(to));
        // SAFETY: two different existing pages or slots; no step runs during a copy.
        unsafe { std::ptr::copy_nonoverlapping(from, to, n) };
    }

    /// Reads a page or slot.
    pub fn read(&self, at: usize, out: &mut [u8]) {
        let (from, n) = self.bytes(at);
        assert_eq!(out.len(), n, "bytes of a page");
        // SAFETY: an existing page or slot and as many bytes; no step runs during a read.
        unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), n) };
    }

    /// Writes a page or slot.
    pub fn restore(&self, at: usize, bytes: &[u8]) {
        let (to, n) = self.bytes(at);
        assert_eq!(bytes.len(), n, "bytes of a page");
        // SAFETY: an existing page or slot and as many bytes; no step runs during a write.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, n) };
    }
}

/// Value dims of a block of a recurrence's base: what a thread works on at a time.
pub const COLUMNS: usize = 32;

/// Slots of one state.
pub struct Slots {
    /// What they hold.
    pub spec: StateSpec,
    /// Words of a slot.
    pub words: usize,
    stride: usize,
    n_slots: usize,
    region: Region,
}

impl Slots {
    fn new(spec: &StateSpec, n_slots: usize) -> Option<Self> {
        let bytes = spec.page_bytes();
        let stride = bytes.next_multiple_of(64);
        let region = Region::small(stride.checked_mul(n_slots)?.checked_add(PADDING)?)?;
        Some(Slots { spec: spec.clone(), words: bytes / 4, stride, n_slots, region })
    }

    /// The start of a slot; panics on a slot that does not exist.
    pub fn slot(&self, slot: usize) -> *mut f32 {
        assert!(slot < self.n_slots, "slot {slot} of {}", self.n_slots);
        self.region.ptr().wrapping_add(slot * self.stride).cast()
    }
}

/// Bytes past a row that a kernel's whole-register load may read.
const PADDING: usize = 256;

impl KvPages {
    /// `n_pages` pages, or `None` when memory does not suffice.
    pub fn new(spec: KvSpec, n_pages: usize) -> Option<Self> {
        let bytes = spec.page_bytes().checked_mul(n_pages)?.checked_add(PADDING)?;
        Some(KvPages { spec, n_pages, region: Region::small(bytes)? })
    }

    /// The start of a page; panics on a page that does not exist.
    pub fn page(&self, page: usize) -> *mut u8 {
        assert!(page < self.n_pages, "page {page} of {}", self.n_pages);
        self.region.ptr().wrapping_add(page * self.spec.page_bytes())
    }

    /// Bytes of one head's keys in a page; its values follow.
    pub fn key_bytes(&self) -> usize {
        self.spec.dtype.row_bytes(self.spec.key_dim).unwrap_or(0) * PAGE
    }

    /// Bytes of one head in a page.
    pub fn head_bytes(&self) -> usize {
        self.key_bytes() + self.spec.dtype.row_bytes(self.spec.stored_value_dim()).unwrap_or(0) * PAGE
    }

    /// Writes key and value of `head` at `pos` of `page`, rounded to the state's type.
    ///
    /// # Safety
    /// No other thread touches this position of the page meanwhile.
    pub unsafe fn write(&self, level: Level, page: usize, pos: usize, head: usize, k: &[f32], v: &[f32]) {
        assert!(pos < PAGE && head < self.spec.n_heads, "position {pos}, head {head}");
        assert!(k.len() == self.spec.key_dim && v.len() == self.spec.stored_value_dim(), "row of a head");
        let keys = self.page(page).wrapping_add(head * self.head_bytes());
        let values = keys.wrapping_add(self.key_bytes());
        // SAFETY: position, head and lengths are checked, so every address lies in the page; nobody else
        // touches the position.
        unsafe {
            match self.spec.dtype {
                Dtype::F32 => {
                    scatter(keys.cast::<f32>(), k, PAGE, pos, |x| x);
                    scatter(values.cast::<f32>(), v, 1, pos * v.len(), |x| x);
                }
                Dtype::F16 => {
                    let (keys, values) = (keys.cast::<u16>().add(pos), values.cast::<u16>());
                    dispatch(level, ScatterF16 { to: keys, x: k, stride: PAGE });
                    dispatch(level, ScatterF16 { to: values.add(pos * v.len()), x: v, stride: 1 });
                }
                _ => {
                    let scales = keys.wrapping_add(k.len() * PAGE).cast::<u16>();
                    blocks(k, |i, scale, q| {
                        *scales.add(i / 32 * PAGE + pos) = scale;
                        q.iter().enumerate().for_each(|(j, q)| *keys.add((i + j) * PAGE + pos) = *q);
                    });
                    let scales = values.wrapping_add(v.len() * PAGE).cast::<u16>();
                    blocks(v, |i, scale, q| {
                        *scales.add(pos * (v.len() / 32) + i / 32) = scale;
                        q.iter().enumerate().for_each(|(j, q)| *values.add(pos * v.len() + i + j) = *q);
                    });
                }
            }
        }
    }
}

/// Writes `f(x[i])` at `base[i * stride + offset]`.
///
/// # Safety
/// Those elements are writable.
unsafe fn scatter<T>(base: *mut T, x: &[f32], stride: usize, offset: usize, f: impl Fn(f32) -> T) {
    for (i, x) in x.iter().enumerate() {
        // SAFETY: by the function's contract.
        unsafe { base.add(i * stride + offset).write(f(*x)) };
    }
}

/// Writes `x[i]`, rounded to f16, at `to[i * stride]`: elements that are writable.
struct ScatterF16<'a> {
    to: *mut u16,
    x: &'a [f32],
    stride: usize,
}

impl Kernel for ScatterF16<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut sixteen = [0; LANES];
        for (i, x) in self.x.chunks(LANES).enumerate() {
            s.store_f16(&mut sixteen, s.load_partial(x, 0.0));
            for (j, x) in sixteen[..x.len()].iter().enumerate() {
                // SAFETY: the maker vouches for as many elements as `x` has.
                unsafe { self.to.add((i * LANES + j) * self.stride).write(*x) };
            }
        }
    }
}

/// Q8_0 blocks of a row: first index, scale bits, 32 integers. A row that has none (NaN, infinity) gets a NaN
/// scale, which shows in every logit that reads it.
fn blocks(x: &[f32], mut put: impl FnMut(usize, u16, &[u8])) {
    let mut block = [0u8; 34];
    for (b, x) in x.chunks_exact(32).enumerate() {
        if firth_quant::encode(Dtype::Q8_0, x, &mut block).is_err() {
            block = [0; 34];
            block[..2].copy_from_slice(&0x7e00u16.to_le_bytes());
        }
        put(b * 32, u16::from_le_bytes([block[0], block[1]]), &block[2..]);
    }
}
