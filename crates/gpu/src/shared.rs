//! What the device's programs share: the connection, buffers, pipelines, weights and states.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use firth_graph::{LoadError, Lost, StateId, WeightId};

use crate::adapter::Connection;
use crate::agree::Agreed;
use crate::compile::PARAM_BYTES;
use crate::program::EXTENT_BYTES;
use crate::states::State;
use crate::store::StoredWeight;

/// Work after which a long step goes on in another submission, so that no watchdog finds one too long: workgroups that take
/// one row through a panel of a weight, on a GPU and on a CPU that plays one. Either is a fraction of a second.
const SUBMISSION: [usize; 2] = [1 << 20, 1 << 15];

/// One device's resources.
pub(crate) struct Shared {
    pub conn: Connection,
    pub name: String,
    /// Whether kernels are kept short for the sake of the driver's compiler.
    pub compact: bool,
    /// Whether fast kernels are asked for, and which of them give the bits of the portable ones.
    pub fast: bool,
    pub agreed: Agreed,
    /// A buffer that stands for those that a dry run does not make.
    pub nothing: wgpu::Buffer,
    max_bytes: Option<u64>,
    held: Mutex<Held>,
    pipelines: Mutex<Pipelines>,
}

#[derive(Default)]
struct Held {
    /// By their ids; those that were freed are gone.
    weights: Vec<Option<Arc<StoredWeight>>>,
    states: Vec<Option<Arc<State>>>,
    bytes: u64,
}

/// Pipelines by their text, layouts by the number of their ops and the access of their extra buffers.
#[derive(Default)]
struct Pipelines {
    by_source: HashMap<String, Pipeline>,
    layouts: HashMap<(usize, Vec<bool>), Layouts>,
}

/// What binds buffers, and the same for a pipeline: pipelines that share it are changed at less cost.
#[derive(Clone)]
struct Layouts {
    group: wgpu::BindGroupLayout,
    pipeline: wgpu::PipelineLayout,
}

/// A compiled kernel.
#[derive(Clone)]
pub(crate) struct Pipeline {
    name: &'static str,
    pub pipeline: wgpu::ComputePipeline,
    pub layout: wgpu::BindGroupLayout,
}

