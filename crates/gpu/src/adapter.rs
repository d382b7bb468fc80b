//! The adapters of a machine, and a connection to one of them.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use crate::cache::DiskCache;

/// Why there is no GPU to use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The machine has none.
    #[error("no GPU adapter found: neither Vulkan, Metal nor DX12 offers one")]
    None,
    /// Fewer than asked for.
    #[error("GPU adapter {asked} does not exist, {found} found: {names}")]
    Index {
        /// The number asked for.
        asked: usize,
        /// How many there are.
        found: usize,
        /// Their names.
        names: String,
    },
    /// An adapter that gives no device.
    #[error("GPU adapter `{name}` gives no device: {reason}")]
    Refused {
        /// The adapter.
        name: String,
        /// What it said.
        reason: String,
    },
}

/// An adapter of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterSummary {
    /// Its number, as in `gpu:0`.
    pub index: usize,
    /// Its name as the driver gives it.
    pub name: String,
    /// API and driver: `Vulkan, llvmpipe 25.0.7`.
    pub driver: String,
    /// Whether it is a CPU in disguise.
    pub is_cpu: bool,
    /// Bytes of its memory, where the API says: the largest heap of its own. None of it is promised to be free.
    pub memory: Option<u64>,
    /// Largest range of a buffer that a kernel sees, in bytes.
    pub max_binding: u64,
    /// What it can do beyond the base: `subgroups 8-8, f16`.
    pub features: Vec<&'static str>,
}

impl AdapterSummary {
    fn new(index: usize, a: &wgpu::Adapter) -> Self {
        let (info, features) = (a.get_info(), a.features());
        let known = [
            (wgpu::Features::SUBGROUP, "subgroups"),
            (wgpu::Features::SHADER_F16, "f16"),
            (wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX, "cooperative matrix"),
            (wgpu::Features::TIMESTAMP_QUERY, "timestamps"),
        ];
        AdapterSummary {
            index,
            driver: format!("{:?}, {} {}", info.backend, info.driver, info.driver_info),
            name: info.name,
            is_cpu: info.device_type == wgpu::DeviceType::Cpu,
            memory: memory(a),
            max_binding: a.limits().max_storage_buffer_binding_size,
            features: known.iter().filter(|(f, _)| features.contains(*f)).map(|(_, n)| *n).collect(),
        }
    }
}

/// Bytes of the adapter's largest heap of its own.
#[cfg(not(target_vendor = "apple"))]
fn memory(a: &wgpu::Adapter) -> Option<u64> {
    // Bit 0 of a heap's flags: it is local to the device.
    const LOCAL: u32 = 1;
    // SAFETY: the handles live as long as the adapter, which this borrows; asking for properties changes nothing.
    let properties = unsafe {
        let vulkan = a.as_hal::<wgpu::hal::api::Vulkan>()?;
        let instance = vulkan.shared_instance().raw_instance();
        instance.get_physical_device_memory_properties(vulkan.raw_physical_device())
    };
    let heaps = &properties.memory_heaps[..properties.memory_heap_count as usize];
    heaps.iter().filter(|h| h.flags.as_raw() & LOCAL != 0).map(|h| h.size).max()
}

#[cfg(target_vendor = "apple")]
fn memory(_: &wgpu::Adapter) -> Option<u64> {
    None
}

/// Drivers are loaded once: some of them do not survive being unloaded and loaded again.
fn instance() -> &'static wgpu::Instance {
    static INSTANCE: OnceLock<wgpu::Instance> = OnceLock::new();
    INSTANCE.get_or_init(|| {
        let mut desc = wgpu::InstanceDescriptor::new_without_display_handle();
        desc.backends = wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12;
        // Where the API tells what is left, a buffer that would take the last of it is refused.
        desc.memory_budget_thresholds.for_resource_creation = Some(97);
        wgpu::Instance::new(desc)
    })
}

fn all() -> Vec<wgpu::Adapter> {
    let backends = wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12;
    pollster::block_on(instance().enumerate_adapters(backends))
}

/// The adapters of this machine, in the order of their numbers. Empty where there is none.
pub fn adapters() -> Vec<AdapterSummary> {
    all().iter().enumerate().map(|(i, a)| AdapterSummary::new(i, a)).collect()
}

/// Why a device does not work any more; the first reason stays.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fault(Arc<Mutex<Option<String>>>);

impl Fault {
    /// The reason, if there is one.
    pub fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    pub fn set(&self, reason: String) {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(reason);
    }
}

/// An open adapter.
pub(crate) struct Connection {
    pub summary: AdapterSummary,
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    pub limits: wgpu::Limits,
    /// Whether invocations of a subgroup may exchange numbers.
    pub subgroups: bool,
    /// Whether four integers in a word are multiplied and summed at once.
    pub packed_dots: bool,
    /// Compiled kernels on disk.
    pub cache: Option<DiskCache>,
    pub fault: Fault,
}

/// Opens adapter `index`. With `base_limits` the device is made with the limits that every adapter has; `folder` keeps
/// compiled kernels.
pub(crate) fn open(index: usize, base_limits: bool, folder: Option<&Path>) -> Result<Connection, OpenError> {
    let adapters = all();
    let Some(adapter) = adapters.get(index) else {
        let names: Vec<String> = adapters.iter().map(|a| a.get_info().name).collect();
        return Err(match names.is_empty() {
            true => OpenError::None,
            false => OpenError::Index { asked: index, found: names.len(), names: names.join(", ") },
        });
    };
    let summary = AdapterSummary::new(index, adapter);
    let limits = limits(adapter, base_limits);
    let beyond = if base_limits { wgpu::Features::empty() } else { wgpu::Features::SUBGROUP };
    let features = adapter.features() & (wgpu::Features::PIPELINE_CACHE | beyond);
    let subgroups = features.contains(wgpu::Features::SUBGROUP);
    let language = instance().wgsl_language_features();
    let packed_dots =
        !base_limits && language.contains(wgpu::WgslLanguageFeatures::Packed4x8IntegerDotProduct);
    let desc = wgpu::DeviceDescriptor {
        label: Some("firth"),
        required_limits: limits.clone(),
        required_features: features,
        memory_hints: wgpu::MemoryHints::Performance,
        ..Default::default()
    };
    let (device, queue) = pollster::block_on(adapter.request_device(&desc))
        .map_err(|e| OpenError::Refused { name: summary.name.clone(), reason: e.to_string() })?;
    let fault = Fault::default();
    // The default handler of errors panics, and use after a loss is silent: both must become values.
    let f = fault.clone();
    device.on_uncaptured_error(Arc::new(move |e: wgpu::Error| f.set(e.to_string())));
    let f = fault.clone();
    device.set_device_lost_callback(move |reason, text| f.set(format!("{reason:?}: {text}")));
    let cache = folder.and_then(|f| DiskCache::open(&device, &adapter.get_info(), f));
    Ok(Connection { summary, device, queue, limits, subgroups, packed_dots, cache, fault })
}

/// Kernels are written for the base: what is raised is how much memory one binding may show.
fn limits(adapter: &wgpu::Adapter, base: bool) -> wgpu::Limits {
    let mut out = wgpu::Limits::default();
    if !base {
        let has = adapter.limits();
        out.max_buffer_size = has.max_buffer_size;
        // Kernels address words by u32.
        out.max_storage_buffer_binding_size = has.max_storage_buffer_binding_size.min(1 << 32);
    }
    out
}
