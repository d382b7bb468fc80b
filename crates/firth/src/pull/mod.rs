//! Models from the hub of Hugging Face into its cache on this machine.
//!
//! `hf-hub` knows where things lie, there and here. The transfer itself is firth's: it goes on where it was cut, whether
//! or not the server can, and no file has its name before its size and SHA-256 are those that the hub tells.

mod choose;
mod fetch;
#[cfg(test)]
mod tests;

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use hf_hub::api::sync::{Api, ApiBuilder, ApiRepo};
use hf_hub::{Cache, Repo};
use serde::Deserialize;

pub use choose::PullName;

/// Where from and where to; the hub's and the cache's own variables decide by default.
#[derive(Clone, Debug, Default)]
pub struct PullOptions {
    /// Address of the hub.
    pub endpoint: Option<String>,
    /// Folder of the cache.
    pub cache: Option<PathBuf>,
}

/// How far a transfer is.
#[derive(Clone, Copy, Debug)]
pub struct PullProgress<'a> {
    /// The file at hand.
    pub file: &'a str,
    /// Its bytes that are here.
    pub here: u64,
    /// Its bytes.
    pub size: u64,
}

/// Why a model was not fetched.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// No USER/REPO.
    #[error("`{0}` names no model, expected USER/REPO or USER/REPO:QUANT")]
    Name(String),
    /// The hub does not answer, or refuses.
    #[error("{repo}: {why}")]
    Hub {
        /// The repository.
        repo: String,
        /// What was said.
        why: String,
    },
    /// Nothing that fits.
    #[error("{repo} has no GGUF file of type `{wanted}`; there are {found}")]
    Quant {
        /// The repository.
        repo: String,
        /// The type that was asked for.
        wanted: String,
        /// The types there are.
        found: String,
    },
    /// The transfer was cut again and again without a byte more.
    #[error(
        "{file}: the transfer was cut at {here} of {size} bytes, again and again: {why}; the same command goes on there"
    )]
    Cut {
        /// The file.
        file: String,
        /// Bytes that are here.
        here: u64,
        /// Its bytes.
        size: u64,
        /// The last failure.
        why: String,
    },
    /// What came is not what the hub tells.
    #[error("{file}: {what} is {found}, expected {expected}; what came is dropped")]
    Wrong {
        /// The file.
        file: String,
        /// Size or sum.
        what: &'static str,
        /// What came.
        found: String,
        /// What was told.
        expected: String,
    },
    /// A file cannot be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The caller wished to stop.
    #[error("interrupted; the same command goes on where it stopped")]
    Interrupted,
}

/// What the hub tells of a repository.
#[derive(Deserialize)]
struct Info {
    sha: String,
    siblings: Vec<Sibling>,
}

/// A file of a repository.
#[derive(Clone, Debug, Deserialize)]
struct Sibling {
    rfilename: String,
    #[serde(default)]
    size: Option<u64>,
    #[serde(default, rename = "blobId")]
    blob_id: Option<String>,
    #[serde(default)]
    lfs: Option<Lfs>,
}

/// What is told of a large file.
#[derive(Clone, Debug, Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

/// Fetches USER/REPO or USER/REPO:QUANT; without QUANT Q4_K_M, else the first there is. The paths of its files, of a
/// split model all. What is here already is not fetched again.
///
/// # Errors
/// [`PullError`]; what a transfer that was cut has brought stays for the next try.
pub fn pull(
    name: &str,
    options: &PullOptions,
    on: &mut dyn FnMut(PullProgress) -> ControlFlow<()>,
) -> Result<Vec<PathBuf>, PullError> {
    let name = PullName::parse(name)?;
    let mut builder = ApiBuilder::from_env().with_user_agent("firth", env!("CARGO_PKG_VERSION"));
    let mut cache = Cache::from_env();
    if let Some(endpoint) = &options.endpoint {
        builder = builder.with_endpoint(endpoint.trim_end_matches('/').to_owned());
    }
    if let Some(folder) = &options.cache {
        cache = Cache::new(folder.clone());
    }
    let hub = |why: String| PullError::Hub { repo: name.repo.clone(), why };
    let api: Api = builder.build().map_err(|e| hub(e.to_string()))?;
    let repo = api.model(name.repo.clone());
    let info = info(&repo).map_err(hub)?;
    let files = choose::files(&name, &info.siblings)?;
    let store = Store { cache: cache.repo(Repo::model(name.repo.clone())), sha: info.sha };
    let fetched = files.iter().map(|f| store.fetch(&repo, f, on)).collect::<Result<Vec<_>, _>>()?;
    let named = store.cache.create_ref(&store.sha);
    named.map_err(|source| PullError::Write { path: cache.path().clone(), source })?;
    Ok(fetched)
}

