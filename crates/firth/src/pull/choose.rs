//! Which files of a repository are meant.

use super::{PullError, Sibling};
use crate::store::{quant, shard};

/// Types that are taken where none is named, best first.
const USUAL: [&str; 3] = ["Q4_K_M", "Q4_0", "Q8_0"];

/// USER/REPO, and the type if one was named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullName {
    /// USER/REPO.
    pub repo: String,
    /// The type, as the files spell it, in any case.
    pub quant: Option<String>,
}

impl PullName {
    /// Reads USER/REPO or USER/REPO:QUANT.
    ///
    /// # Errors
    /// Anything else.
    pub fn parse(name: &str) -> Result<PullName, PullError> {
        let (repo, quant) = name.split_once(':').map_or((name, None), |(r, q)| (r, Some(q)));
        let part = |p: &str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            !p.is_empty() && !p.starts_with('.') && p.chars().all(plain)
        };
        let named = repo.split_once('/').is_some_and(|(user, repo)| part(user) && part(repo));
        match named && quant.is_none_or(part) {
            true => Ok(PullName { repo: repo.to_owned(), quant: quant.map(str::to_owned) }),
            false => Err(PullError::Name(name.to_owned())),
        }
    }
}

/// A file's name without folder and ending.
fn stem(file: &Sibling) -> Option<&str> {
    let name = file.rfilename.rsplit('/').next()?;
    let (stem, ending) = name.rsplit_once('.')?;
    ending.eq_ignore_ascii_case("gguf").then_some(stem)
}

/// The type of a file, of a shard that of the whole.
fn type_of(stem: &str) -> &str {
    quant(shard(stem).map_or(stem, |_| &stem[..stem.len() - "-00001-of-00001".len()]))
}

/// The model's files: one, or all shards of one.
pub(super) fn files(name: &PullName, all: &[Sibling]) -> Result<Vec<Sibling>, PullError> {
    let legal = |f: &&Sibling| !f.rfilename.split('/').any(|p| p.is_empty() || p.starts_with('.'));
    let mut models: Vec<(&str, &Sibling)> =
        all.iter().filter(legal).filter_map(|f| Some((stem(f)?, f))).collect();
    models.retain(|(stem, _)| !stem.to_lowercase().starts_with("mmproj"));
    models.sort_by(|a, b| a.1.rfilename.cmp(&b.1.rfilename));
    let is = |stem: &str, wanted: &str| type_of(stem).eq_ignore_ascii_case(wanted);
    let first = |wanted: &str| models.iter().find(|(stem, _)| is(stem, wanted));
    let chosen = match &name.quant {
        Some(wanted) => first(wanted),
        None => USUAL.iter().find_map(|wanted| first(wanted)).or(models.first()),
    };
    let Some((stem, file)) = chosen else {
        let mut types: Vec<&str> = models.iter().map(|(stem, _)| type_of(stem)).collect();
        types.dedup();
        let found = if types.is_empty() { "none".to_owned() } else { types.join(", ") };
        let wanted = name.quant.clone().unwrap_or_else(|| "any".to_owned());
        return Err(PullError::Quant { repo: name.repo.clone(), wanted, found });
    };
    let Some((_, count)) = shard(stem) else { return Ok(vec![(*file).clone()]) };
    let base = &file.rfilename[..file.rfilename.len() - "00001-of-00001.gguf".len()];
    let part = |n: u32| {
        let wanted = format!("{base}{n:05}-of-{count:05}.gguf");
        let found = models.iter().find(|(_, f)| f.rfilename == wanted).map(|(_, f)| (*f).clone());
        let lacks = || PullError::Hub { repo: name.repo.clone(), why: format!("{wanted} is missing there") };
        found.ok_or_else(lacks)
    };
    (1..=count).map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(name: &str, files_there: &[&str]) -> Result<Vec<String>, String> {
        let sibling =
            |f: &&str| Sibling { rfilename: (*f).to_owned(), size: Some(1), blob_id: None, lfs: None };
        let all: Vec<Sibling> = files_there.iter().map(sibling).collect();
        let found = PullName::parse(name).and_then(|n| files(&n, &all)).map_err(|e| e.to_string())?;
        Ok(found.into_iter().map(|f| f.rfilename).collect())
    }

    #[test]
    fn the_named_type_or_the_usual_one() {
        let there =
            ["README.md", "m-F16.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-F16.gguf", "../m-Q2_K.gguf"];
        assert_eq!(chosen("u/r", &there).unwrap(), ["m-Q4_K_M.gguf"]);
        assert_eq!(chosen("u/r:q8_0", &there).unwrap(), ["m-Q8_0.gguf"]);
        assert_eq!(chosen("u/r", &["one.gguf"]).unwrap(), ["one.gguf"]);
        let missing = chosen("u/r:Q2_K", &there).unwrap_err();
        assert_eq!(missing, "u/r has no GGUF file of type `Q2_K`; there are F16, Q4_K_M, Q8_0");
        let split = ["d/m-Q4_0-00001-of-00002.gguf", "d/m-Q4_0-00002-of-00002.gguf"];
        assert_eq!(chosen("u/r", &split).unwrap(), split);
        assert!(chosen("u/r", &split[..1]).unwrap_err().contains("00002-of-00002.gguf is missing"));
    }

    #[test]
    fn names_are_checked() {
        for bad in ["r", "u/", "u/r/s", "../r", "u/r:", "u/r:../x", "u r/s", ""] {
            assert!(PullName::parse(bad).is_err(), "{bad}");
        }
    }
}
