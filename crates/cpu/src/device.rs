//! The CPU as a device.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use firth_graph::*;
use firth_simd::Level;

use crate::ceiling::read_rate;
use crate::kernels;
use crate::memory::{Enlarging, Region, Slabs};
use crate::pool::Pool;
use crate::program::CpuProgram;
use crate::states::CpuState;
use crate::store::{StoredWeight, can_stay, weight_bytes};

/// Settings of the device.
#[derive(Clone, Debug)]
pub struct CpuOptions {
    /// Threads of the pool, the caller among them.
    pub threads: usize,
    /// Instruction set.
    pub level: Level,
    /// Ops that the device says it lacks: for tests of placement.
    pub without: Vec<&'static str>,
    /// Bytes that weights, states and scratch may take together; no limit when `None`.
    pub max_bytes: Option<u64>,
    /// Whether weights of products stay in the file's mapping, to be laid out each time they are used: slower, the
    /// same bits, for models larger than memory.
    pub map: bool,
    /// Its name in plans.
    pub name: String,
}

impl CpuOptions {
    /// `threads` threads at the level that the machine has, or that `FIRTH_ISA` names.
    pub fn new(threads: usize) -> Result<Self, firth_simd::LevelError> {
        let level = Level::from_env()?;
        Ok(CpuOptions {
            threads,
            level,
            without: Vec::new(),
            max_bytes: None,
            map: false,
            name: "cpu".into(),
        })
    }
}

/// What the device's programs share.
pub struct Shared {
    pub(crate) level: Level,
    pub(crate) pool: Pool,
    name: String,
    max_bytes: Option<u64>,
    map: bool,
    held: Mutex<Held>,
    /// Weights, of those held from the first on, that lie where they are to stay.
    settled: Mutex<usize>,
}

struct Held {
    weights: Vec<Arc<StoredWeight>>,
    states: Vec<CpuState>,
    bytes: u64,
    slabs: Slabs,
    /// Of what is laid out later: beside the other, it would be given its pages with its neighbours.
    later: Slabs,
    /// Of what steps work in.
    work: Slabs,
    /// What is to be given huge pages by the first step of many rows: one of few touches a little of everything.
    small: Vec<Enlarging>,
}

impl Default for Held {
    fn default() -> Self {
        Held {
            weights: Vec::new(),
            states: Vec::new(),
            bytes: 0,
            slabs: Slabs::of(Region::new),
            later: Slabs::of(Region::new),
            work: Slabs::of(Region::small),
            small: Vec::new(),
        }
    }
}

impl Held {
    fn enlarge_later(&mut self, enlarging: Enlarging) {
        if !self.small.iter().any(|other| other.is_of(&enlarging)) {
            self.small.push(enlarging);
        }
    }
}

impl Shared {
    pub(crate) fn weight(&self, id: WeightId) -> Arc<StoredWeight> {
        self.lock().weights[id.0 as usize].clone()
    }

    pub(crate) fn state(&self, id: StateId) -> CpuState {
        self.lock().states[id.0 as usize].clone()
    }

    /// Memory that steps work in, within the limit.
    pub(crate) fn region(&self, len: usize, what: &str) -> Result<Region, LoadError> {
        let region = self.region_of(|held| &mut held.work, len, what)?;
        self.lock().enlarge_later(region.enlarging());
        Ok(region)
    }

    /// Gives huge pages to what steps work in and to states: for a step of many rows, which reads them over and over.
    pub(crate) fn enlarge(&self) {
        let small = std::mem::take(&mut self.lock().small);
        small.iter().for_each(Enlarging::enlarge);
    }

    /// Memory for a weight that is read there from the first step on.
    fn weight_region(&self, len: usize, what: &str) -> Result<Region, LoadError> {
        self.region_of(|held| &mut held.slabs, len, what)
    }

    /// Memory for a weight that moves there after the load.
    fn later_region(&self, len: usize, what: &str) -> Result<Region, LoadError> {
        self.region_of(|held| &mut held.later, len, what)
    }

    fn region_of(
        &self,
        slabs: fn(&mut Held) -> &mut Slabs,
        len: usize,
        what: &str,
    ) -> Result<Region, LoadError> {
        self.reserve(len as u64, what)?;
        let region = slabs(&mut self.lock()).take(len);
        region.ok_or_else(|| self.out_of_memory(what, len as u64, 0))
    }

    fn reserve(&self, bytes: u64, what: &str) -> Result<(), LoadError> {
        let mut held = self.lock();
        let free = self.max_bytes.map_or(u64::MAX, |max| max.saturating_sub(held.bytes));
        if bytes > free {
            return Err(self.out_of_memory(what, bytes, free));
        }
        held.bytes += bytes;
        Ok(())
    }

