//! Models that lie on this machine already: in the caches of Hugging Face and llama.cpp, in the stores of Ollama and
//! LM Studio. Read only; what is incomplete has another name there and is never listed.

use std::env::var_os;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::error::Error;

/// Folders inside of folders at most.
const MAX_DEPTH: usize = 6;
/// Bytes of an Ollama manifest at most; a real one has a few hundred.
const MAX_MANIFEST: u64 = 1 << 20;

/// Who keeps a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Keeper {
    /// Hugging Face's cache, where `firth pull` puts models, too.
    HuggingFace,
    /// Ollama.
    Ollama,
    /// LM Studio.
    LmStudio,
    /// llama.cpp's cache.
    LlamaCpp,
}

impl Keeper {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Keeper::HuggingFace => "Hugging Face",
            Keeper::Ollama => "Ollama",
            Keeper::LmStudio => "LM Studio",
            Keeper::LlamaCpp => "llama.cpp",
        }
    }
}

/// A model on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalModel {
    /// What commands take for it: USER/REPO:QUANT, NAME:TAG, or a file's name.
    pub name: String,
    /// Its file, of a split one the first.
    pub path: PathBuf,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Who keeps it.
    pub keeper: Keeper,
}

/// Where the keepers have their models; `None` where there is no such folder.
#[derive(Clone, Debug, Default)]
pub struct Stores {
    /// Hugging Face's `hub`.
    pub hugging_face: Option<PathBuf>,
    /// Ollama's `models`.
    pub ollama: Option<PathBuf>,
    /// LM Studio's `models`.
    pub lm_studio: Option<PathBuf>,
    /// llama.cpp's cache.
    pub llama_cpp: Option<PathBuf>,
}

impl Stores {
    /// The folders that the keepers' own variables name, else their usual places.
    pub fn of_this_machine() -> Stores {
        let home = var_os("HOME").or_else(|| var_os("USERPROFILE")).map(PathBuf::from);
        let at = |name: &str| var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let below = |dir: &str| home.as_ref().map(|h| h.join(dir));
        let cache = at("XDG_CACHE_HOME").or_else(|| below(".cache"));
        let cached = |dir: &str| cache.as_ref().map(|c| c.join(dir));
        let there = |options: [Option<PathBuf>; 3]| options.into_iter().flatten().find(|p| p.is_dir());
        let hub = at("HF_HOME").map(|h| h.join("hub"));
        Stores {
            hugging_face: there([at("HF_HUB_CACHE"), hub, cached("huggingface/hub")]),
            ollama: there([at("OLLAMA_MODELS"), below(".ollama/models"), None]),
            lm_studio: there([below(".lmstudio/models"), cached("lm-studio/models"), None]),
            llama_cpp: there([at("LLAMA_CACHE"), cached("llama.cpp"), below("Library/Caches/llama.cpp")]),
        }
    }

    /// All models, by keeper and name. What cannot be read is passed over.
    pub fn list(&self) -> Vec<LocalModel> {
        let mut all = Vec::new();
        if let Some(hub) = &self.hugging_face {
            hugging_face(hub, &mut all);
        }
        if let Some(models) = &self.ollama {
            ollama(models, &mut all);
        }
        if let Some(models) = &self.lm_studio {
            for (user, repo, path) in user_repos(models) {
                in_repo(&format!("{user}/{repo}"), &path, Keeper::LmStudio, &mut all);
            }
        }
        if let Some(cache) = &self.llama_cpp {
            for path in model_files(cache) {
                let name = stem(&path);
                all.extend(model(name, path, Keeper::LlamaCpp));
            }
        }
        all.sort_by(|a, b| (a.keeper, &a.name, &a.path).cmp(&(b.keeper, &b.name, &b.path)));
        all.dedup_by(|a, b| (a.keeper, &a.name) == (b.keeper, &b.name));
        all
    }

    /// The file of a model by its name, in any case; a name without QUANT or TAG stands for Q4_K_M or `latest`, else
    /// for the only one.
    ///
    /// # Errors
    /// There is no such model, or it is not clear which is meant.
    pub fn find(&self, name: &str) -> Result<PathBuf, Error> {
        let all = self.list();
        let lower = name.to_lowercase();
        let named = |n: &str| all.iter().find(|m| m.name.to_lowercase() == n).map(|m| m.path.clone());
        let usual = || named(&format!("{lower}:q4_k_m")).or_else(|| named(&format!("{lower}:latest")));
        if let Some(path) = named(&lower).or_else(usual) {
            return Ok(path);
        }
        let begins = |m: &&LocalModel| m.name.to_lowercase().starts_with(&format!("{lower}:"));
        let found: Vec<&LocalModel> = all.iter().filter(begins).collect();
        match found[..] {
            [only] => Ok(only.path.clone()),
            [] => {
                let pull = if name.contains('/') {
                    format!("; `firth pull {name}` fetches it")
                } else {
                    String::new()
                };
                let reason = format!("no such file, nor is it among those that `firth list` shows{pull}");
                Err(Error::NotFound { name: name.to_owned(), reason })
            }
            _ => {
                let names: Vec<&str> = found.iter().map(|m| m.name.as_str()).collect();
                let reason = format!("it may be {}", names.join(" or "));
                Err(Error::NotFound { name: name.to_owned(), reason })
            }
        }
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// Folders and files below a folder; nothing where it cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().filter_map(|e| e.ok().map(|e| e.path())).collect();
    paths.sort();
    paths
}

fn folders(folder: &Path) -> impl Iterator<Item = PathBuf> {
    entries(folder).into_iter().filter(|p| p.is_dir())
}

/// GGUF files below a folder that hold a model: of split ones the first, no projectors of images.
fn model_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    collect(folder, MAX_DEPTH, &mut found);
    found
}

