//! A GPU as a device.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use firth_graph::*;

use crate::adapter::{self, AdapterSummary, OpenError};
use crate::compile::Dry;
use crate::kernels;
use crate::program::{GpuProgram, HOST_COPIES};
use crate::shared::Shared;
use crate::states::{self, State};
use crate::store;

/// Settings of a GPU device.
#[derive(Clone, Debug, Default)]
pub struct GpuOptions {
    /// Number of the adapter, as [`crate::adapters`] lists them.
    pub adapter: usize,
    /// Whether the device is made with the limits that every adapter has.
    pub base_limits: bool,
    /// Whether loops stay loops in kernels, for the sake of the driver's compiler; on adapters that are CPUs when
    /// `None`. The bits are the same.
    pub compact: Option<bool>,
    /// Whether products of many rows take kernels that share activations in workgroup memory, products of quantised weights
    /// packed dot products, and sums of rows run among the invocations of subgroups, where the adapter has them and these kernels give the bits of the portable ones; when `None`,
    /// on adapters that are no CPUs.
    pub fast: Option<bool>,
    /// Folder in which compiled kernels are kept for the next load, where the driver hands them out; none is kept when
    /// `None`.
    pub kernels: Option<PathBuf>,
    /// Ops that the device says it lacks: for tests of placement.
    pub without: Vec<&'static str>,
    /// Bytes that weights, states and scratch may take together; when `None` nine tenths of the adapter's memory, where
    /// that is known: the rest is for the driver and for others.
    pub max_bytes: Option<u64>,
}

/// Far enough for the products of one value, their biases, norms and rotations to be joined.
const REUSE_AFTER: usize = 16;

/// A GPU.
pub struct GpuDevice {
    info: DeviceInfo,
    shared: Arc<Shared>,
    without: Vec<&'static str>,
    adapter: AdapterSummary,
}

impl GpuDevice {
    /// Opens an adapter.
    ///
    /// # Errors
    /// No adapter, none of that number, or one that gives no device.
    pub fn new(options: GpuOptions) -> Result<Self, OpenError> {
        let conn = adapter::open(options.adapter, options.base_limits, options.kernels.as_deref())?;
        let adapter = conn.summary.clone();
        let info = DeviceInfo {
            name: format!("gpu:{}", options.adapter),
            description: format!("{} ({})", adapter.name, adapter.driver),
            free_bytes: smaller(options.max_bytes, adapter.memory.map(|m| m / 10 * 9)),
            max_state_bytes: None,
            reuse_after: REUSE_AFTER,
            host_copies: HOST_COPIES,
        };
        let compact = options.compact.unwrap_or(adapter.is_cpu);
        let fast = options.fast.unwrap_or(!adapter.is_cpu);
        let shared = Arc::new(Shared::new(conn, info.name.clone(), compact, fast, options.max_bytes));
        let max_state_bytes = Some(states::max_bytes(shared.max_binding()));
        let info = DeviceInfo { max_state_bytes, ..info };
        Ok(GpuDevice { info, shared, without: options.without, adapter })
    }

    /// The adapter.
    pub fn adapter(&self) -> &AdapterSummary {
        &self.adapter
    }

    /// Gives the adapter up, as if it were gone: everything that follows ends with an error. For tests.
    pub fn lose(&self) {
        self.shared.conn.device.destroy();
    }

    /// The texts of all kernels made so far, in WGSL, with their names. For tests.
    pub fn kernels(&self) -> Vec<(&'static str, String)> {
        self.shared.kernels()
    }

    /// Of how many products fast kernels are used, and of how many it was asked whether they give the same bits. For tests.
    pub fn fast_products(&self) -> (usize, usize) {
        self.shared.agreed.count()
    }

    /// Whether sums of rows run by subgroups; `None` where it was not asked. For tests.
    pub fn subgroup_sums(&self) -> Option<bool> {
        self.shared.agreed.sums()
    }

    /// Bytes of all buffers.
    pub fn held_bytes(&self) -> u64 {
        self.shared.held_bytes()
    }
}

fn smaller(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.into_iter().chain(b).min()
}

impl Device for GpuDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn supports(&self, op: &Op, inputs: &[Type]) -> bool {
        !self.without.contains(&op.name()) && kernels::find(op, inputs).is_some()
    }

    fn weight_bytes(&self, w: &WeightSpec) -> u64 {
        store::weight_bytes(w)
    }

    fn load(
        &self,
        w: &WeightSpec,
        src: &dyn WeightBytes,
        on: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<WeightId, LoadError> {
        w.check_uses(&self.info)?;
        store::load(&self.shared, w, src, on).map(|w| self.shared.add_weight(w))
    }

    fn state(&self, spec: &StateSpec, n: usize) -> Result<StateId, LoadError> {
        if let StateSpec::Kv(kv) = spec
            && !states::is_supported(kv)
        {
            let reason = format!(
                "keys and values of type {} with heads of {} and {}: the GPU keeps F32, F16, and Q8_0 where heads are multiples of 32",
                kv.dtype.name(),
                kv.key_dim,
                kv.value_dim
            );
            return Err(LoadError::Device { device: self.info.name.clone(), reason });
        }
        State::new(&self.shared, spec, n).map(|s| self.shared.add_state(s))
    }

    fn copy_page(&self, state: StateId, from: usize, to: usize, _rows: usize) -> Result<(), Lost> {
        self.shared.state(state).copy(&self.shared, from, to)
    }

    fn read_page(&self, state: StateId, page: usize, out: &mut [u8]) -> Result<(), Lost> {
        self.shared.state(state).read(&self.shared, page, out)
    }

    fn write_page(&self, state: StateId, page: usize, bytes: &[u8]) -> Result<(), Lost> {
        self.shared.state(state).write(&self.shared, page, bytes)
    }

    fn free_weight(&self, weight: WeightId) {
        self.shared.free_weight(weight);
    }

    fn free_state(&self, state: StateId) {
        self.shared.free_state(state);
    }

    fn check(&self) -> Result<(), Lost> {
        // A loss is told to whoever asks for what is done.
        if let Err(e) = self.shared.conn.device.poll(wgpu::PollType::Poll) {
            self.shared.conn.fault.set(e.to_string());
        }
        self.shared.check()
    }

    fn dispatches(
        &self,
        graph: &Graph,
        plan: &Plan,
        segment: &Segment,
        step: &Extents,
    ) -> Option<Vec<Dispatch>> {
        GpuProgram::count(segment, &self.shared, Dry { graph, plan }, step).ok()
    }

    fn compile(&self, segment: &Segment) -> Result<Box<dyn Program>, LoadError> {
        let program = GpuProgram::new(segment, self.shared.clone())?;
        if let Some(cache) = &self.shared.conn.cache {
            cache.save();
        }
        Ok(Box::new(program))
    }
}