    fn out_of_memory(&self, what: &str, needed: u64, free: u64) -> LoadError {
        LoadError::OutOfMemory { what: what.into(), device: self.name.clone(), needed, free }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Held> {
        // The lists only grow by whole entries, so a panic elsewhere cannot have broken them.
        self.held.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// The CPU.
pub struct CpuDevice {
    info: DeviceInfo,
    shared: Arc<Shared>,
    without: Vec<&'static str>,
}

impl CpuDevice {
    /// Starts the thread pool.
    pub fn new(options: CpuOptions) -> Self {
        let pool = Pool::new(options.threads);
        let info = DeviceInfo {
            name: options.name.clone(),
            description: format!("{:?}, {} threads", options.level, pool.threads()),
            free_bytes: options.max_bytes,
            max_state_bytes: None,
            reuse_after: 0,
            host_copies: [0, 0],
        };
        let shared = Shared {
            level: options.level,
            pool,
            name: options.name,
            max_bytes: options.max_bytes,
            map: options.map,
            held: Mutex::default(),
            settled: Mutex::default(),
        };
        CpuDevice { info, shared: Arc::new(shared), without: options.without }
    }

    /// Instruction set in use.
    pub fn level(&self) -> Level {
        self.shared.level
    }

    /// The thread pool, for measurements.
    pub fn pool(&self) -> &Pool {
        &self.shared.pool
    }

    /// Bytes held by weights, states and scratch.
    pub fn held_bytes(&self) -> u64 {
        self.shared.lock().bytes
    }
}

impl Device for CpuDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn supports(&self, op: &Op, inputs: &[Type]) -> bool {
        !self.without.contains(&op.name()) && kernels::find(op, inputs).is_some()
    }

    fn weight_bytes(&self, w: &WeightSpec) -> u64 {
        if self.shared.map { self.mapped_weight_bytes(w) } else { weight_bytes(w) }
    }

    fn mapped_weight_bytes(&self, w: &WeightSpec) -> u64 {
        if can_stay(w) { 0 } else { weight_bytes(w) }
    }

    fn load(
        &self,
        w: &WeightSpec,
        src: &dyn WeightBytes,
        on: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<WeightId, LoadError> {
        w.check_uses(&self.info)?;
        let (shared, kept) = (&self.shared, if can_stay(w) { src.keep() } else { None });
        let len = weight_bytes(w) as usize;
        let stored = match kept {
            Some(bytes) if shared.map => StoredWeight::mapped(w, bytes)?,
            Some(bytes) => StoredWeight::moving(w, bytes, shared.later_region(len, &w.name)?)?,
            None => StoredWeight::new(w, shared.weight_region(len, &w.name)?, src.bytes().len())?,
        };
        stored.read(src, &shared.pool, on)?;
        let mut held = self.shared.lock();
        held.weights.push(Arc::new(stored));
        Ok(WeightId(held.weights.len() as u32 - 1))
    }

    fn settle(&self, budget: Duration) -> bool {
        let by = Instant::now().checked_add(budget);
        let mut settled = self.shared.settled.lock().unwrap_or_else(|e| e.into_inner());
        // One at a time: the lock of what is held is not held meanwhile.
        let next = |i: usize| self.shared.lock().weights.get(i).cloned();
        while let Some(weight) = next(*settled) {
            if !weight.settle(&self.shared.pool, by) {
                return true;
            }
            *settled += 1;
        }
        false
    }

    fn read_rate(&self) -> Option<f64> {
        let weights = self.shared.lock().weights.clone();
        let parts: Vec<&[u8]> = weights.iter().filter_map(|w| w.laid_out()).collect();
        let beyond_caches = parts.iter().map(|p| p.len()).sum::<usize>() >= 64 << 20;
        beyond_caches.then(|| read_rate(&self.shared.pool, &parts))
    }

    fn state(&self, spec: &StateSpec, n: usize) -> Result<StateId, LoadError> {
        if let Some(reason) = kernels::kv_write::lacks_state(spec) {
            return Err(LoadError::Device { device: self.info.name.clone(), reason });
        }
        let bytes = (spec.page_bytes() as u64).saturating_mul(n as u64);
        self.shared.reserve(bytes, "states")?;
        let state = CpuState::new(spec, n).ok_or_else(|| self.shared.out_of_memory("states", bytes, 0))?;
        let mut held = self.shared.lock();
        held.enlarge_later(state.enlarging());
        held.states.push(state);
        Ok(StateId(held.states.len() as u32 - 1))
    }

    fn copy_page(&self, state: StateId, from: usize, to: usize, _rows: usize) -> Result<(), Lost> {
        self.shared.state(state).copy(from, to);
        Ok(())
    }

    fn read_page(&self, state: StateId, page: usize, out: &mut [u8]) -> Result<(), Lost> {
        self.shared.state(state).read(page, out);
        Ok(())
    }

    fn write_page(&self, state: StateId, page: usize, bytes: &[u8]) -> Result<(), Lost> {
        self.shared.state(state).restore(page, bytes);
        Ok(())
    }

    fn compile(&self, segment: &Segment) -> Result<Box<dyn Program>, LoadError> {
        Ok(Box::new(CpuProgram::new(segment, self.shared.clone())?))
    }
}
