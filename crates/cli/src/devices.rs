//! Devices by name, and the settings that need the machine.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use firth::{Device, Dtype, EngineOptions};
use firth_cpu::{CpuDevice, CpuOptions};
use firth_engine::Placement;
use firth_gpu::{GpuDevice, GpuOptions};

use crate::args::{Common, Kv};

/// The devices that `--device` names; behind a GPU the CPU, where parts of the model are to stay there.
pub fn open(c: &Common) -> Result<Vec<Arc<dyn Device>>> {
    let mut all: Vec<Arc<dyn Device>> = match (c.device.as_str(), c.device.strip_prefix("gpu:")) {
        ("cpu", _) if placement(c).is_split() => {
            bail!("--gpu-layers and --cpu-experts need --device gpu, found --device cpu")
        }
        (other, _) if other != "cpu" && c.map && !placement(c).is_split() => {
            bail!("--map needs layers on the CPU, found --device {other}")
        }
        ("cpu", _) => return Ok(vec![Arc::new(cpu(c)?)]),
        ("gpu", _) => vec![Arc::new(gpu(c, 0)?)],
        (name, Some(n)) => {
            let n = n.parse().with_context(|| format!("device `{name}`: expected gpu:0, gpu:1 and so on"))?;
            vec![Arc::new(gpu(c, n)?)]
        }
        (other, None) => bail!("device `{other}` is unknown, expected cpu, gpu or gpu:N"),
    };
    if placement(c).is_split() {
        all.push(Arc::new(cpu(c)?));
    }
    Ok(all)
}

/// A GPU.
fn gpu(c: &Common, adapter: usize) -> Result<GpuDevice> {
    let max_bytes = c.max_memory;
    Ok(GpuDevice::new(GpuOptions { adapter, max_bytes, kernels: kernels(), ..GpuOptions::default() })?)
}

/// The folder of compiled kernels, in the user's folder of caches.
fn kernels() -> Option<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let caches = named("XDG_CACHE_HOME").or_else(|| named("LOCALAPPDATA"));
    Some(caches.or_else(|| Some(named("HOME")?.join(".cache")))?.join("firth").join("kernels"))
}

/// Which parts run on the CPU beside a GPU.
fn placement(c: &Common) -> Placement {
    Placement { layers: c.gpu_layers, experts_away: c.cpu_experts }
}

/// The CPU.
pub fn cpu(c: &Common) -> Result<CpuDevice> {
    let mut options = CpuOptions::new(threads(c.threads)?).context("instruction set")?;
    (options.max_bytes, options.map) = (c.max_memory, c.map);
    Ok(CpuDevice::new(options))
}

/// Settings of the engine.
pub fn engine_options(c: &Common) -> EngineOptions {
    EngineOptions {
        ctx: c.ctx,
        batch: c.batch,
        kv: match c.kv {
            Kv::F16 => Dtype::F16,
            Kv::F32 => Dtype::F32,
            Kv::Q8_0 => Dtype::Q8_0,
        },
        cache_bytes: c.cache_memory.unwrap_or_else(|| (free_memory() / 4).min(8 << 30)),
        max_bytes: c.max_memory,
        placement: placement(c),
        ..EngineOptions::default()
    }
}

/// Threads as asked for, at most as many as may run at once: more would wait for each other and give the same bits.
/// The smallest of affinity, cgroup quota and physical cores where none were asked for.
pub fn threads(asked: Option<usize>) -> Result<usize> {
    // The library's count already heeds affinity and cgroup quota.
    let allowed = std::thread::available_parallelism().map_or(1, |n| n.get());
    match asked {
        None => Ok(allowed.min(physical_cores().unwrap_or(allowed)).max(1)),
        Some(0) => bail!("--threads is 0, expected 1 or more"),
        Some(n) if n > allowed => {
            static SAID: std::sync::Once = std::sync::Once::new();
            SAID.call_once(|| {
                crate::progress::say(format_args!(
                    "warning: --threads {n} is more than may run here; {allowed} are used"
                ))
            });
            Ok(allowed)
        }
        Some(n) => Ok(n),
    }
}

/// Cores by the kernel's topology; `None` where it does not say.
fn physical_cores() -> Option<usize> {
    let mut cores = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir("/sys/devices/system/cpu").ok()?.flatten() {
        let topology = entry.path().join("topology");
        let read = |name: &str| std::fs::read_to_string(topology.join(name)).ok();
        if let (Some(package), Some(core)) = (read("physical_package_id"), read("core_id")) {
            cores.insert((package, core));
        }
    }
    (!cores.is_empty()).then_some(cores.len())
}

/// Bytes of memory that the system could give.
pub fn free_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find(|l| l.starts_with("MemAvailable:"));
    let kib = line.and_then(|l| l.split_whitespace().nth(1)).and_then(|n| n.parse::<u64>().ok());
    kib.map_or(4 << 30, |k| k << 10)
}
