//! The cache in a folder: what the prefix tree holds is written when nothing else is to be done, and found again by the
//! next process.

use std::collections::HashSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use crate::model::Model;

/// The folder of a cache.
pub(crate) struct CacheDir {
    folder: PathBuf,
    /// Whether there is something that is not written yet.
    pub dirty: bool,
}

impl CacheDir {
    /// Takes what a folder holds into the cache. Files of other models or settings stay where they are.
    pub fn open(folder: PathBuf, model: &mut Model) -> CacheDir {
        let mut files = files(&folder);
        // The last is the best kept.
        files.sort_by_key(|(path, _)| fs::metadata(path).and_then(|m| m.modified()).ok());
        let mut n = 0;
        for (path, domain) in files {
            match model.load_state(domain, &path) {
                Ok(_) => n += 1,
                Err(e) => tracing::warn!("not taken into the cache: {e}"),
            }
        }
        if n > 0 {
            tracing::info!("{n} prefixes taken from {}", folder.display());
        }
        CacheDir { folder, dirty: false }
    }

    /// Writes what is not written yet, and removes what the cache has dropped.
    pub fn write(&mut self, model: &mut Model) {
        if !std::mem::take(&mut self.dirty) {
            return;
        }
        let memory = model.engine().memory();
        let prefixes: Vec<(u64, Vec<u32>)> =
            memory.irreplaceable().map(|(d, ids)| (d, ids.to_vec())).collect();
        let mut kept = HashSet::new();
        for (domain, ids) in prefixes {
            let path = self.folder.join(name(domain, &ids));
            kept.insert(path.clone());
            if path.exists() {
                continue;
            }
            if let Err(e) = model.save_state(domain, &ids, &path) {
                tracing::warn!("a cached prefix cannot be written: {e}");
                return;
            }
        }
        for (path, _) in files(&self.folder) {
            if !kept.contains(&path) {
                let _ = fs::remove_file(path);
            }
        }
    }
}

const END: &str = ".prefix";

/// A name for a prefix: its domain, and a number of its tokens.
fn name(domain: u64, ids: &[u32]) -> String {
    let mut hash = DefaultHasher::new();
    ids.hash(&mut hash);
    format!("{domain:016x}-{:016x}{END}", hash.finish())
}

/// The files of a folder, with their domains.
fn files(folder: &Path) -> Vec<(PathBuf, u64)> {
    let Ok(all) = fs::read_dir(folder) else { return Vec::new() };
    let of = |path: PathBuf| {
        let name = path.file_name()?.to_str()?.strip_suffix(END)?;
        let domain = u64::from_str_radix(name.split_once('-')?.0, 16).ok()?;
        Some((path, domain))
    };
    all.flatten().filter_map(|entry| of(entry.path())).collect()
}
