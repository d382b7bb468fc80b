//! Compiled kernels on disk, where the driver hands them out: the next load need not compile them again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a file begins with; its last digit changes with the layout behind it.
const MAGIC: &[u8; 8] = b"FIRTHPC1";

/// The driver's kernels and the file that keeps them.
pub(crate) struct DiskCache {
    pub cache: wgpu::PipelineCache,
    file: PathBuf,
    /// Bytes last written, so that nothing is written twice.
    kept: Mutex<Vec<u8>>,
}

impl DiskCache {
    /// The cache of an adapter in a folder. `None` where the adapter has none.
    pub fn open(device: &wgpu::Device, adapter: &wgpu::AdapterInfo, folder: &Path) -> Option<DiskCache> {
        if !device.features().contains(wgpu::Features::PIPELINE_CACHE) {
            return None;
        }
        let file = folder.join(wgpu::util::pipeline_cache_key(adapter)?);
        let kept = fs::read(&file).ok().and_then(|bytes| unwrap(&bytes).map(<[u8]>::to_vec));
        let desc = wgpu::PipelineCacheDescriptor { label: None, data: kept.as_deref(), fallback: true };
        // SAFETY: the bytes are those that a cache gave: the checksum holds, and wgpu compares adapter and driver.
        let cache = unsafe { device.create_pipeline_cache(&desc) };
        Some(DiskCache { cache, file, kept: Mutex::new(kept.unwrap_or_default()) })
    }

    /// Writes what has been compiled since, if anything. A folder that cannot be written costs time alone.
    pub fn save(&self) {
        let Some(now) = self.cache.get_data() else { return };
        let mut kept = self.kept.lock().unwrap_or_else(|e| e.into_inner());
        if *kept == now {
            return;
        }
        match self.write(&now) {
            Ok(()) => *kept = now,
            Err(e) => tracing::warn!("compiled kernels are not kept in {}: {e}", self.file.display()),
        }
    }

    fn write(&self, data: &[u8]) -> io::Result<()> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        if let Some(folder) = self.file.parent() {
            fs::create_dir_all(folder)?;
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let new = self.file.with_extension(format!("{}-{number}", std::process::id()));
        fs::write(&new, wrap(data)).and_then(|()| fs::rename(&new, &self.file)).inspect_err(|_| {
            let _ = fs::remove_file(&new);
        })
    }
}

/// FNV-1a.
fn checksum(data: &[u8]) -> u64 {
    data.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

fn wrap(data: &[u8]) -> Vec<u8> {
    [MAGIC, &checksum(data).to_le_bytes()[..], data].concat()
}

/// What `wrap` was given, if it was that.
fn unwrap(bytes: &[u8]) -> Option<&[u8]> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (sum, data) = rest.split_at_checked(8)?;
    (sum == checksum(data).to_le_bytes()).then_some(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_files_are_passed_over() {
        let good = wrap(b"kernels");
        assert_eq!(unwrap(&good), Some(&b"kernels"[..]));
        for i in 0..good.len() {
            let mut bad = good.clone();
            bad[i] ^= 1;
            assert_eq!(unwrap(&bad), None, "byte {i}");
            assert_eq!(unwrap(&good[..i]), None, "{i} bytes");
        }
    }
}