fn collect(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    for path in entries(folder) {
        if path.is_dir() {
            if depth > 0 {
                collect(&path, depth - 1, found);
            }
        } else if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"))
            && shard(&stem(&path)).is_none_or(|(n, _)| n == 1)
            && !stem(&path).to_lowercase().starts_with("mmproj")
        {
            found.push(path);
        }
    }
}

/// Number and count of a shard `NAME-00001-of-00003`.
pub(crate) fn shard(stem: &str) -> Option<(u32, u32)> {
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (_, n) = rest.rsplit_once('-')?;
    (n.len() == 5 && count.len() == 5).then_some((n.parse().ok()?, count.parse().ok()?))
}

/// A model of a file, if it begins as one and all its shards are there.
fn model(name: String, path: PathBuf, keeper: Keeper) -> Option<LocalModel> {
    let mut magic = [0; 4];
    File::open(&path).ok()?.read_exact(&mut magic).ok().filter(|()| &magic == b"GGUF")?;
    let own = stem(&path);
    let mut bytes = fs::metadata(&path).ok()?.len();
    if let Some((_, count)) = shard(&own) {
        for n in 2..=count {
            let base = &own[..own.len() - "00001-of-00001".len()];
            bytes +=
                fs::metadata(path.with_file_name(format!("{base}{n:05}-of-{count:05}.gguf"))).ok()?.len();
        }
    }
    Some(LocalModel { name, path, bytes, keeper })
}

/// The models of one repository, named by the part of the file's name that tells them apart.
fn in_repo(repo: &str, folder: &Path, keeper: Keeper, all: &mut Vec<LocalModel>) {
    for path in model_files(folder) {
        let own = stem(&path);
        let whole = shard(&own).map_or(own.as_str(), |_| &own[..own.len() - "-00001-of-00001".len()]);
        all.extend(model(format!("{repo}:{}", quant(whole)), path.clone(), keeper));
    }
}

/// The type in a file's name, `Q4_K_M` of `model-Q4_K_M` or `model.Q4_K_M`; the whole name where there is none.
pub(crate) fn quant(stem: &str) -> &str {
    let at = stem.rfind(['-', '.']).map_or(0, |i| i + 1);
    let last = &stem[at..];
    let upper = last.to_uppercase();
    let rest = upper.trim_start_matches("IQ").trim_start_matches(['Q', 'T']);
    let is_type = ["F16", "BF16", "F32"].contains(&&*upper)
        || upper.starts_with("MXFP4")
        || (rest.len() < upper.len() && rest.starts_with(|c: char| c.is_ascii_digit()));
    if is_type { last } else { stem }
}

fn hugging_face(hub: &Path, all: &mut Vec<LocalModel>) {
    for folder in entries(hub) {
        let name = name(&folder);
        let Some((user, repo)) = name.strip_prefix("models--").and_then(|n| n.split_once("--")) else {
            continue;
        };
        let main = fs::read_to_string(folder.join("refs/main")).unwrap_or_default();
        // The revision that `main` names, else any.
        let snapshots = folder.join("snapshots");
        let of_main = snapshots.join(main.trim());
        let at = if !main.trim().is_empty() && of_main.is_dir() { of_main } else { snapshots };
        in_repo(&format!("{user}/{repo}"), &at, Keeper::HuggingFace, all);
    }
}

/// (USER, REPO, folder) two folders down.
fn user_repos(folder: &Path) -> Vec<(String, String, PathBuf)> {
    let mut out = Vec::new();
    for user in folders(folder) {
        out.extend(folders(&user).map(|p| (name(&user), name(&p), p)));
    }
    out
}

