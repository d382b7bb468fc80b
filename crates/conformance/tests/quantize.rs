//! Quantised files beside those of llama.cpp's quantiser, and what a model loses in each type.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use firth::{
    Dtype, EngineOptions, FileType, Imatrix, ImatrixOptions, Importance, PerplexityOptions, QuantizeOptions,
    QuantizePlan, TensorType, perplexity,
};
use firth_conformance::{fixture, models};
use firth_cpu::Level;
use firth_gguf::Gguf;
use firth_text::{Encode, Vocab};

fn options(t: FileType) -> QuantizeOptions {
    QuantizeOptions { threads: 2, allow_requantize: true, ..QuantizeOptions::new(t) }
}

fn types(file: &Gguf) -> BTreeMap<String, Dtype> {
    file.tensors().iter().map(|t| (t.name.clone(), t.dtype)).collect()
}

fn planned(file: &Gguf, t: FileType) -> BTreeMap<String, Dtype> {
    let options = options(t);
    let plan = QuantizePlan::new(file, &options).expect("a plan");
    plan.tensors().iter().map(|p| (p.tensor.name.clone(), p.dtype)).collect()
}

/// A file in a folder for temporary ones, removed at the end.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Temporary {
        Temporary(std::env::temp_dir().join(format!("firth-{}-{name}.gguf", std::process::id())))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn quantize(file: &Gguf, options: &QuantizeOptions, name: &str) -> (Temporary, Arc<Gguf>) {
    let out = Temporary::new(name);
    let plan = QuantizePlan::new(file, options).expect("a plan");
    plan.write(&out.0, &mut |_| ControlFlow::Continue(())).expect("a file");
    let file = Gguf::open(&out.0).expect("a file of ours can be read");
    (out, Arc::new(file))
}

fn tiny(shared: &Path, name: &str) -> Gguf {
    Gguf::open(&shared.join(format!("fixtures/tiny/{name}.gguf"))).expect("a fixture")
}

#[test]
fn types_are_those_of_the_reference() {
    let Some(shared) = fixture::shared() else { return };
    let source = tiny(&shared, "qwen35-tiny-mtp-F32");
    for t in [FileType::Q4_0, FileType::Q8_0, FileType::Q4_K_M] {
        let reference = tiny(&shared, &format!("qwen35-tiny-mtp-{}", t.name()));
        assert_eq!(planned(&source, t), types(&reference), "{}", t.name());
    }
    // The choice heeds names, shapes and keys only, so a quantised file is a case as well.
    for (name, t) in [(models::SMOLLM2, FileType::Q4_1), (models::GEMMA3, FileType::Q4_K_M)] {
        let Some(file) = models::real(name) else { continue };
        assert_eq!(planned(&file, t), types(&file), "{name}");
    }
}

fn decoded(file: &Gguf, name: &str) -> Vec<f32> {
    let tensor = file.tensor(name).expect("a tensor of the source");
    let mut values = vec![0.0; tensor.n_elements() as usize];
    firth_quant::decode(tensor.dtype, file.data(tensor), &mut values);
    values
}

