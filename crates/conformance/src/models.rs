//! Models for the tests: the tiny trained ones, the two real ones, and engines over them.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use firth::{Device, EngineOptions, LogitsOptions};
use firth_cpu::{CpuDevice, CpuOptions, Level};
use firth_engine::{Engine, EngineError};
use firth_gguf::Gguf;

/// A real model by its file name: from `FIRTH_MODELS`, else the cache of the fetching script. `None` where it is
/// absent, which is a failure under `CI=true`.
pub fn real(name: &str) -> Option<Arc<Gguf>> {
    let home = std::env::var_os("HOME").map(|h| Path::new(&h).join(".cache/firth-models"));
    let dir = std::env::var_os("FIRTH_MODELS").map(PathBuf::from).or(home)?;
    let path = dir.join(name);
    if path.is_file() {
        return Some(Arc::new(Gguf::open(&path).expect("a model that was fetched can be read")));
    }
    let ci = std::env::var("CI").is_ok_and(|v| v == "true");
    assert!(!ci, "{} is absent and CI=true", path.display());
    eprintln!("skipped: no {} (set FIRTH_MODELS)", path.display());
    None
}

/// A small trained model by its file name. `None` where the fixtures are absent, which is a failure under
/// `CI=true`.
pub fn tiny(name: &str) -> Option<Arc<Gguf>> {
    let path = crate::fixture::shared()?.join("fixtures/tiny").join(name);
    Some(Arc::new(Gguf::open(&path).expect("a tiny model")))
}

/// SmolLM2-135M-Instruct, Q4_1.
pub const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
/// gemma-3-270m-it, Q4_K_M; its window is 512.
pub const GEMMA3: &str = "gemma-3-270m-it-Q4_K_M.gguf";

/// A CPU of its own.
pub fn cpu(level: Level, threads: usize) -> Arc<dyn Device> {
    let (without, name) = (Vec::new(), "cpu".into());
    Arc::new(CpuDevice::new(CpuOptions { threads, level, without, max_bytes: None, map: false, name }))
}

/// An engine on a CPU.
pub fn engine(file: &Arc<Gguf>, options: &EngineOptions, level: Level, threads: usize) -> Engine {
    try_engine(file, options, level, threads).expect("a model of the tests loads")
}

/// An engine on a CPU whose weights stay in the file's mapping.
pub fn mapped_engine(file: &Arc<Gguf>, options: &EngineOptions, threads: usize) -> Engine {
    let cpu = CpuOptions { map: true, ..CpuOptions::new(threads).expect("an instruction set") };
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(cpu));
    let on = &mut |_| ControlFlow::Continue(());
    Engine::load(file, vec![device], options, on).expect("a model of the tests loads")
}

/// An engine on a CPU, or why there is none.
pub fn try_engine(
    file: &Arc<Gguf>,
    options: &EngineOptions,
    level: Level,
    threads: usize,
) -> Result<Engine, EngineError> {
    Engine::load(file, vec![cpu(level, threads)], options, &mut |_| ControlFlow::Continue(()))
}

/// A hash of the bits of each row of logits: equal hashes stand for equal bits.
pub fn row_hashes(engine: &mut Engine, ids: &[u32], cuts: &[usize], mates: usize) -> Vec<u64> {
    let mut out = Vec::with_capacity(ids.len());
    let options = LogitsOptions { cuts: cuts.to_vec(), mates };
    firth::logits(engine, ids, &options, &mut |_, row| out.push(hash(row)))
        .expect("a model of the tests runs");
    out
}

/// FNV-1a over the words of a row.
pub fn hash(row: &[f32]) -> u64 {
    row.iter().fold(0xcbf2_9ce4_8422_2325, |h, z| (h ^ u64::from(z.to_bits())).wrapping_mul(0x0100_0000_01b3))
}

/// A small generator for tests: splitmix64.
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.draw() % n as u64) as usize
    }
}
