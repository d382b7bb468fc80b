//! `firth quantize`: a model file in another type; `firth convert`: a checkpoint as a model file.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use firth::{Dtype, FileType, Gguf, Importance, QuantizeOptions, QuantizePlan, TensorType};

use crate::args::{Convert, Quantize};
use crate::progress::{self, Progress};

/// Plans, says what is unusual, and writes unless `--dry-run`.
pub fn quantize(a: Quantize) -> Result<()> {
    let options = options(&a)?;
    let file = super::open(Some(&a.input), &a.override_kv)?;
    let plan = QuantizePlan::new(&file, &options)?;
    report_fallbacks(&plan);
    report_idle_rules(&a, &options, &file);
    if a.dry_run {
        print_plan(&plan);
    } else {
        write(&plan, "quantising", &file, &a.output)?;
    }
    report_sizes(&plan, &file, &options);
    Ok(())
}

/// Writes a checkpoint in the type of its weights, or in the one that is asked for.
pub fn convert(a: Convert) -> Result<()> {
    let file = super::open(Some(&a.folder), &a.override_kv)?;
    let file_type = match &a.file_type {
        Some(name) => file_type(name)?,
        None => FileType::of_most(&file),
    };
    let mut options = QuantizeOptions::new(file_type);
    options.threads = crate::devices::threads(a.threads)?;
    let plan = QuantizePlan::new(&file, &options)?;
    report_fallbacks(&plan);
    write(&plan, "converting", &file, &a.output)?;
    report_sizes(&plan, &file, &options);
    Ok(())
}

/// Writes the plan's files and prints their paths. An interrupt is heard, so that what is done is kept.
fn write(plan: &QuantizePlan, what: &'static str, file: &Gguf, output: &str) -> Result<()> {
    let _listening = progress::listen();
    let bar = Progress::named(what, file.file_bytes());
    let written = plan.write(Path::new(output), &mut |p| bar.add(p.bytes));
    bar.end();
    for path in written? {
        println!("{}", path.display());
    }
    Ok(())
}

fn report_sizes(plan: &QuantizePlan, file: &Gguf, options: &QuantizeOptions) {
    let before: u64 = file.tensors().iter().map(|t| t.len).sum();
    let elements: u64 = file.tensors().iter().map(|t| t.n_elements()).sum();
    let bits = |bytes: u64| bytes as f64 * 8.0 / elements.max(1) as f64;
    eprintln!(
        "{}: {:.1} MiB to {:.1} MiB, {:.2} to {:.2} bits a weight",
        options.file_type.name(),
        mib(before),
        mib(plan.bytes()),
        bits(before),
        bits(plan.bytes())
    );
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / (1 << 20) as f64
}

fn options(a: &Quantize) -> Result<QuantizeOptions> {
    let mut options = QuantizeOptions::new(file_type(&a.file_type)?);
    options.tensor_types = a.tensor_type.iter().map(|t| TensorType::parse(t)).collect::<Result<_, _>>()?;
    options.output_type = a.output_tensor_type.as_deref().map(dtype).transpose()?;
    options.embedding_type = a.token_embedding_type.as_deref().map(dtype).transpose()?;
    options.pure = a.pure;
    options.leave_output = a.leave_output_tensor;
    options.allow_requantize = a.allow_requantize;
    options.keep_split = a.keep_split;
    options.importance = importance(a)?;
    options.threads = crate::devices::threads(a.threads)?;
    Ok(options)
}

fn file_type(name: &str) -> Result<FileType> {
    FileType::from_name(name).ok_or_else(|| {
        let names: Vec<&str> = FileType::ALL.iter().map(|t| t.name()).collect();
        anyhow!("`{name}` is no file type; known are {}", names.join(", "))
    })
}

fn dtype(name: &str) -> Result<Dtype> {
    Dtype::from_name(name).ok_or_else(|| {
        let names: Vec<&str> = Dtype::ALL.iter().map(|d| d.name()).collect();
        anyhow!("`{name}` is no tensor type; known are {}", names.join(", "))
    })
}

fn importance(a: &Quantize) -> Result<Option<Importance>> {
    let Some(path) = &a.imatrix else { return Ok(None) };
    let mut importance =
        Importance::open(path).with_context(|| format!("importance matrix {}", path.display()))?;
    let named = |parts: &[String], name: &str| parts.iter().any(|part| name.contains(part));
    if !a.include_weights.is_empty() {
        importance.retain(|name| named(&a.include_weights, name));
    }
    importance.retain(|name| !named(&a.exclude_weights, name));
    if importance.is_empty() {
        bail!("importance matrix {} has no entry left", path.display());
    }
    Ok(Some(importance))
}

fn report_fallbacks(plan: &QuantizePlan) {
    for p in plan.tensors() {
        if let Some(wanted) = p.wanted {
            let (name, row) = (&p.tensor.name, p.tensor.shape[0]);
            let (wanted, dtype) = (wanted.name(), p.dtype.name());
            eprintln!("firth: warning: {name} has rows of {row} values: {dtype} in place of {wanted}");
        }
    }
}

/// Names of tensors are easily misspelt.
fn report_idle_rules(a: &Quantize, options: &QuantizeOptions, file: &Gguf) {
    for (text, rule) in a.tensor_type.iter().zip(&options.tensor_types) {
        if !file.tensors().iter().any(|t| rule.matches(&t.name)) {
            eprintln!("firth: warning: --tensor-type {text} matches no tensor");
        }
    }
}

fn print_plan(plan: &QuantizePlan) {
    for p in plan.tensors() {
        let (name, from, to) = (&p.tensor.name, p.tensor.dtype.name(), p.dtype.name());
        let change = if from == to { from.to_owned() } else { format!("{from} to {to}") };
        println!("{name:40} {:?} {change}, {:.3} MiB", p.tensor.shape, mib(p.bytes()));
    }
}
