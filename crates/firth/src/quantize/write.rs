//! The new file or files.

use std::cell::Cell;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use firth_gguf::{Metadata, Value, WriteError, Writer};

use super::part::Part;
use super::rows::{self, RowError};
use super::{Planned, QuantizeError, QuantizePlan, QuantizeProgress};

pub(super) fn write(
    plan: &QuantizePlan,
    out: &Path,
    on: &mut dyn FnMut(QuantizeProgress) -> ControlFlow<()>,
) -> Result<Vec<PathBuf>, QuantizeError> {
    let paths = out_paths(plan, out);
    for path in &paths {
        refuse_input(plan, path)?;
    }
    let mut parts = Vec::new();
    for (shard, path) in paths.iter().enumerate() {
        let tensors = tensors_of(plan, shard, paths.len());
        let metadata = metadata(plan, shard, paths.len());
        let part = Part::open(path.clone(), make(plan, &metadata, &tensors));
        parts.push(part.map_err(|source| output(path, source.into()))?);
        let part = parts.last().expect("just pushed");
        let written = write_shard(plan, metadata, &tensors, part, on);
        if matches!(written, Err(QuantizeError::Interrupted)) {
            parts.iter().for_each(Part::leave);
        }
        written?;
    }
    for part in &parts {
        part.keep().map_err(|source| output(part.path(), source.into()))?;
    }
    Ok(paths)
}

/// What a file is made of: its keys and tensors, the input, and what decides the bits of blocks.
fn make(plan: &QuantizePlan, metadata: &Metadata, tensors: &[&Planned]) -> u64 {
    let mut h = DefaultHasher::new();
    for (key, value) in metadata.iter() {
        (key, format!("{value:?}")).hash(&mut h);
    }
    for p in tensors {
        (&p.tensor.name, &p.tensor.shape, p.tensor.dtype.name(), p.dtype.name()).hash(&mut h);
    }
    for path in plan.file.paths() {
        let found = fs::metadata(path).ok();
        (path, found.as_ref().map(|m| m.len()), found.and_then(|m| m.modified().ok())).hash(&mut h);
    }
    plan.options.importance.as_ref().map(|i| i.fingerprint()).hash(&mut h);
    env!("CARGO_PKG_VERSION").hash(&mut h);
    h.finish()
}

fn output(path: &Path, why: WriteError) -> QuantizeError {
    QuantizeError::Output { path: path.to_owned(), why }
}

fn out_paths(plan: &QuantizePlan, out: &Path) -> Vec<PathBuf> {
    let count = plan.file.n_shards();
    if !plan.options.keep_split || count == 1 {
        return vec![out.to_owned()];
    }
    let prefix =
        if out.extension().is_some_and(|e| e == "gguf") { out.with_extension("") } else { out.to_owned() };
    let path = |i: usize| {
        let mut name = prefix.clone().into_os_string();
        name.push(format!("-{i:05}-of-{count:05}.gguf"));
        PathBuf::from(name)
    };
    (1..=count).map(path).collect()
}

/// Refuses to replace a file that is being read.
fn refuse_input(plan: &QuantizePlan, path: &Path) -> Result<(), QuantizeError> {
    let Ok(found) = fs::canonicalize(path) else { return Ok(()) };
    let same = |input: &PathBuf| fs::canonicalize(input).is_ok_and(|input| input == found);
    match plan.file.paths().iter().any(same) {
        true => Err(QuantizeError::SameFile { path: path.to_owned() }),
        false => Ok(()),
    }
}

/// The tensors of a shard in the order of its file.
fn tensors_of<'p>(plan: &'p QuantizePlan, shard: usize, count: usize) -> Vec<&'p Planned<'p>> {
    let mut tensors: Vec<&Planned> = plan.tensors.iter().collect();
    if count > 1 {
        tensors.retain(|p| p.tensor.shard == shard);
        tensors.sort_by_key(|p| p.tensor.offset);
    }
    tensors
}

fn write_shard(
    plan: &QuantizePlan,
    metadata: Metadata,
    tensors: &[&Planned],
    part: &Part,
    on: &mut dyn FnMut(QuantizeProgress) -> ControlFlow<()>,
) -> Result<(), QuantizeError> {
    let path = part.path().to_owned();
    let mut writer = Writer::new();
    *writer.metadata_mut() = metadata;
    for p in tensors {
        let added = writer.add_tensor_later(p.tensor.name.as_str(), &p.tensor.shape, p.dtype);
        added.map_err(|source| output(&path, source))?;
    }
    // The writer knows errors of the output only; those of the input wait here.
    let (mut failure, mut next) = (None, tensors.iter());
    let (at, done) = (Cell::new(0), Cell::new(0));
    let tail = part.output(&at);
    let written = writer.write_streamed(tail, |_, out| {
        let planned = next.next().expect("one call for each tensor");
        out.flush()?;
        if at.get() + planned.bytes() <= part.trusted {
            pass_over(planned.bytes(), out)?;
            let _ = on(QuantizeProgress { planned, bytes: planned.tensor.len });
            return Ok(());
        }
        match rows::convert(plan, planned, out, on) {
            Ok(()) => {
                out.flush()?;
                done.set(at.get());
                part.progress(done.get(), false)
            }
            Err(RowError::Output(e)) => Err(e),
            Err(RowError::Input(e)) => {
                failure = Some(e);
                Err(io::ErrorKind::Other.into())
            }
        }
    });
    let noted = match (&failure, &written) {
        // What cannot be noted is done again.
        (Some(QuantizeError::Interrupted), _) => part.progress(done.get(), true).or(Ok(())),
        (None, Ok(())) => part.progress(at.get(), true),
        _ => Ok(()),
    };
    match (failure, written) {
        (Some(e), _) => Err(e),
        (None, Err(source)) => Err(output(&path, source)),
        (None, Ok(())) => noted.map_err(|source| output(&path, source.into())),
    }
}

/// Stands for the data of a tensor that a former run has written.
fn pass_over(bytes: u64, out: &mut dyn Write) -> io::Result<()> {
    io::copy(&mut io::Read::take(io::repeat(0), bytes), out).map(drop)
}

/// The keys of a file: all of the input's in the first shard, those of the split in each.
fn metadata(plan: &QuantizePlan, shard: usize, count: usize) -> Metadata {
    let mut m = Metadata::new();
    if shard == 0 {
        let split = ["split.no", "split.count", "split.tensors.count"];
        for (key, value) in plan.file.metadata().iter().filter(|(key, _)| !split.contains(key)) {
            m.insert(key, value.clone());
        }
        m.insert("general.quantization_version", Value::U32(2));
        m.insert("general.file_type", Value::U32(plan.options.file_type.value()));
        if let Some(importance) = &plan.options.importance {
            importance.describe(&mut m);
        }
    }
    if count > 1 {
        let number = |n: usize| u16::try_from(n).map_or(Value::U32(n as u32), Value::U16);
        m.insert("split.no", number(shard));
        m.insert("split.count", number(count));
        m.insert("split.tensors.count", Value::I32(plan.tensors.len() as i32));
    }
    m
}
