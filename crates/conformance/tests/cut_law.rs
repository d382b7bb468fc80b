//! The cut law: the bits of a token's logits do not depend on how its sequence was cut into steps, on who
//! shared them, on threads, or on the instruction set.

use std::sync::Arc;

use firth::{Dtype, EngineOptions};
use firth_conformance::fixture;
use firth_conformance::models::{self, Random};
use firth_cpu::Level;
use firth_gguf::Gguf;

/// Ids spread over a vocabulary.
fn ids(n: usize, vocab: usize) -> Vec<u32> {
    let mut r = Random(n as u64);
    (0..n).map(|_| r.below(vocab) as u32).collect()
}

fn options(kv: Dtype, n: usize, mates: usize) -> EngineOptions {
    EngineOptions {
        ctx: Some(n + 8),
        parallel: mates + 1,
        batch: n + mates,
        outputs: Some(n.min(256)),
        kv,
        cache_bytes: 0,
        ..EngineOptions::default()
    }
}

/// One base, and every variant against it.
#[track_caller]
fn check(
    name: &str,
    file: &Arc<Gguf>,
    n: usize,
    kv: Dtype,
    levels: &[Level],
    cuts: &[&[usize]],
    mates: &[usize],
) {
    let vocab = file.tensor("token_embd.weight").expect("an embedding").shape[1] as usize;
    let ids = ids(n, vocab);
    let base = {
        let mut engine = models::engine(file, &options(kv, n, 0), Level::detect(), 2);
        models::row_hashes(&mut engine, &ids, &[], 0)
    };
    for &level in levels {
        for threads in [1, 2] {
            for &mates in mates {
                let mut engine = models::engine(file, &options(kv, n, mates), level, threads);
                for cuts in cuts {
                    let found = models::row_hashes(&mut engine, &ids, cuts, mates);
                    let first = found.iter().zip(&base).position(|(a, b)| a != b);
                    let how =
                        format!("{level}, {threads} threads, cuts {cuts:?}, {mates} mates, kv {}", kv.name());
                    assert_eq!(first, None, "{name}: first row that differs; {how}");
                }
            }
        }
    }
}

const CUTS: &[&[usize]] = &[&[], &[1], &[17, 1, 1, 30]];

fn tiny(name: &str) -> Option<Arc<Gguf>> {
    let path = fixture::shared()?.join("fixtures/tiny").join(name);
    Some(Arc::new(Gguf::open(&path).expect("a tiny model")))
}

/// Levels that are fast everywhere, and the plain ones, whose every lane is a call.
fn levels() -> (Vec<Level>, Vec<Level>) {
    Level::available().partition(|l| matches!(l, Level::Avx2 | Level::Avx512))
}

#[test]
fn tiny_trained_models_at_every_level() {
    let (fast, plain) = levels();
    let Some(file) = tiny("qwen3-tiny-Q8_0.gguf") else { return };
    for kv in [Dtype::F16, Dtype::Q8_0] {
        check("qwen3-tiny", &file, 70, kv, &fast, CUTS, &[0, 3]);
        check("qwen3-tiny", &file, 8, kv, &plain, &[&[5, 1]], &[1]);
    }
}

#[test]
fn tiny_architectures_at_every_level() {
    let (fast, plain) = levels();
    let Some(shared) = fixture::shared() else { return };
    for name in ["llama-dense", "llama-moe", "qwen3-dense", "gemma3-dense"] {
        let f = fixture::read(&shared.join("fixtures/arch-route"), name);
        check(name, &f.file, 100, Dtype::F32, &fast, CUTS, &[0, 3]);
        check(name, &f.file, 24, Dtype::F32, &plain, &[&[7, 1, 1]], &[1]);
    }
}

#[test]
fn smollm2() {
    let Some(file) = models::real(models::SMOLLM2) else { return };
    check("SmolLM2", &file, 200, Dtype::F16, &[Level::detect()], CUTS, &[0, 3]);
    check("SmolLM2", &file, 130, Dtype::Q8_0, &[Level::detect()], &[&[], &[17, 1, 1, 30]], &[2]);
}

#[test]
fn gemma3_past_its_window() {
    let Some(file) = models::real(models::GEMMA3) else { return };
    check("gemma-3-270m", &file, 620, Dtype::F16, &[Level::detect()], &[&[], &[300, 1, 1, 30]], &[0, 3]);
}

/// Random mixtures: sequences start, grow by random cuts beside each other, fork, roll back and go on; every row
/// of logits is that of its tokens computed at once.
#[test]
fn random_mixtures() {
    use firth_engine::{Feed, Want};
    let Some(file) = tiny("qwen3-tiny-Q8_0.gguf") else { return };
    let texts: Vec<Vec<u32>> = (0..4).map(|i| ids(90 + i, 4096)).collect();
    let o = options(Dtype::F16, 200, 3);
    let mut alone = models::engine(&file, &o, Level::detect(), 2);
    let base: Vec<Vec<u64>> = texts.iter().map(|t| models::row_hashes(&mut alone, t, &[], 0)).collect();
    for seed in 0..30 {
        let mut r = Random(seed);
        let mut engine = models::engine(&file, &o, Level::detect(), 1 + seed as usize % 2);
        let mut seqs: Vec<_> = texts.iter().map(|_| engine.open(0).expect("room")).collect();
        loop {
            let mut feeds = Vec::new();
            let mut which = Vec::new();
            for (i, text) in texts.iter().enumerate() {
                let done = engine.len(seqs[i]);
                let n = r.below(20).min(text.len() - done);
                if n > 0 {
                    which.push((i, done, n));
                    let ids = &text[done..done + n];
                    feeds.push(Feed { seq: seqs[i], ids, embeds: None, want: Want::All, sampler: None });
                }
            }
            if texts.iter().zip(&seqs).all(|(t, s)| engine.len(*s) == t.len()) {
                break;
            }
            engine.step(&feeds).expect("a step");
            for (f, (i, done, n)) in which.into_iter().enumerate() {
                for row in 0..n {
                    assert_eq!(
                        models::hash(engine.logits(f, row)),
                        base[i][done + row],
                        "seed {seed}, text {i}"
                    );
                }
            }
            let i = r.below(seqs.len());
            let back = engine.len(seqs[i]).saturating_sub(r.below(5));
            engine.rollback(seqs[i], back).expect("full attention goes back anywhere");
            if r.below(4) == 0 && engine.len(seqs[i]) > 0 {
                let old = seqs[i];
                engine.close(old);
                seqs[i] = engine.open(0).expect("room");
            }
        }
    }
}
