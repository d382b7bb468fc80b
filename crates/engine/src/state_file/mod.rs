//! Sequences in files: saved by one process, gone on with by another, with the same bits.
//!
//! A state file names what its bits depend on: [`NUMERICS`], the model, the type of keys and
//! values, the name of the device of each state, and the sizes of all states, which the longest draft is part of. The
//! length of the context, the number of sequences, threads and instruction sets are free. A page is saved whole: what
//! lies in it above the sequence's length is whatever was there, and is never read.

mod checksum;
mod error;
mod header;
mod load;
mod save;

pub use error::StateFileError;

use checksum::Checksum;
use firth_gguf::{Gguf, Value};
use firth_graph::{Graph, Resources, RopeSpec, StateId, WeightSource};
use firth_memory::Books;
use header::{Header, StateEntry};

use crate::load::Engine;

/// The number of the bits that `docs/numerics.md` defines, raised whenever those of any kernel or the order of a device's
/// states change.
pub const NUMERICS: u32 = 3;

/// What of a loaded model state files need.
pub(crate) struct Identity {
    model: u64,
    kv: String,
    states: Vec<Kept>,
}

/// A state on its device.
struct Kept {
    entry: StateEntry,
    device: usize,
    id: StateId,
}

impl Identity {
    pub fn new(file: &Gguf, main: &Graph, kv: &str, resources: &Resources) -> Identity {
        let state = |s: &firth_graph::StateDecl| {
            let (device, id) = resources.state(&s.name).expect("a loaded graph's states exist");
            let entry = StateEntry {
                name: s.name.clone(),
                device: resources.devices[device].info().name.clone(),
                group: s.spec.group().map(|g| g.0),
                bytes: s.spec.page_bytes() as u64,
            };
            Kept { entry, device, id }
        };
        Identity {
            model: model_hash(file, main),
            kv: kv.into(),
            states: main.states.iter().map(state).collect(),
        }
    }
}

/// A hash of what the bits of a model depend on: the headers of its files and 64 bytes of each tensor, single values
/// of the metadata as they were overridden, and its rope tables, which may depend on the context.
fn model_hash(file: &Gguf, main: &Graph) -> u64 {
    let mut sum = Checksum::new();
    sum.update(&file.content_hash().to_le_bytes());
    for (key, value) in file.metadata().iter().filter(|(_, v)| !matches!(v, Value::Array(_))) {
        sum.update(format!("{key}={value:?};").as_bytes());
    }
    for w in &main.weights {
        if let WeightSource::Rope(rope) = &w.source {
            let rope = RopeSpec { n_positions: 0, ..rope.clone() };
            sum.update(format!("{rope:?};").as_bytes());
        }
    }
    sum.value()
}

impl Engine {
    /// A number of what the bits of an answer depend on besides the request: model, type of keys and values, kinds of
    /// devices and [`NUMERICS`].
    pub fn fingerprint(&self) -> u64 {
        let mut sum = Checksum::new();
        sum.update(&self.identity.model.to_le_bytes());
        sum.update(&NUMERICS.to_le_bytes());
        sum.update(self.identity.kv.as_bytes());
        for s in &self.identity.states {
            sum.update(s.entry.device.as_bytes());
        }
        sum.value()
    }

    /// The header of a sequence with these books.
    fn header(&self, books: Books) -> Header {
        Header {
            model: self.identity.model,
            kv: self.identity.kv.clone(),
            longest_draft: self.memory.spec().slots.map_or(0, |s| s.longest_draft as u64),
            states: self.identity.states.iter().map(|s| s.entry.clone()).collect(),
            books,
        }
    }

    /// Bytes of pages and slots of a sequence whose books fit this model; `None` past 2^64.
    fn payload(&self, books: &Books) -> Option<u64> {
        let n_pages = books.tokens.len().div_ceil(firth_graph::PAGE);
        let mut states = self.identity.states.iter();
        states.try_fold(0u64, |sum, s| {
            let n = match s.entry.group {
                Some(g) => n_pages.checked_sub(books.first_pages[g as usize])?,
                None => usize::from(books.state.is_some()),
            };
            sum.checked_add(s.entry.bytes.checked_mul(n as u64)?)
        })
    }
}
