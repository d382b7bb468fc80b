//! The cut law: the bits of a token's logits do not depend on how its sequence was cut into steps, on who
//! shared them, on threads, or on the instruction set. `cargo xtask cut-law` runs the whole matrix; here stands
//! what takes seconds.

use std::time::Duration;

use firth::{Dtype, LogitsOptions};
use firth_conformance::cut_law::{self, CUTS, cells, check, few_cells};
use firth_conformance::mixture::{Did, Mixtures};
use firth_conformance::{fixture, models};
use firth_cpu::Level;
use firth_engine::EngineError;

/// Levels that are fast everywhere, and the plain ones, whose every lane is a call.
fn levels() -> (Vec<Level>, Vec<Level>) {
    Level::available().partition(|l| matches!(l, Level::Avx2 | Level::Avx512))
}

#[test]
fn tiny_trained_models_at_every_level() {
    let (fast, plain) = levels();
    let Some(file) = models::tiny("qwen3-tiny-Q8_0.gguf") else { return };
    let kvs = [Dtype::F16, Dtype::Q8_0];
    check("qwen3-tiny", &file, 70, &cells(&kvs, &fast, &[1, 2], &[0, 3], CUTS));
    check("qwen3-tiny", &file, 8, &cells(&kvs, &plain, &[1, 2], &[1], &[&[5, 1]]));
}

#[test]
fn tiny_architectures_at_every_level() {
    let (fast, plain) = levels();
    let Some(shared) = fixture::shared() else { return };
    for name in ["llama-dense", "llama-moe", "qwen3-dense", "gemma3-dense"] {
        let f = fixture::read(&shared.join("fixtures/arch-route"), name);
        check(name, &f.file, 100, &cells(&[Dtype::F32], &fast, &[1, 2], &[0, 3], CUTS));
        check(name, &f.file, 24, &cells(&[Dtype::F32], &plain, &[1, 2], &[1], &[&[7, 1, 1]]));
    }
}

/// All fixtures, those of the harder folder where a name stands in both. What attends both ways has mates and threads, and
/// refuses a cut inside its sequence. `FIRTH_FIXTURE=text` runs only those whose name contains the text.
#[test]
fn every_architecture() {
    let Some(shared) = fixture::shared() else { return };
    let filter = std::env::var("FIRTH_FIXTURE").unwrap_or_default();
    let [plain, route] = ["arch", "arch-route"].map(|f| shared.join("fixtures").join(f));
    let own = [Level::detect()];
    for name in fixture::names(&plain).iter().filter(|n| n.contains(&filter)) {
        let dir = if route.join(format!("{name}.json")).is_file() { &route } else { &plain };
        let f = fixture::read(dir, name);
        let both_ways = firth_models::load(&f.file).expect("a known architecture").info().both_ways;
        // Past a page; past a pool of 128 where there is one.
        let n = if name.starts_with("deepseek4") { 140 } else { 70 };
        if both_ways {
            check(name, &f.file, n, &cells(&[Dtype::F32], &own, &[1, 2], &[0, 3], &[&[]]));
            let (ids, o) = (cut_law::ids(n, cut_law::vocab(&f.file)), cut_law::options(Dtype::F32, n, 0));
            let mut engine = models::engine(&f.file, &o, own[0], 1);
            let options = LogitsOptions { cuts: vec![7, 1, 32], mates: 0 };
            let cut = firth::logits(&mut engine, &ids, &options, &mut |_, _| ());
            assert!(matches!(cut, Err(EngineError::Whole { held: 7, found: 1, .. })), "{name}: {cut:?}");
            continue;
        }
        check(name, &f.file, n, &few_cells());
    }
}

#[test]
fn smollm2() {
    let Some(file) = models::real(models::SMOLLM2) else { return };
    let own = [Level::detect()];
    check("SmolLM2", &file, 200, &cells(&[Dtype::F16], &own, &[1, 2], &[0, 3], CUTS));
    check("SmolLM2", &file, 130, &cells(&[Dtype::Q8_0], &own, &[1, 2], &[2], &[&[], &[17, 1, 1, 30]]));
}

#[test]
fn gemma3_past_its_window() {
    let Some(file) = models::real(models::GEMMA3) else { return };
    let own = [Level::detect()];
    check(
        "gemma-3-270m",
        &file,
        620,
        &cells(&[Dtype::F16], &own, &[1, 2], &[0, 3], &[&[], &[300, 1, 1, 30]]),
    );
}

/// Weights that stay in the file's mapping give the bits of those that are laid out, and take no memory of their own.
#[test]
fn weights_left_in_the_file() {
    let tiny = ["qwen35-tiny-mtp-Q4_K_M.gguf", "qwen35moe-tiny-mtp-F16.gguf", "qwen3-tiny-Q8_0.gguf"];
    for name in tiny {
        let Some(file) = models::tiny(name) else { return };
        let (ids, o) = (cut_law::ids(60, cut_law::vocab(&file)), cut_law::options(Dtype::F16, 60, 0));
        let mut laid_out = models::engine(&file, &o, Level::detect(), 2);
        let mut mapped = models::mapped_engine(&file, &o, 2);
        let few = mapped.report().weight_bytes * 20 < laid_out.report().weight_bytes;
        assert!(few, "{name}: {} bytes of weights", mapped.report().weight_bytes);
        for cuts in [&[][..], &[7, 1, 1, 30]] {
            let whole = models::row_hashes(&mut laid_out, &ids, cuts, 0);
            assert_eq!(models::row_hashes(&mut mapped, &ids, cuts, 0), whole, "{name}, cuts {cuts:?}");
        }
    }
}

/// Weights that move from the file to memory between steps give the bits of those that lie there.
#[test]
fn weights_on_their_way() {
    for name in ["qwen35-tiny-mtp-Q4_K_M.gguf", "qwen35moe-tiny-mtp-F16.gguf", "qwen3-tiny-Q8_0.gguf"] {
        let Some(file) = models::tiny(name) else { return };
        let (ids, o) = (cut_law::ids(60, cut_law::vocab(&file)), cut_law::options(Dtype::F16, 60, 0));
        let mut settled = models::engine(&file, &o, Level::detect(), 2);
        while settled.settle(Duration::MAX) {}
        let whole = models::row_hashes(&mut settled, &ids, &[], 0);
        for cuts in [&[][..], &[7, 1, 1, 30]] {
            let mut moving = models::engine(&file, &o, Level::detect(), 2);
            assert!(
                moving.settle(Duration::ZERO),
                "{name}: a load lays out what a step needs at once, nothing else"
            );
            assert_eq!(models::row_hashes(&mut moving, &ids, cuts, 0), whole, "{name}, cuts {cuts:?}");
        }
    }
}

/// Random mixtures: sequences start, grow by random cuts beside each other, fork, roll back, begin again from the
/// cache and go on; every row of logits is that of its tokens computed at once.
#[test]
fn random_mixtures() {
    let Some(file) = models::tiny("qwen3-tiny-Q8_0.gguf") else { return };
    let mixtures = Mixtures::new(&file, Dtype::F16, 90).expect("a model of the tests loads");
    let (fast, plain) = levels();
    let levels = if fast.is_empty() { plain } else { fast };
    let mut all = Did::default();
    for seed in 0..30 {
        let (level, threads) = (levels[seed as usize % levels.len()], 1 + seed as usize % 2);
        let did = mixtures.run(seed, level, threads).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        all.add(&did);
    }
    println!("{all:?}");
    for n in [all.rollbacks, all.forks, all.cached, all.restarts] {
        assert!(n >= 10, "too little happened: {all:?}");
    }
}
