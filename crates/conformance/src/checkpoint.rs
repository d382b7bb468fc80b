//! Checkpoints in safetensors with the logits that transformers gave: a folder each, with `tokens.json` and
//! `logits.f32` beside the files of the model.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use firth::{EngineOptions, Gguf, LogitsOptions};
use firth_cpu::Level;
use firth_engine::Engine;
use firth_gguf::Writer;
use firth_quant::Dtype;

use crate::models;

/// The folders of checkpoints in a folder, in order of name.
pub fn folders(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut out: Vec<PathBuf> = entries.map(|e| e.expect("an entry").path()).collect();
    out.retain(|path| path.join("logits.f32").is_file());
    out.sort();
    out
}

/// The largest difference between the logits of a checkpoint's model and those it came with. Opened as it is, written as a
/// GGUF file and read again, cut into steps and with others beside it gives the same bits, or it is an error.
pub fn worst_difference(folder: &Path) -> Result<f32, String> {
    let read = |name: &str| fs::read(folder.join(name)).map_err(|e| format!("{name}: {e}"));
    let tokens: Vec<u32> = serde_json::from_slice(&read("tokens.json")?).map_err(|e| e.to_string())?;
    let bytes = read("logits.f32")?;
    let expected = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let file = firth::open(folder, &[]).map_err(|e| e.to_string())?;
    let found = logits(&file, &tokens, &LogitsOptions::default())?;
    let written = Arc::new(written(&file)?);
    if (file.header_hash(), file.content_hash()) != (written.header_hash(), written.content_hash()) {
        return Err("the file that is written has other hashes".into());
    }
    let alone = LogitsOptions { cuts: vec![1], mates: 0 };
    let batched = LogitsOptions { cuts: vec![7, 1, 4], mates: 3 };
    for (file, how) in [(&written, &LogitsOptions::default()), (&file, &alone), (&file, &batched)] {
        if logits(file, &tokens, how)? != found {
            return Err(format!("other logits in steps of {:?} beside {} others", how.cuts, how.mates));
        }
    }
    if found.len() * 4 != bytes.len() {
        return Err(format!("{} logits, expected {}", found.len(), bytes.len() / 4));
    }
    Ok(found.iter().zip(expected).fold(0.0, |worst, (a, b)| worst.max((a - b).abs())))
}

fn logits(file: &Arc<Gguf>, tokens: &[u32], how: &LogitsOptions) -> Result<Vec<f32>, String> {
    let n = tokens.len();
    // Which of two rope tables a model takes goes by the context; transformers goes by the length of the text.
    let ctx = Some(n);
    let o = EngineOptions {
        ctx,
        kv: Dtype::F32,
        batch: n + how.mates,
        outputs: Some(n + how.mates),
        parallel: 1 + how.mates,
        ..EngineOptions::default()
    };
    let cpu = models::cpu(Level::detect(), 2);
    let mut engine =
        Engine::load(file, vec![cpu], &o, &mut |_| ControlFlow::Continue(())).map_err(|e| e.to_string())?;
    let mut out = Vec::new();
    firth::logits(&mut engine, tokens, how, &mut |_, row| out.extend_from_slice(row))
        .map_err(|e| e.to_string())?;
    Ok(out)
}

/// The model as a file of its own.
fn written(file: &Gguf) -> Result<Gguf, String> {
    let mut writer = Writer::new();
    for (key, value) in file.metadata().iter() {
        writer.metadata_mut().insert(key, value.clone());
    }
    for t in file.tensors() {
        writer.add_tensor(&t.name, &t.shape, t.dtype, file.data(t)).map_err(|e| e.to_string())?;
    }
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).map_err(|e| e.to_string())?;
    Gguf::from_bytes(bytes, "written").map_err(|e| e.to_string())
}