fn info(repo: &ApiRepo) -> Result<Info, String> {
    let request = repo.info_request().query("blobs", "true").config().http_status_as_error(false).build();
    let mut response = request.call().map_err(|e| e.to_string())?;
    match response.status().as_u16() {
        200 => response.body_mut().read_json().map_err(|e| format!("the hub's answer makes no sense: {e}")),
        401 | 403 => Err("the hub refuses; a model that needs consent wants a token in HF_TOKEN".into()),
        404 => Err("the hub has no such model".into()),
        other => Err(format!("the hub answers with status {other}")),
    }
}

/// A repository's place in the cache, at one revision.
struct Store {
    cache: hf_hub::CacheRepo,
    sha: String,
}

impl Store {
    /// Fetches one file unless it is here; its path.
    fn fetch(
        &self,
        repo: &ApiRepo,
        file: &Sibling,
        on: &mut dyn FnMut(PullProgress) -> ControlFlow<()>,
    ) -> Result<PathBuf, PullError> {
        let plain = |s: &str| !s.is_empty() && s.chars().all(|c| c.is_ascii_alphanumeric());
        let sum = file.lfs.as_ref().map(|l| l.sha256.to_lowercase());
        let key = sum.clone().or_else(|| file.blob_id.clone()).filter(|k| plain(k));
        let size = file.lfs.as_ref().map(|l| l.size).or(file.size);
        let (Some(key), Some(size), true) = (key, size, plain(&self.sha)) else {
            let why = format!("the hub tells no size and sum of {}", file.rfilename);
            return Err(PullError::Hub { repo: repo.url(""), why });
        };
        let blob = self.cache.blob_path(&key);
        let pointer = self.cache.pointer_path(&self.sha).join(&file.rfilename);
        let failed = |path: &Path, source| PullError::Write { path: path.to_owned(), source };
        for path in [&blob, &pointer] {
            let folder = path.parent().expect("a path in the cache");
            fs::create_dir_all(folder).map_err(|e| failed(folder, e))?;
        }
        if !fs::metadata(&blob).is_ok_and(|m| m.len() == size) {
            let url = repo.url(&file.rfilename);
            let wanted = fetch::Wanted { name: &file.rfilename, size, sum: sum.as_deref() };
            let request = || repo.info_request().uri(url.as_str());
            fetch::fetch(&wanted, &blob, &mut |from| fetch::get(request(), from), on)?;
        }
        point(&blob, &pointer).map_err(|e| failed(&pointer, e))?;
        Ok(pointer)
    }
}

/// Makes `pointer` lead to `blob`, by a link where the system has them, else by a copy under a temporary name first.
fn point(blob: &Path, pointer: &Path) -> std::io::Result<()> {
    if fs::canonicalize(pointer).is_ok_and(|p| fs::canonicalize(blob).is_ok_and(|b| b == p)) {
        return Ok(());
    }
    let _ = fs::remove_file(pointer);
    #[cfg(unix)]
    {
        let ups = pointer.ancestors().skip(1).take_while(|a| !blob.starts_with(a)).count();
        let common = pointer.ancestors().skip(1).find(|a| blob.starts_with(a)).unwrap_or(Path::new("/"));
        let below = blob.strip_prefix(common).map_err(std::io::Error::other)?;
        let mut target = PathBuf::new();
        (0..ups).for_each(|_| target.push(".."));
        std::os::unix::fs::symlink(target.join(below), pointer)
    }
    #[cfg(not(unix))]
    {
        let temporary = pointer.with_extension("copying");
        fs::copy(blob, &temporary)?;
        fs::rename(&temporary, pointer)
    }
}
