//! Reading a file ahead of a load: the load itself touches pages one after the other, and would wait for each.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use firth_gguf::{Gguf, TensorInfo};
use firth_graph::{Graph, WeightSource};

/// Bytes that are asked for before they are used.
const AHEAD: u64 = 256 << 20;
/// How often the reader looks how far the load has come: some megabytes of a fast disk.
const LOOK: Duration = Duration::from_millis(2);

/// Runs a load, which tells `on` the bytes of the file that it consumed, while another thread asks the system for the
/// tensors of `graphs` in their order.
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
            let mut asked = 0;
            for t in tensors {
                while asked >= consumed.load(Ordering::Relaxed) + AHEAD {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    std::thread::sleep(LOOK);
                }
                file.prefetch(t);
                asked += t.len;
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
