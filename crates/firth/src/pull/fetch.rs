//! One file over a line that may be cut.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};
use ureq::RequestBuilder;
use ureq::typestate::WithoutBody;

use super::{PullError, PullProgress};

/// Tries in a row that bring no byte.
const MAX_TRIES: usize = 4;
/// What is read at once.
const PIECE: usize = 1 << 18;
/// Without a byte for so long, the line counts as cut.
const PATIENCE: Duration = Duration::from_secs(60);

/// A file as the hub tells of it.
pub(super) struct Wanted<'a> {
    pub name: &'a str,
    pub size: u64,
    /// SHA-256 in lower-case hex.
    pub sum: Option<&'a str>,
}

/// What a server sends: from which byte on.
pub(super) struct Answer {
    pub from: u64,
    pub body: Box<dyn Read>,
}

/// Asks for a file from a byte on.
///
/// # Errors
/// The line fails, or the server refuses.
pub(super) fn get(request: RequestBuilder<WithoutBody>, from: u64) -> Result<Answer, String> {
    // What lies packed on the way would have other bytes to count.
    let request = request.header("Accept-Encoding", "identity").header("Range", format!("bytes={from}-"));
    let config = request.config().http_status_as_error(false).timeout_connect(Some(PATIENCE));
    let response = config.timeout_per_read(Some(PATIENCE)).build().call().map_err(|e| e.to_string())?;
    let range = response.headers().get("Content-Range").and_then(|v| v.to_str().ok()).map(str::to_owned);
    let from = match (response.status().as_u16(), range) {
        (200, _) => 0,
        (206, Some(range)) => {
            start_of(&range).ok_or_else(|| format!("the range `{range}` makes no sense"))?
        }
        (206, None) => return Err("the server sends a part and does not say which".into()),
        (other, _) => return Err(format!("the server answers with status {other}")),
    };
    Ok(Answer { from, body: Box::new(response.into_body().into_reader()) })
}

/// The first byte of `bytes 7-99/100`.
fn start_of(range: &str) -> Option<u64> {
    range.strip_prefix("bytes ")?.split_once('-')?.0.trim().parse().ok()
}

/// The part of a file that is here, and its sum so far.
struct Part {
    path: PathBuf,
    file: File,
    here: u64,
    sum: Sha256,
}

impl Part {
    /// Goes on with what is here; its bytes are read for the sum.
    fn open(path: PathBuf, size: u64) -> io::Result<Part> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
        file.try_lock()
            .map_err(|_| io::Error::new(ErrorKind::ResourceBusy, "another process is fetching it"))?;
        let mut part = Part { path, file, here: 0, sum: Sha256::new() };
        if part.file.metadata()?.len() > size {
            part.restart()?;
        }
        let mut piece = vec![0; PIECE];
        loop {
            match part.file.read(&mut piece)? {
                0 => return Ok(part),
                n => {
                    part.sum.update(&piece[..n]);
                    part.here += n as u64;
                }
            }
        }
    }

    fn restart(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        (self.here, self.sum) = (0, Sha256::new());
        Ok(())
    }

    fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.sum.update(bytes);
        self.here += bytes.len() as u64;
        Ok(())
    }
}

/// Why a try ended.
enum End {
    /// The line was cut, or nothing useful was sent.
    Cut(String),
    Final(PullError),
}

/// Fetches a file to `path` through `PATH.part`, from where an earlier try stopped; `ask` opens the line from a byte on.
///
/// # Errors
/// Cut without progress several times in a row, other bytes than told, no room, a caller who stops.
pub(super) fn fetch(
    wanted: &Wanted,
    path: &Path,
    ask: &mut dyn FnMut(u64) -> Result<Answer, String>,
    on: &mut dyn FnMut(PullProgress) -> ControlFlow<()>,
) -> Result<(), PullError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    let failed = |source| PullError::Write { path: PathBuf::from(&name), source };
    let mut part = Part::open(PathBuf::from(&name), wanted.size).map_err(failed)?;
    let mut tries = 0;
    while part.here < wanted.size {
        let before = part.here;
        let why = match once(wanted, &mut part, ask, on) {
            Ok(()) => continue,
            Err(End::Final(e)) => return Err(e),
            Err(End::Cut(why)) => why,
        };
        tries = if part.here > before { 1 } else { tries + 1 };
        if tries >= MAX_TRIES {
            let (file, here, size) = (wanted.name.to_owned(), part.here, wanted.size);
            return Err(PullError::Cut { file, here, size, why });
        }
    }
    finish(wanted, part, path)
}

/// One try, to the end of the file or of the line.
fn once(
    wanted: &Wanted,
    part: &mut Part,
    ask: &mut dyn FnMut(u64) -> Result<Answer, String>,
    on: &mut dyn FnMut(PullProgress) -> ControlFlow<()>,
) -> Result<(), End> {
    let failed = |path: &Path, source| End::Final(PullError::Write { path: path.to_owned(), source });
    let Answer { from, mut body } = ask(part.here).map_err(End::Cut)?;
    if from != part.here {
        // It cannot go on where we are: from the start, or not at all.
        if from != 0 {
            return Err(End::Cut(format!("the server sends from byte {from}, asked for from {}", part.here)));
        }
        part.restart().map_err(|e| failed(&part.path, e))?;
    }
    let mut piece = vec![0; PIECE];
    while part.here < wanted.size {
        if on(PullProgress { file: wanted.name, here: part.here, size: wanted.size }).is_break() {
            return Err(End::Final(PullError::Interrupted));
        }
        let most = (wanted.size - part.here).min(PIECE as u64) as usize;
        match body.read(&mut piece[..most]) {
            Ok(0) => return Err(End::Cut("the line was closed".into())),
            Ok(n) => part.push(&piece[..n]).map_err(|e| failed(&part.path, e))?,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(End::Cut(e.to_string())),
        }
    }
    let _ = on(PullProgress { file: wanted.name, here: part.here, size: wanted.size });
    Ok(())
}

/// Gives the file its name if its sum is right, and drops it otherwise.
fn finish(wanted: &Wanted, part: Part, path: &Path) -> Result<(), PullError> {
    let Part { path: temporary, file, sum, .. } = part;
    let found: String = sum.finalize().iter().map(|b| format!("{b:02x}")).collect();
    if let Some(expected) = wanted.sum.filter(|s| *s != found) {
        let _ = fs::remove_file(&temporary);
        let (file, expected) = (wanted.name.to_owned(), expected.to_owned());
        return Err(PullError::Wrong { file, what: "its SHA-256", found, expected });
    }
    let kept = file.sync_all().and_then(|()| fs::rename(&temporary, path));
    kept.map_err(|source| PullError::Write { path: path.to_owned(), source })
}