/// Files of ours and of the reference differ in the bits of K blocks at most: same keys, order and sizes, and the
/// squared error of each type at most 1% larger.
#[test]
fn a_file_is_as_good_as_the_references() {
    let Some(shared) = fixture::shared() else { return };
    let source = tiny(&shared, "qwen35-tiny-mtp-F32");
    for (t, equal) in [(FileType::Q8_0, true), (FileType::Q4_0, false), (FileType::Q4_K_M, false)] {
        let reference = tiny(&shared, &format!("qwen35-tiny-mtp-{}", t.name()));
        let (_out, found) = quantize(&source, &options(t), &format!("as-good-{}", t.name()));
        assert_eq!(found.file_bytes(), reference.file_bytes());
        let keys = |f: &Gguf| {
            f.metadata().iter().map(|(k, v)| (k.to_owned(), v.clone())).collect::<BTreeMap<_, _>>()
        };
        assert_eq!(keys(&found), keys(&reference));
        let mut errors = BTreeMap::<&str, (f64, f64)>::new();
        for (ours, theirs) in found.tensors().iter().zip(reference.tensors()) {
            assert_eq!((&ours.name, ours.offset), (&theirs.name, theirs.offset));
            let simple = !matches!(ours.dtype, Dtype::Q4_K | Dtype::Q6_K);
            if equal || simple {
                assert!(found.data(ours) == reference.data(theirs), "{} {}", t.name(), ours.name);
                continue;
            }
            let x = decoded(&source, &ours.name);
            let error = |file: &Gguf| -> f64 {
                let y = decoded(file, &ours.name);
                x.iter().zip(&y).map(|(x, y)| f64::from(x - y).powi(2)).sum()
            };
            let sums = errors.entry(ours.dtype.name()).or_default();
            *sums = (sums.0 + error(&found), sums.1 + error(&reference));
        }
        for (dtype, (ours, theirs)) in errors {
            println!("{} {dtype}: squared error {ours:.4}, reference {theirs:.4}", t.name());
            assert!(ours <= theirs * 1.01, "{} {dtype}: {ours} against {theirs}", t.name());
        }
    }
}

fn measure(file: &Arc<Gguf>, ids: &[u32]) -> f64 {
    let settings =
        EngineOptions { ctx: Some(256), batch: 256, outputs: Some(256), ..EngineOptions::default() };
    let mut engine = models::engine(file, &settings, Level::detect(), 2);
    let options = PerplexityOptions { ctx: 256, chunks: Some(12), bos: None };
    perplexity(&mut engine, ids, &options, &mut |_, _| {}).expect("the model runs").ppl
}

/// Types from few bits to many, family by family; in each a model loses the less the more it keeps.
const FAMILIES: &[&[FileType]] = &[
    &[FileType::Q4_0, FileType::Q5_0, FileType::Q8_0, FileType::F16],
    &[FileType::Q4_1, FileType::Q5_1],
    &[FileType::Q2_K, FileType::Q3_K_S, FileType::Q4_K_S, FileType::Q5_K_S, FileType::Q6_K],
    &[FileType::Q3_K_M, FileType::Q4_K_M, FileType::Q5_K_M],
    &[FileType::IQ4_XS, FileType::IQ4_NL],
];

#[test]
fn perplexity_is_ordered_within_families() {
    let Some(shared) = fixture::shared() else { return };
    let source = Arc::new(tiny(&shared, "qwen3-tiny-F32"));
    let vocab = Vocab::from_metadata(source.metadata()).expect("a vocabulary");
    let text = std::fs::read_to_string(shared.join("fixtures/text/austen-64k.txt")).expect("a text");
    let ids = vocab.encode(&text[..24_000], Encode::default()).expect("ids");
    let whole = measure(&source, &ids);
    println!("F32: perplexity {whole:.4}");
    for family in FAMILIES {
        let mut last = f64::INFINITY;
        for &t in *family {
            let (_out, file) = quantize(&source, &options(t), &format!("ppl-{}", t.name()));
            let found = measure(&file, &ids);
            println!("{}: perplexity {found:.4}, {:+.3}%", t.name(), (found / whole - 1.0) * 100.0);
            // Types of nearly the same width may swap by less than text tells apart.
            assert!(found <= last * 1.005, "{}: {found} after {last}", t.name());
            last = found;
        }
        assert!(last < whole * 1.03, "the best of {:?} is at {last}, F32 at {whole}", family);
    }
}

/// A model of one pure type with one tensor singled out runs, and differs from the mix.
#[test]
fn a_file_with_rules_of_the_user_runs() {
    let Some(shared) = fixture::shared() else { return };
    let source = tiny(&shared, "qwen3-tiny-F32");
    let mut options = options(FileType::Q4_K_M);
    options.pure = true;
    options.tensor_types = vec![TensorType::parse(r"blk\.[01]\.ffn_down=q8_0").expect("a rule")];
    let (_out, file) = quantize(&source, &options, "rules");
    let of = |name: &str| file.tensor(name).expect("a tensor").dtype;
    assert_eq!(of("blk.1.ffn_down.weight"), Dtype::Q8_0);
    assert_eq!(of("blk.2.ffn_down.weight"), Dtype::Q4_K);
    assert_eq!(of("token_embd.weight"), Dtype::Q4_K);
    assert!(measure(&file, &(0..600).map(|i| i * 7 % 4000).collect::<Vec<u32>>()).is_finite());
}

