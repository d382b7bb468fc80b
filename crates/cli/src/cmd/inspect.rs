//! `firth inspect`: what is in a file, and whether firth runs it.

use std::collections::BTreeMap;

use anyhow::Result;
use firth::{Gguf, Pooling};
use firth_gguf::{Array, Value};
use firth_text::{ChatTemplate, Vocab};
use serde_json::{Map, json};

use crate::args::Inspect;

/// Entries of an array that are shown.
const SHOWN: usize = 6;

/// What becomes of a file, part by part.
struct Verdict {
    model: Result<firth_models::ModelInfo, String>,
    /// How text is cut and what is odd about it.
    text: Result<(String, Vec<String>), String>,
    /// Whether there is a chat template, or why it cannot be read.
    template: Result<bool, String>,
    /// What `embed` makes, or why it makes nothing.
    embeddings: Result<String, String>,
}

impl Verdict {
    fn of(file: &Gguf) -> Verdict {
        let m = file.metadata();
        let kind = m.str("general.type").ok().flatten().unwrap_or("model");
        let model = match kind {
            "model" => firth_models::load(file).map(|model| model.info()).map_err(|e| e.to_string()),
            other => Err(format!("it is of the type `{other}`, no model")),
        };
        let vocab = Vocab::from_metadata(m).map_err(|e| e.to_string());
        let text = vocab.as_ref().map_err(String::clone).and_then(|v| match v.has_text() {
            true => Ok((format!("{:?}, {} tokens", v.kind(), v.len()), v.warnings().to_vec())),
            false => Err("the file has no vocabulary, only ids can be given".into()),
        });
        let template = ChatTemplate::from_metadata(m, "", "").map(|t| t.is_some()).map_err(|e| e.to_string());
        let embeddings = model.clone().and_then(|info| embeddings(file, &info));
        Verdict { model, text, template, embeddings }
    }

    fn print(&self) {
        match &self.model {
            Ok(info) => println!("firth runs it: {} with {} layers", info.arch, info.n_layers),
            Err(e) => return println!("firth does not run it: {e}"),
        }
        match &self.text {
            Ok((kind, warnings)) => {
                println!("  text: {kind}");
                warnings.iter().for_each(|w| println!("  text: warning: {w}"));
            }
            Err(e) => println!("  text: not possible: {e}"),
        }
        match &self.embeddings {
            Ok(kind) => println!("  embeddings: {kind}"),
            Err(e) => println!("  embeddings: not possible: {e}"),
        }
        if self.model.as_ref().is_ok_and(|info| !info.logits) {
            return println!("  chat: not possible: it has no logits, only embeddings");
        }
        match &self.template {
            Ok(true) => println!("  chat: by the file's template"),
            Ok(false) => {
                println!("  chat: the file has no template; `firth chat` needs --chat-template FILE")
            }
            Err(e) => println!("  chat: not possible: {e}; give another with --chat-template FILE"),
        }
    }
}

/// What the file says of its embeddings.
fn embeddings(file: &Gguf, info: &firth_models::ModelInfo) -> Result<String, String> {
    let pooled = firth_models::Pooled::read(file, info).map_err(|e| e.to_string())?;
    let n = pooled.width(pooled.pooling);
    match (pooled.pooling, n) {
        (Pooling::Rank, 0) => {
            Err("its pooling is rank, but it has no classifier; give another with --pooling".into())
        }
        (Pooling::Rank, n) => Ok(format!("scores of a classifier, {n} for a pair of texts")),
        (pooling, n) => Ok(format!("{n} numbers, pooling {}", pooling.name())),
    }
}

/// Runs the command.
pub fn inspect(a: Inspect) -> Result<()> {
    let file = super::open(Some(&a.model), &[])?;
    let verdict = Verdict::of(&file);
    if a.json {
        return super::print_json(&to_json(&file, &verdict));
    }
    println!("{} bytes, {} shards, {} tensors", file.file_bytes(), file.n_shards(), file.tensors().len());
    for (key, value) in file.metadata().iter() {
        println!("  {key} = {}", show(value));
    }
    for (dtype, (n, bytes)) in types(&file) {
        println!("  {n} tensors of {dtype}, {bytes} bytes");
    }
    verdict.print();
    Ok(())
}

fn types(file: &Gguf) -> BTreeMap<&'static str, (usize, u64)> {
    let mut out = BTreeMap::new();
    for t in file.tensors() {
        let e: &mut (usize, u64) = out.entry(t.dtype.name()).or_default();
        e.0 += 1;
        e.1 += t.len;
    }
    out
}

fn to_json(file: &Gguf, verdict: &Verdict) -> serde_json::Value {
    let metadata: Map<String, serde_json::Value> =
        file.metadata().iter().map(|(k, v)| (k.to_string(), json!(show(v)))).collect();
    let tensor = |t: &firth_gguf::TensorInfo| json!({"name": t.name, "shape": t.shape, "type": t.dtype.name(), "bytes": t.len, "shard": t.shard});
    json!({
        "bytes": file.file_bytes(),
        "shards": file.n_shards(),
        "metadata": metadata,
        "tensors": file.tensors().iter().map(tensor).collect::<Vec<_>>(),
        "runs": verdict.model.is_ok(),
        "reason": verdict.model.as_ref().err(),
        "text": verdict.text.as_ref().ok().map(|t| &t.0),
        "text_reason": verdict.text.as_ref().err(),
        "warnings": verdict.text.as_ref().ok().map(|t| &t.1),
        "template": verdict.template.as_ref().is_ok_and(|t| *t),
        "embeddings": verdict.embeddings.as_ref().ok(),
        "template_reason": verdict.template.as_ref().err(),
    })
}

fn show(v: &Value) -> String {
    match v {
        Value::Str(s) if s.chars().count() > 80 => {
            format!("{:?}… ({} characters)", s.chars().take(80).collect::<String>(), s.chars().count())
        }
        Value::Str(s) => format!("{s:?}"),
        Value::Array(a) => show_array(a),
        Value::U8(x) => x.to_string(),
        Value::I8(x) => x.to_string(),
        Value::U16(x) => x.to_string(),
        Value::I16(x) => x.to_string(),
        Value::U32(x) => x.to_string(),
        Value::I32(x) => x.to_string(),
        Value::U64(x) => x.to_string(),
        Value::I64(x) => x.to_string(),
        Value::F32(x) => x.to_string(),
        Value::F64(x) => x.to_string(),
        Value::Bool(x) => x.to_string(),
    }
}

fn show_array(a: &Array) -> String {
    fn first<T: std::fmt::Debug>(v: &[T]) -> String {
        v.iter().take(SHOWN).map(|x| format!("{x:?}")).collect::<Vec<_>>().join(", ")
    }
    let items = match a {
        Array::U8(v) => first(v),
        Array::I8(v) => first(v),
        Array::U16(v) => first(v),
        Array::I16(v) => first(v),
        Array::U32(v) => first(v),
        Array::I32(v) => first(v),
        Array::U64(v) => first(v),
        Array::I64(v) => first(v),
        Array::F32(v) => first(v),
        Array::F64(v) => first(v),
        Array::Bool(v) => first(v),
        Array::Str(v) => {
            let texts: Vec<_> = v.iter().take(SHOWN).map(String::from_utf8_lossy).collect();
            first(&texts)
        }
    };
    let more = if a.len() > SHOWN { ", …" } else { "" };
    format!("[{items}{more}] ({} of {})", a.len(), a.type_name())
}