impl Shared {
    pub fn new(conn: Connection, name: String, compact: bool, fast: bool, max_bytes: Option<u64>) -> Self {
        let (held, pipelines) = (Mutex::default(), Mutex::default());
        let nothing = conn.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("nothing"),
            size: 16,
            usage: wgpu::BufferUsages::STORAGE,
            mapped_at_creation: false,
        });
        let agreed = Agreed::default();
        Shared { conn, name, compact, fast, agreed, nothing, max_bytes, held, pipelines }
    }

    /// Work of a submission.
    pub fn submission(&self) -> usize {
        SUBMISSION[usize::from(self.conn.summary.is_cpu)]
    }

    /// Bytes of all buffers.
    pub fn held_bytes(&self) -> u64 {
        lock(&self.held).bytes
    }

    pub fn add_weight(&self, w: StoredWeight) -> WeightId {
        let mut held = lock(&self.held);
        held.weights.push(Some(Arc::new(w)));
        WeightId(held.weights.len() as u32 - 1)
    }

    pub fn add_state(&self, s: State) -> StateId {
        let mut held = lock(&self.held);
        held.states.push(Some(Arc::new(s)));
        StateId(held.states.len() as u32 - 1)
    }

    pub fn weight(&self, id: WeightId) -> Arc<StoredWeight> {
        lock(&self.held).weights[id.0 as usize].clone().expect("a weight that was not freed")
    }

    pub fn state(&self, id: StateId) -> Arc<State> {
        lock(&self.held).states[id.0 as usize].clone().expect("a state that was not freed")
    }

    /// Lets go of a weight; programs that use it keep its buffers.
    pub fn free_weight(&self, id: WeightId) {
        let weight = lock(&self.held).weights[id.0 as usize].take();
        self.release(weight.iter().flat_map(|w| &w.parts).map(|p| p.buffer.size()).sum());
    }

    /// The same of a state.
    pub fn free_state(&self, id: StateId) {
        let state = lock(&self.held).states[id.0 as usize].take();
        self.release(state.iter().flat_map(|s| &s.pool.buffers).map(|b| b.size()).sum());
    }

    /// The largest storage buffer that a kernel can see at once, in bytes, a multiple of 256.
    pub fn max_binding(&self) -> u64 {
        let l = &self.conn.limits;
        l.max_storage_buffer_binding_size.min(l.max_buffer_size) / 256 * 256
    }

    /// A buffer of `bytes` (rounded up to 16) within the budget.
    pub fn buffer(
        &self,
        what: &str,
        bytes: u64,
        usage: wgpu::BufferUsages,
    ) -> Result<wgpu::Buffer, LoadError> {
        let size = bytes.next_multiple_of(16).max(16);
        let max = self.conn.limits.max_buffer_size;
        let out_of_memory = |free| {
            let (what, device) = (what.to_string(), self.name.clone());
            LoadError::OutOfMemory { what, device, needed: size, free }
        };
        {
            let mut held = lock(&self.held);
            let free = self.max_bytes.map_or(max, |b| b.saturating_sub(held.bytes));
            if size > free.min(max) {
                return Err(out_of_memory(free.min(max)));
            }
            held.bytes += size;
        }
        let desc = wgpu::BufferDescriptor { label: Some(what), size, usage, mapped_at_creation: false };
        let scope = self.conn.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let buffer = self.conn.device.create_buffer(&desc);
        match pollster::block_on(scope.pop()) {
            Some(_) => {
                self.release(size);
                Err(out_of_memory(0))
            }
            None => self.alive().map(|()| buffer),
        }
    }

    /// The same with zeros in it. Of a buffer that was never written the queue would ask so at every dispatch.
    pub fn zeros(
        &self,
        what: &str,
        bytes: u64,
        usage: wgpu::BufferUsages,
    ) -> Result<wgpu::Buffer, LoadError> {
        let buffer = self.buffer(what, bytes, usage)?;
        self.clear(&buffer, 0);
        Ok(buffer)
    }

    /// Zeros from a byte on, a multiple of 4.
    pub fn clear(&self, buffer: &wgpu::Buffer, from: u64) {
        if from < buffer.size() {
            let mut encoder = self.conn.device.create_command_encoder(&Default::default());
            encoder.clear_buffer(buffer, from, None);
            self.conn.queue.submit([encoder.finish()]);
        }
    }

    /// Gives bytes of a dropped buffer back to the budget.
    pub fn release(&self, bytes: u64) {
        lock(&self.held).bytes -= bytes;
    }

    /// Fails where the device has reported a fault.
    pub fn alive(&self) -> Result<(), LoadError> {
        match self.conn.fault.get() {
            Some(reason) => Err(LoadError::Device { device: self.name.clone(), reason }),
            None => Ok(()),
        }
    }

    /// The same for a step.
    pub fn check(&self) -> Result<(), Lost> {
        match self.conn.fault.get() {
            Some(reason) => Err(Lost { device: self.name.clone(), reason }),
            None => Ok(()),
        }
    }

    /// The device is given up for this reason, unless it was before.
    pub fn lost(&self, reason: String) -> Lost {
        self.conn.fault.set(reason.clone());
        Lost { device: self.name.clone(), reason }
    }

    /// Waits until everything submitted is done.
    pub fn wait(&self) -> Result<(), Lost> {
        if let Err(e) = self.conn.device.poll(wgpu::PollType::wait_indefinitely()) {
            self.conn.fault.set(e.to_string());
        }
        self.check()
    }

    /// Waits until a submission is done.
    pub fn wait_for(
        &self,
        submission: &wgpu::SubmissionIndex,
        at_most: std::time::Duration,
    ) -> Result<(), Lost> {
        let (submission_index, timeout) = (Some(submission.clone()), Some(at_most));
        if let Err(e) = self.conn.device.poll(wgpu::PollType::Wait { submission_index, timeout }) {
            self.conn.fault.set(e.to_string());
        }
        self.check()
    }

    /// The texts of all pipelines.
    pub fn kernels(&self) -> Vec<(&'static str, String)> {
        let all = lock(&self.pipelines);
        let mut out: Vec<_> = all.by_source.iter().map(|(text, p)| (p.name, text.clone())).collect();
        out.sort();
        out
    }

    /// The pipeline of a text that serves `members` ops; `writable` says of each buffer after the fixed three whether the
    /// kernel writes it.
    pub fn pipeline(
        &self,
        name: &'static str,
        source: &str,
        members: usize,
        writable: &[bool],
    ) -> Result<Pipeline, LoadError> {
        let mut all = lock(&self.pipelines);
        if let Some(p) = all.by_source.get(source) {
            return Ok(p.clone());
        }
        let device = &self.conn.device;
        let layouts = all.layouts.entry((members, writable.to_vec()));
        let layouts = layouts.or_insert_with(|| layout(device, members, writable)).clone();
        let scope = device.push_error_scope(wgpu::ErrorFilter::Validation);
        let pipeline = compile(&self.conn, name, source, &layouts.pipeline);
        if let Some(e) = pollster::block_on(scope.pop()) {
            let reason = format!("kernel `{name}`: {e}");
            return Err(LoadError::Device { device: self.name.clone(), reason });
        }
        self.alive()?;
        let made = Pipeline { name, pipeline, layout: layouts.group };
        all.by_source.insert(source.into(), made.clone());
        Ok(made)
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // Entries are added whole, so a panic elsewhere cannot have broken them.
    m.lock().unwrap_or_else(|e| e.into_inner())
}