fn collect(file: &Arc<Gguf>, ids: &[u32], batch: usize) -> Imatrix {
    let settings = EngineOptions { ctx: Some(128), batch, observe: true, ..EngineOptions::default() };
    let mut engine = models::engine(file, &settings, Level::detect(), 2);
    let options = ImatrixOptions { ctx: 128, chunks: Some(3), bos: None, output: false };
    Imatrix::collect(&mut engine, ids, &options, &mut |_| {}).expect("the model runs")
}

/// Sums do not depend on how a text was cut into steps, a token counts once for a matrix and once for each expert that
/// it chose, and no step of an engine that is observed differs from those of one that is not.
#[test]
fn importance_is_the_same_however_it_was_computed() {
    let Some(shared) = fixture::shared() else { return };
    for name in ["qwen3-tiny-F32", "qwen35moe-tiny-mtp-F16"] {
        let file = Arc::new(tiny(&shared, name));
        let ids: Vec<u32> = (0..400).map(|i| 300 + i * 37 % 3000).collect();
        let whole = collect(&file, &ids, 128);
        assert!(whole == collect(&file, &ids, 23), "{name}: the cut shows");
        assert_eq!(whole.counts("blk.0.ffn_gate.weight").unwrap_or(&[384]), [384]);
        assert!(
            whole.counts("output.weight").is_none() && whole.len() > 7,
            "{name}: {} entries",
            whole.len()
        );
        let m = file.metadata();
        let arch = m.require_str("general.architecture").expect("a name");
        if let Some(used) = m.u32(&format!("{arch}.expert_used_count")).expect("a number") {
            let counts = whole.counts("blk.0.ffn_down_exps.weight").expect("an entry");
            assert_eq!(counts.iter().sum::<u64>(), 384 * u64::from(used));
            assert!(counts.len() > used as usize);
        }
    }
}

/// What was collected makes a file of few bits better, through the file that both programs share.
#[test]
fn importance_is_of_use() {
    let Some(shared) = fixture::shared() else { return };
    let source = Arc::new(tiny(&shared, "qwen3-tiny-F32"));
    let vocab = Vocab::from_metadata(source.metadata()).expect("a vocabulary");
    let text = std::fs::read_to_string(shared.join("fixtures/text/austen-64k.txt")).expect("a text");
    let encode = |text: &str| vocab.encode(text, Encode::default()).expect("ids");
    let (learn, ids) = (encode(&text[30_000..50_000]), encode(&text[..16_000]));
    let matrix = Temporary::new("matrix");
    collect(&source, &learn, 128).write(&matrix.0, "austen").expect("a file");
    let mut with = options(FileType::Q2_K);
    with.importance = Some(Importance::open(&matrix.0).expect("a file of ours can be read"));
    let (_a, plain) = quantize(&source, &options(FileType::Q2_K), "plain");
    let (_b, better) = quantize(&source, &with, "better");
    let found = [measure(&plain, &ids), measure(&better, &ids)];
    println!("Q2_K: perplexity {:.4} without, {:.4} with a matrix", found[0], found[1]);
    assert!(found[1] < found[0], "{found:?}");
    assert_eq!(better.metadata().u32("quantize.imatrix.chunks_count").expect("a number"), Some(3));
    // Types that need one can be written, and run.
    for t in [FileType::IQ3_XXS, FileType::IQ2_XS] {
        let mut few = options(t);
        few.importance = with.importance.clone();
        let (_c, file) = quantize(&source, &few, t.name());
        let ppl = measure(&file, &ids);
        println!("{}: perplexity {ppl:.4}", t.name());
        assert!(ppl.is_finite() && ppl < 100.0 * found[0], "{}: {ppl}", t.name());
    }
}