/// What an Ollama manifest says that matters here.
#[derive(Deserialize)]
struct Manifest {
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
struct Layer {
    #[serde(rename = "mediaType")]
    media_type: String,
    digest: String,
}

/// Manifests lie at HOST/NAMESPACE/NAME/TAG, the files at their digests.
fn ollama(models: &Path, all: &mut Vec<LocalModel>) {
    for host in folders(&models.join("manifests")) {
        for (namespace, model_name, folder) in user_repos(&host) {
            for manifest in entries(&folder).into_iter().filter(|p| p.is_file()) {
                let tag = name(&manifest);
                let full = match &*namespace {
                    "library" => format!("{model_name}:{tag}"),
                    other => format!("{other}/{model_name}:{tag}"),
                };
                let blob = blob_of(&manifest).map(|digest| models.join("blobs").join(digest));
                all.extend(blob.and_then(|path| model(full, path, Keeper::Ollama)));
            }
        }
    }
}

/// The file name of the model that a manifest names.
fn blob_of(manifest: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(manifest).ok()?.take(MAX_MANIFEST).read_to_string(&mut text).ok()?;
    let manifest: Manifest = serde_json::from_str(&text).ok()?;
    let layer = manifest.layers.into_iter().find(|l| l.media_type.ends_with("image.model"))?;
    let digest = layer.digest.replace(':', "-");
    // A digest names a file of the store, never a path out of it.
    digest.chars().all(|c| c.is_ascii_alphanumeric() || c == '-').then_some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("firth-store-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Folder(path)
        }

        fn put(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn stores(&self) -> Stores {
            let at = |dir: &str| Some(self.0.join(dir));
            Stores { hugging_face: at("hf"), ollama: at("ol"), lm_studio: at("lm"), llama_cpp: at("lc") }
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn types_in_names() {
        for (stem, want) in [
            ("SmolLM2-135M-Instruct.Q4_1", "Q4_1"),
            ("gemma-3-270m-it-Q4_K_M", "Q4_K_M"),
            ("model-IQ2_XXS", "IQ2_XXS"),
            ("model-bf16", "bf16"),
            ("gpt-oss-20b-mxfp4", "mxfp4"),
            ("model-TQ1_0", "TQ1_0"),
            ("Qwen3-8B", "Qwen3-8B"),
            ("tiny", "tiny"),
        ] {
            assert_eq!(quant(stem), want);
        }
    }

    #[test]
    fn every_keeper_is_read() {
        let f = Folder::new("all");
        f.put("hf/models--u--r/refs/main", "abc\n");
        f.put("hf/models--u--r/snapshots/abc/r-Q4_K_M.gguf", "GGUFx");
        f.put("hf/models--u--r/snapshots/abc/r-Q8_0-00001-of-00002.gguf", "GGUF");
        f.put("hf/models--u--r/snapshots/abc/r-Q8_0-00002-of-00002.gguf", "GGUFxx");
        f.put("hf/models--u--r/snapshots/abc/r-F16-00001-of-00002.gguf", "GGUF: half of it");
        f.put("hf/models--u--r/snapshots/abc/mmproj-F16.gguf", "GGUF");
        f.put("hf/models--u--r/snapshots/old/r-Q2_K.gguf", "GGUF");
        f.put("hf/models--u--r/blobs/1234.part", "GGUF");
        f.put("ol/manifests/host/library/tiny/latest", r#"{"layers":[
            {"mediaType":"a/license","digest":"sha256:00"}, {"mediaType":"a.image.model","digest":"sha256:01"}]}"#);
        f.put(
            "ol/manifests/host/you/other/v1",
            r#"{"layers":[{"mediaType":"image.model","digest":"../../x"}]}"#,
        );
        f.put("ol/manifests/host/library/broken/latest", "{");
        f.put("ol/blobs/sha256-01", "GGUFyy");
        f.put("lm/pub/repo/file-q4_0.gguf", "GGUF");
        f.put("lm/pub/repo/page.gguf", "<html>");
        f.put("lc/u_r_model.gguf", "GGUF");
        f.put("lc/u_r_model.gguf.downloadInProgress", "GGUF");
        let stores = f.stores();
        let names: Vec<_> = stores.list().into_iter().map(|m| (m.name, m.bytes, m.keeper)).collect();
        let want = [
            ("u/r:Q4_K_M", 5, Keeper::HuggingFace),
            ("u/r:Q8_0", 10, Keeper::HuggingFace),
            ("tiny:latest", 6, Keeper::Ollama),
            ("pub/repo:q4_0", 4, Keeper::LmStudio),
            ("u_r_model", 4, Keeper::LlamaCpp),
        ];
        assert_eq!(names, want.map(|(name, bytes, keeper)| (name.to_owned(), bytes, keeper)));
        let find = |name: &str| stores.find(name).map(|p| stem(&p)).map_err(|e| e.to_string());
        assert_eq!(find("U/R"), Ok("r-Q4_K_M".into()));
        assert_eq!(find("u/r:q8_0"), Ok("r-Q8_0-00001-of-00002".into()));
        assert_eq!(find("tiny"), Ok("sha256-01".into()));
        assert_eq!(find("pub/repo"), Ok("file-q4_0".into()));
        assert_eq!(find("u_r_model"), Ok("u_r_model".into()));
        let missing = find("u/q").unwrap_err();
        assert!(missing.contains("`firth list`") && missing.contains("`firth pull u/q`"), "{missing}");
    }
}
