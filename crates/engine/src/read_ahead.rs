//! Reading a file ahead of a load: the load itself touches pages one after the other, and would wait for each.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use firth_gguf::{Gguf, TensorInfo};
use firth_graph::{Graph, WeightSource};

/// Bytes that are read before they are used: what a disk reads while the load has something else to do. More would push
/// out of memory what a file larger than it still needs.
const AHEAD: u64 = 128 << 20;
/// Bytes between two looks how far the load has come.
const PIECE: usize = 8 << 20;
/// Bytes read at once.
const READ: usize = 1 << 20;
/// How often the reader looks how far the load has come: a megabyte of a fast disk.
const LOOK: Duration = Duration::from_micros(500);

/// What a load tells the thread that reads ahead of it.
pub struct Progress<'a> {
    file: &'a Gguf,
    used: OnceLock<Vec<&'a TensorInfo>>,
    consumed: AtomicU64,
    over: AtomicBool,
}

impl Progress<'_> {
    /// The tensors of `graphs` will be used; until this is known all of the file's are the guess.
    pub fn comes(&self, graphs: &[&Graph]) {
        let _ = self.used.set(tensors(self.file, graphs));
    }

    /// So many more bytes have been used.
    pub fn consumed(&self, bytes: u64) {
        self.consumed.fetch_add(bytes, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Reads what the disk still has, in pieces and in the file's order, in which a disk is fastest and which is nearly
    /// that of the load: from the start until it is known what will be used, then that.
    fn read(&self) {
        let mut scratch = vec![0; READ];
        let mut guessed = 0;
        for (t, piece) in pieces(self.file.tensors()) {
            if self.used.get().is_some() || self.is_over() || guessed >= AHEAD {
                break;
            }
            guessed += piece.len() as u64;
            self.file.read_ahead(t, piece, &mut scratch);
        }
        let used = loop {
            match self.used.get() {
                Some(used) => break used,
                None if self.is_over() => return,
                None => std::thread::sleep(LOOK),
            }
        };
        let mut read = 0;
        for (t, piece) in pieces(used.iter().copied()) {
            while read >= self.consumed.load(Ordering::Relaxed) + AHEAD && !self.is_over() {
                std::thread::sleep(LOOK);
            }
            if self.is_over() {
                return;
            }
            read += piece.len() as u64;
            self.file.read_ahead(t, piece, &mut scratch);
        }
    }
}

/// The bytes of tensors, some megabytes at a time.
fn pieces<'a>(
    tensors: impl IntoIterator<Item = &'a TensorInfo>,
) -> impl Iterator<Item = (&'a TensorInfo, Range<usize>)> {
    tensors.into_iter().flat_map(|t| {
        let len = t.len as usize;
        (0..len).step_by(PIECE).map(move |start| (t, start..len.min(start + PIECE)))
    })
}

/// Runs a load while another thread reads ahead of it what the disk still has.
pub fn reading_ahead<T>(file: &Gguf, load: impl FnOnce(&Progress) -> T) -> T {
    let progress =
        Progress { file, used: OnceLock::new(), consumed: AtomicU64::new(0), over: AtomicBool::new(false) };
    std::thread::scope(|s| {
        s.spawn(|| progress.read());
        // However the load ends: the scope waits for the thread.
        let _over = Over(&progress.over);
        load(&progress)
    })
}

/// Says at its end that the load is over.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The tensors of all graphs, each once, as the files have them.
fn tensors<'a>(file: &'a Gguf, graphs: &[&Graph]) -> Vec<&'a TensorInfo> {
    let weights = graphs.iter().flat_map(|g| &g.weights);
    let names: HashSet<&str> = weights
        .filter_map(|w| match &w.source {
            WeightSource::File(name) => Some(name.as_str()),
            _ => None,
        })
        .collect();
    let mut used: Vec<_> = file.tensors().iter().filter(|t| names.contains(t.name.as_str())).collect();
    used.sort_by_key(|t| (t.shard, t.offset));
    used
}
