//! Writing a state file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use firth_memory::Seq;

use super::NUMERICS;
use super::checksum::Checksum;
use super::error::StateFileError;
use super::header::{MAGIC, Prefix, VERSION};
use crate::load::Engine;

impl Engine {
    /// Saves a sequence: its tokens and all that its next token depends on. The file is written under a temporary
    /// name beside `path`, synced and renamed, so that `path` is never half a file.
    ///
    /// # Errors
    /// The file cannot be written, or a device is lost; `path` is as before.
    ///
    /// # Panics
    /// The sequence is not open, or is in a planned step.
    pub fn save(&self, seq: Seq, path: &Path) -> Result<(), StateFileError> {
        let failed = |source| StateFileError::Io { path: path.into(), source };
        let (temporary, file) = create_beside(path).map_err(failed)?;
        let written = self.write(seq, path, file).and_then(|()| fs::rename(&temporary, path).map_err(failed));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
            return written;
        }
        sync_folder(path);
        Ok(())
    }

    fn write(&self, seq: Seq, path: &Path, file: File) -> Result<(), StateFileError> {
        let failed = |source| StateFileError::Io { path: path.into(), source };
        let header = self.header(self.memory.export(seq));
        let payload = self.payload(&header.books).expect("a sequence in memory fits an address space");
        let header = header.encode();
        let (n, ends) = (header.len() as u64, Prefix::BYTES as u64 + 8);
        let prefix = Prefix {
            magic: MAGIC,
            version: VERSION,
            numerics: NUMERICS,
            header: n,
            file: ends + n + payload,
        };
        let mut out = Summed { file, sum: Checksum::new() };
        out.put(&prefix.encode()).map_err(failed)?;
        out.put(&header).map_err(failed)?;
        let mut page = Vec::new();
        for s in &self.identity.states {
            page.resize(s.entry.bytes as usize, 0);
            let mut one = |at: usize| {
                self.resources.devices[s.device].read_page(s.id, at, &mut page)?;
                out.put(&page).map_err(failed)
            };
            match s.entry.group {
                Some(g) => {
                    self.memory.held_pages(seq, g as usize).try_for_each(|(_, at, _)| one(at))?;
                }
                None => self.memory.slot(seq).map_or(Ok(()), one)?,
            }
        }
        let sum = out.sum.value().to_le_bytes();
        out.put(&sum).and_then(|()| out.file.sync_all()).map_err(failed)
    }
}

/// A file and the checksum of what was written to it.
struct Summed {
    file: File,
    sum: Checksum,
}

impl Summed {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.file.write_all(bytes)
    }
}

/// A new file in the folder of `path`, under a name of its own.
fn create_beside(path: &Path) -> io::Result<(PathBuf, File)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    let (id, n) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{id}-{n}.tmp"));
    let temporary = path.with_file_name(temporary);
    let file = OpenOptions::new().write(true).create_new(true).open(&temporary)?;
    Ok((temporary, file))
}

/// Makes a rename last; where the system cannot, the file is whole all the same.
fn sync_folder(path: &Path) {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
}
