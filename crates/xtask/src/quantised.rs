//! What a model loses in each type: perplexity of a text, with an importance matrix of another text.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use firth::{
    FileType, Gguf, Imatrix, ImatrixOptions, Importance, PerplexityOptions, QuantizeOptions, QuantizePlan,
    perplexity,
};
use firth_conformance::{fixture, models};
use firth_cpu::Level;
use firth_engine::EngineOptions;
use firth_text::{Encode, Vocab};

/// Perplexity of a model in every type that can be written.
#[derive(clap::Args)]
pub struct Args {
    /// The model, unquantised; qwen3-tiny by default
    model: Option<PathBuf>,
    /// The text; Austen by default
    #[arg(short)]
    file: Option<PathBuf>,
    /// Bytes of it that are measured; as many behind them make the matrix
    #[arg(long, default_value_t = 30_000)]
    bytes: usize,
    /// Tokens of a chunk
    #[arg(short, default_value_t = 256)]
    ctx: usize,
    /// Only families whose name has this part
    #[arg(long)]
    only: Option<String>,
    /// Threads
    #[arg(short, default_value_t = 2)]
    threads: usize,
}

/// Types from few bits to many, family by family. `pure` ones are measured without the mix, so that the order is that of
/// their encoders.
const FAMILIES: &[(&str, bool, &[FileType])] = &[
    ("plain", true, &[FileType::Q4_0, FileType::Q5_0, FileType::Q8_0]),
    ("with a minimum", true, &[FileType::Q4_1, FileType::Q5_1]),
    ("K", true, &[FileType::Q2_K, FileType::Q3_K_S, FileType::Q4_K_S, FileType::Q5_K_S, FileType::Q6_K]),
    (
        "IQ",
        true,
        &[
            FileType::IQ2_XXS,
            FileType::IQ2_XS,
            FileType::IQ2_M,
            FileType::IQ3_XXS,
            FileType::IQ3_S,
            FileType::IQ4_XS,
            FileType::IQ4_NL,
        ],
    ),
    ("four bits", true, &[FileType::MXFP4_MOE, FileType::IQ4_XS]),
    ("one and two", true, &[FileType::Q1_0, FileType::Q2_0]),
    ("ternary", true, &[FileType::TQ1_0, FileType::TQ2_0]),
    ("floats", true, &[FileType::BF16, FileType::F16]),
    ("Q4, Q5 mixed", false, &[FileType::Q4_0, FileType::Q5_0, FileType::Q8_0]),
    ("Q_1 mixed", false, &[FileType::Q4_1, FileType::Q5_1]),
    (
        "K, small",
        false,
        &[FileType::Q2_K_S, FileType::Q3_K_S, FileType::Q4_K_S, FileType::Q5_K_S, FileType::Q6_K],
    ),
    ("K, middle", false, &[FileType::Q2_K, FileType::Q3_K_M, FileType::Q4_K_M, FileType::Q5_K_M]),
    ("K, three bits", false, &[FileType::Q3_K_S, FileType::Q3_K_M, FileType::Q3_K_L]),
    ("IQ2", false, &[FileType::IQ2_XXS, FileType::IQ2_XS, FileType::IQ2_S, FileType::IQ2_M]),
    ("IQ3", false, &[FileType::IQ3_XXS, FileType::IQ3_XS, FileType::IQ3_S, FileType::IQ3_M]),
    ("IQ4", false, &[FileType::IQ4_XS, FileType::IQ4_NL]),
    (
        "others",
        false,
        &[FileType::MXFP4_MOE, FileType::TQ1_0, FileType::TQ2_0, FileType::Q1_0, FileType::Q2_0],
    ),
];

/// By how much a type may be worse than a smaller one of its family: what mixes of nearly one size differ by chance.
const CHANCE: f64 = 1.0005;

