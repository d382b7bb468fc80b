//! Reading a file ahead of a load: the load itself touches pages one after the other, and would wait for each.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use firth_gguf::{Gguf, TensorInfo};
use firth_graph::{Graph, WeightSource};

/// Bytes that are read before they are used: a few pieces, since what runs far ahead reads beside the load.
const AHEAD: u64 = 32 << 20;
/// Bytes between two looks how far the load has come.
const PIECE: usize = 8 << 20;
/// Bytes read at once.
const READ: usize = 1 << 20;
/// How often the reader looks how far the load has come: a megabyte of a fast disk.
const LOOK: Duration = Duration::from_micros(500);

/// Runs a load, which tells `on` the bytes of the file that it consumed, while another thread reads what the disk still
/// has of the tensors of `graphs`, in their order.
pub fn reading_ahead<T>(
    file: &Gguf,
    graphs: &[&Graph],
    on: &mut dyn FnMut(u64) -> ControlFlow<()>,
    load: impl FnOnce(&mut dyn FnMut(u64) -> ControlFlow<()>) -> T,
) -> T {
    let tensors = tensors(file, graphs);
    let (consumed, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|s| {
        s.spawn(|| {
            let (mut read, mut scratch) = (0, vec![0; READ]);
            for t in tensors {
                for start in (0..t.len as usize).step_by(PIECE) {
                    while read >= consumed.load(Ordering::Relaxed) + AHEAD {
                        if over.load(Ordering::Relaxed) {
                            return;
                        }
                        std::thread::sleep(LOOK);
                    }
                    let piece = start..(start + PIECE).min(t.len as usize);
                    read += piece.len() as u64;
                    file.read_ahead(t, piece, &mut scratch);
                }
            }
        });
        // However the load ends: the scope waits for the thread.
        let _over = Over(&over);
        load(&mut |bytes| {
            consumed.fetch_add(bytes, Ordering::Relaxed);
            on(bytes)
        })
    })
}

/// Says at its end that the load is over.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The tensors of all graphs, each once.
fn tensors<'a>(file: &'a Gguf, graphs: &[&Graph]) -> Vec<&'a TensorInfo> {
    let mut by_name: HashMap<&str, &TensorInfo> =
        file.tensors().iter().map(|t| (t.name.as_str(), t)).collect();
    let weights = graphs.iter().flat_map(|g| &g.weights);
    let named = weights.filter_map(|w| match &w.source {
        WeightSource::File(name) => by_name.remove(name.as_str()),
        _ => None,
    });
    named.collect()
}