/// Arena, parameters and extents, then the kernel's own buffers. With their least sizes, which are asked once a bind group and
/// not once a dispatch.
fn layout(device: &wgpu::Device, members: usize, writable: &[bool]) -> Layouts {
    let storage = |read_only| (wgpu::BufferBindingType::Storage { read_only }, 4);
    let uniform = |bytes| (wgpu::BufferBindingType::Uniform, bytes);
    let fixed = [storage(false), uniform(members * PARAM_BYTES), uniform(EXTENT_BYTES)];
    let types = fixed.into_iter().chain(writable.iter().map(|w| storage(!w)));
    let entries: Vec<_> = types
        .enumerate()
        .map(|(i, (ty, least))| wgpu::BindGroupLayoutEntry {
            binding: i as u32,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty,
                has_dynamic_offset: false,
                min_binding_size: wgpu::BufferSize::new(least as u64),
            },
            count: None,
        })
        .collect();
    let desc = wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries };
    let group = device.create_bind_group_layout(&desc);
    let pipeline = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label: None,
        bind_group_layouts: &[Some(&group)],
        immediate_size: 0,
    });
    Layouts { group, pipeline }
}

fn compile(
    conn: &Connection,
    name: &str,
    source: &str,
    layout: &wgpu::PipelineLayout,
) -> wgpu::ComputePipeline {
    let device = &conn.device;
    let desc =
        wgpu::ShaderModuleDescriptor { label: Some(name), source: wgpu::ShaderSource::Wgsl(source.into()) };
    let checks =
        wgpu::ShaderRuntimeChecks { force_loop_bounding: false, ..wgpu::ShaderRuntimeChecks::checked() };
    // SAFETY: the one check that is off bounds loops; every loop of the kernels counts to a finite bound.
    let module = unsafe { device.create_shader_module_trusted(desc, checks) };
    device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: Some(name),
        layout: Some(layout),
        module: &module,
        entry_point: Some("main"),
        compilation_options: wgpu::PipelineCompilationOptions {
            // Kernels write workgroup memory before they read it.
            zero_initialize_workgroup_memory: false,
            ..Default::default()
        },
        cache: conn.cache.as_ref().map(|c| &c.cache),
    })
}