/// Runs the command; false where a type is worse than a smaller one of its family.
pub fn run(a: &Args) -> Result<bool> {
    let shared = fixture::shared().context("the fixtures are absent; set FIRTH_SHARED")?;
    let or = |given: &Option<PathBuf>, name: &str| given.clone().unwrap_or_else(|| shared.join(name));
    let source = Arc::new(Gguf::open(&or(&a.model, "fixtures/tiny/qwen3-tiny-F32.gguf"))?);
    let text = std::fs::read_to_string(or(&a.file, "fixtures/text/austen-64k.txt"))?;
    let vocab = Vocab::from_metadata(source.metadata())?;
    let cut = |n: usize| text.floor_char_boundary(n.min(text.len()));
    let ids = vocab.encode(&text[..cut(a.bytes)], Encode::default())?;
    let learn = vocab.encode(&text[cut(a.bytes)..cut(2 * a.bytes)], Encode::default())?;
    let folder = std::env::temp_dir().join(format!("firth-quantised-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let measured = table(a, &source, &ids, &learn, &folder);
    let _ = std::fs::remove_dir_all(&folder);
    measured
}

fn table(a: &Args, source: &Arc<Gguf>, ids: &[u32], learn: &[u32], folder: &std::path::Path) -> Result<bool> {
    let matrix = folder.join("matrix.gguf");
    collect(a, source, learn)?.write(&matrix, "the text behind")?;
    let matrix = Importance::open(&matrix)?;
    let whole = measure(a, source, ids)?;
    println!("{:16} {:10} {:>8} {:>10} {:>9}", "family", "type", "MiB", "perplexity", "to F32");
    println!("{:16} {:10} {:8.2} {whole:10.4}", "", "as given", mib(source.file_bytes()));
    let mut ordered = true;
    let wanted = |family: &str| a.only.as_ref().is_none_or(|only| family.contains(only.as_str()));
    for (family, pure, types) in FAMILIES.iter().filter(|(family, ..)| wanted(family)) {
        let mut last = f64::INFINITY;
        for t in *types {
            let mut options = QuantizeOptions { threads: a.threads, ..QuantizeOptions::new(*t) };
            options.allow_requantize = true;
            options.pure = *pure;
            options.importance = Some(matrix.clone());
            let path = folder.join(format!("{}.gguf", t.name()));
            QuantizePlan::new(source, &options)?.write(&path, &mut |_| ControlFlow::Continue(()))?;
            let file = Arc::new(Gguf::open(&path)?);
            let found = measure(a, &file, ids)?;
            std::fs::remove_file(&path)?;
            let mark = if found > last * CHANCE && *family != "others" { "  out of order" } else { "" };
            ordered &= mark.is_empty();
            let more = (found / whole - 1.0) * 100.0;
            let size = mib(file.file_bytes());
            println!("{family:16} {:10} {size:8.2} {found:10.4} {more:+8.2}%{mark}", t.name());
            last = found;
        }
    }
    Ok(ordered)
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn collect(a: &Args, file: &Arc<Gguf>, ids: &[u32]) -> Result<Imatrix> {
    let settings =
        EngineOptions { ctx: Some(a.ctx), batch: a.ctx, observe: true, ..EngineOptions::default() };
    let mut engine = models::engine(file, &settings, Level::detect(), a.threads);
    let options = ImatrixOptions { ctx: a.ctx, chunks: None, bos: None, output: false };
    Ok(Imatrix::collect(&mut engine, ids, &options, &mut |_| {})?)
}

fn measure(a: &Args, file: &Arc<Gguf>, ids: &[u32]) -> Result<f64> {
    let outputs = Some(a.ctx);
    let settings = EngineOptions { ctx: Some(a.ctx), batch: a.ctx, outputs, ..EngineOptions::default() };
    let mut engine = models::engine(file, &settings, Level::detect(), a.threads);
    let options = PerplexityOptions { ctx: a.ctx, chunks: None, bos: None };
    Ok(perplexity(&mut engine, ids, &options, &mut |_, _| {})?.ppl)
}
