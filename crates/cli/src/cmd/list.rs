//! `firth list`: models that lie on this machine.

use anyhow::Result;
use firth::Stores;
use serde_json::json;

use crate::args::List;

/// Runs the command.
pub fn list(a: List) -> Result<()> {
    let models = Stores::of_this_machine().list();
    if a.json {
        let row = |m: &firth::LocalModel| json!({"name": m.name, "path": m.path, "bytes": m.bytes, "keeper": m.keeper.name()});
        return super::print_json(&models.iter().map(row).collect());
    }
    if models.is_empty() {
        eprintln!("firth: no models in the stores of Hugging Face, Ollama, LM Studio or llama.cpp");
    }
    let width = models.iter().map(|m| m.name.chars().count()).max().unwrap_or(0);
    for m in &models {
        let mib = m.bytes as f64 / f64::from(1 << 20);
        println!("{:width$}  {mib:9.1} MiB  {}", m.name, m.keeper.name());
    }
    Ok(())
}
