//! Where the larger fixtures lie.

use std::path::{Path, PathBuf};

/// A path below the shared folder, or `None`, said on stderr, where it is absent outside of CI.
pub fn shared(path: &str) -> Option<PathBuf> {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let root = std::env::var_os("FIRTH_SHARED").map_or(default, PathBuf::from);
    let found = root.join(path);
    if found.exists() {
        return Some(found);
    }
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{} is absent", found.display());
    eprintln!("skipped: {} is absent", found.display());
    None
}
