//! The new file or files.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use firth_gguf::{Metadata, Value, WriteError, Writer};

use super::rows::{self, RowError};
use super::{Planned, QuantizeError, QuantizePlan, QuantizeProgress};

/// A file under its temporary name, removed unless it is kept.
struct Part {
    temporary: PathBuf,
    path: PathBuf,
    kept: bool,
}

impl Part {
    fn create(path: PathBuf) -> io::Result<(Part, File)> {
        let mut name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?.to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let temporary = path.with_file_name(name);
        let file = OpenOptions::new().write(true).create_new(true).open(&temporary)?;
        Ok((Part { temporary, path, kept: false }, file))
    }

    fn keep(&mut self) -> io::Result<()> {
        fs::rename(&self.temporary, &self.path)?;
        self.kept = true;
        sync_folder(&self.path)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.kept {
            // What cannot be removed stays under its temporary name; there is nobody to tell.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// Makes a rename last. Only some systems open folders.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

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
        let failed = |source: io::Error| output(path, source.into());
        let (part, file) = Part::create(path.clone()).map_err(failed)?;
        parts.push(part);
        write_shard(plan, shard, paths.len(), path, &file, on)?;
        file.sync_all().map_err(failed)?;
    }
    for part in &mut parts {
        part.keep().map_err(|source| output(&part.path, source.into()))?;
    }
    Ok(paths)
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

fn write_shard(
    plan: &QuantizePlan,
    shard: usize,
    count: usize,
    path: &Path,
    file: &File,
    on: &mut dyn FnMut(QuantizeProgress) -> ControlFlow<()>,
) -> Result<(), QuantizeError> {
    let mut tensors: Vec<&Planned> = plan.tensors.iter().collect();
    if count > 1 {
        tensors.retain(|p| p.tensor.shard == shard);
        tensors.sort_by_key(|p| p.tensor.offset);
    }
    let mut writer = Writer::new();
    *writer.metadata_mut() = metadata(plan, shard, count);
    for p in &tensors {
        let added = writer.add_tensor_later(p.tensor.name.as_str(), &p.tensor.shape, p.dtype);
        added.map_err(|source| output(path, source))?;
    }
    // The writer knows errors of the output only; those of the input wait here.
    let (mut failure, mut next) = (None, tensors.iter());
    let written = writer.write_streamed(file, |_, out| {
        let planned = next.next().expect("one call for each tensor");
        match rows::convert(plan, planned, out, on) {
            Ok(()) => Ok(()),
            Err(RowError::Output(e)) => Err(e),
            Err(RowError::Input(e)) => {
                failure = Some(e);
                Err(io::ErrorKind::Other.into())
            }
        }
    });
    match (failure, written) {
        (Some(e), _) => Err(e),
        (None, written) => written.map_err(|source| output(path, source)),
    }
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
