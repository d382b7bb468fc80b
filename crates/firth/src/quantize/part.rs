//! A file on its way: under a temporary name, with a note beside it of how far it can be trusted, so that work that
//! was interrupted goes on where it stopped.

use std::cell::Cell;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Bytes of output after which they are synced and noted.
const NOTE_EVERY: u64 = 64 << 20;

/// A file under its temporary name, removed unless it is kept or left to go on with.
pub(super) struct Part {
    file: File,
    temporary: PathBuf,
    note: PathBuf,
    path: PathBuf,
    /// What the file is made of; a part of another make is begun again.
    make: u64,
    /// Bytes of a former run that are as this one would write them.
    pub trusted: u64,
    noted: Cell<u64>,
    remains: Cell<bool>,
}

impl Part {
    /// Opens the part of `path`, of a former run where it was of the same make.
    ///
    /// # Errors
    /// The system's, or another process is at work on it.
    pub fn open(path: PathBuf, make: u64) -> io::Result<Part> {
        let beside = |ending: &str| {
            let mut name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?.to_owned();
            name.push(ending);
            Ok::<_, io::Error>(path.with_file_name(name))
        };
        let (temporary, note) = (beside(".part")?, beside(".part.note")?);
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&temporary)?;
        file.try_lock().map_err(|_| {
            io::Error::new(
                io::ErrorKind::ResourceBusy,
                format!("another process is writing {}", temporary.display()),
            )
        })?;
        let len = file.metadata()?.len();
        let trusted = read_note(&note, make).filter(|n| *n <= len).unwrap_or(0);
        file.set_len(trusted)?;
        file.seek(SeekFrom::Start(trusted))?;
        Ok(Part {
            file,
            temporary,
            note,
            path,
            make,
            trusted,
            noted: Cell::new(trusted),
            remains: Cell::new(false),
        })
    }

    /// The output, which passes over what is there already.
    pub fn output<'a>(&'a self, at: &'a Cell<u64>) -> Tail<'a> {
        at.set(0);
        Tail { file: &self.file, at, trusted: self.trusted }
    }

    /// Notes that the first `n` bytes are right, now and then or when `now`.
    pub fn progress(&self, n: u64, now: bool) -> io::Result<()> {
        if n <= self.noted.get() || !(now || n - self.noted.get() >= NOTE_EVERY) {
            return Ok(());
        }
        self.file.sync_data()?;
        let mut next = self.note.clone().into_os_string();
        next.push(".new");
        let mut note = File::create(&next)?;
        writeln!(note, "{:016x} {n}", self.make)?;
        note.sync_data()?;
        fs::rename(&next, &self.note)?;
        self.noted.set(n);
        Ok(())
    }

    /// Leaves the part for a later run.
    pub fn leave(&self) {
        self.remains.set(self.noted.get() > 0);
    }

    /// Gives the file its name.
    pub fn keep(&self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.temporary, &self.path)?;
        self.remains.set(true);
        let _ = fs::remove_file(&self.note);
        sync_folder(&self.path)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.remains.get() {
            // What cannot be removed stays under its temporary name; there is nobody to tell.
            let _ = fs::remove_file(&self.note);
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// Bytes that a note of this make trusts.
fn read_note(path: &Path, make: u64) -> Option<u64> {
    let mut text = String::new();
    File::open(path).ok()?.take(100).read_to_string(&mut text).ok()?;
    let (found, n) = text.trim_end().split_once(' ')?;
    (u64::from_str_radix(found, 16).ok()? == make).then(|| n.parse().ok()).flatten()
}

/// Makes a rename last. Only some systems open folders.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

/// Writes behind what is there already.
pub(super) struct Tail<'a> {
    file: &'a File,
    at: &'a Cell<u64>,
    trusted: u64,
}

impl Write for Tail<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let there = self.trusted.saturating_sub(self.at.get()).min(bytes.len() as u64) as usize;
        let n = if there > 0 { there } else { self.file.write(bytes)? };
        self.at.set(self.at.get() + n as u64);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
