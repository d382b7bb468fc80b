//! A sequence that was saved goes on in another engine with the same bits; a damaged file changes nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use firth::Dtype;
use firth_conformance::cut_law::{ids, vocab};
use firth_conformance::fixture;
use firth_conformance::models::{self, Random};
use firth_cpu::Level;
use firth_engine::{Engine, EngineOptions, Feed, Seq, SpecMode, SpecOptions, StateFileError, Want};
use firth_gguf::Gguf;

/// A folder that goes with its test.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("firth-state-files-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a temporary folder");
        Folder(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn names(&self) -> Vec<String> {
        let name = |e: std::io::Result<fs::DirEntry>| e.expect("an entry").file_name().into_string().unwrap();
        fs::read_dir(&self.0).expect("the folder").map(name).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A model of each kind, and how it drafts.
fn all_models() -> Vec<(&'static str, Arc<Gguf>, SpecMode)> {
    let Some(shared) = fixture::shared() else { return Vec::new() };
    let tiny =
        |name: &str| Arc::new(Gguf::open(&shared.join("fixtures/tiny").join(name)).expect("a tiny model"));
    let arch = |name: &str| fixture::read(&shared.join("fixtures/arch"), name).file;
    vec![
        ("qwen3-tiny", tiny("qwen3-tiny-Q8_0.gguf"), SpecMode::Custom),
        ("qwen35-tiny", tiny("qwen35-tiny-mtp-Q4_0.gguf"), SpecMode::Mtp),
        ("lfm2-tiny", tiny("lfm2-tiny-F32.gguf"), SpecMode::Custom),
        ("gemma3", arch("gemma3-dense"), SpecMode::Custom),
        ("mamba2", arch("mamba2-dense"), SpecMode::Custom),
    ]
}

fn options(mode: SpecMode) -> EngineOptions {
    let spec = SpecOptions { mode, max: 4, ..SpecOptions::default() };
    EngineOptions {
        ctx: Some(256),
        parallel: 3,
        batch: 128,
        spec,
        cache_bytes: 0,
        ..EngineOptions::default()
    }
}

fn engine(file: &Arc<Gguf>, o: &EngineOptions) -> Engine {
    models::engine(file, o, Level::detect(), 2)
}

fn step(engine: &mut Engine, seq: Seq, ids: &[u32]) -> Vec<u64> {
    let mut out = Vec::new();
    for ids in ids.chunks(60) {
        engine
            .step(&[Feed { seq, ids, embeds: None, want: Want::All, sampler: None }])
            .expect("a step of the test");
        out.extend((0..ids.len()).map(|o| models::hash(engine.logits(0, o))));
    }
    out
}

/// A step of one certain row and three guesses, of which `right` are kept: they stand in the log.
fn drafted(engine: &mut Engine, seq: Seq, ids: &[u32; 4], right: usize) {
    engine.begin();
    engine.reserve(seq, 1, 3);
    engine.plan().expect("room for a draft");
    engine
        .feed_planned(&Feed { seq, ids, embeds: None, want: Want::All, sampler: None }, 3)
        .expect("a draft of the test");
    engine.compute().expect("the device works");
    engine.keep(0, 1 + right);
}

/// A sequence of `n` tokens, the last two of which are guesses that were right.
fn sequence(engine: &mut Engine, ids: &[u32], n: usize) -> Seq {
    let seq = engine.open(0).expect("a sequence is free");
    step(engine, seq, &ids[..n - 3]);
    drafted(engine, seq, ids[n - 3..n + 1].try_into().expect("four ids"), 2);
    assert_eq!(engine.len(seq), n);
    seq
}

#[test]
fn a_restored_sequence_goes_on_with_the_same_bits() {
    let folder = Folder::new("restored");
    for (name, file, mode) in all_models() {
        let ids = ids(230, vocab(&file));
        let path = folder.file(name);
        for n in [4, 64, 201] {
            let mut a = engine(&file, &options(mode));
            let seq = sequence(&mut a, &ids, n);
            a.save(seq, &path).expect("the folder can be written");
            let expected = step(&mut a, seq, &ids[n..]);
            drop(a);
            // Another context, number of sequences, instruction set and number of threads.
            let other = EngineOptions { ctx: Some(240), parallel: 1, batch: 100, ..options(mode) };
            let mut b = models::engine(&file, &other, Level::Emulated4, 1);
            let seq = b.load_state(7, &path).expect("what was saved can be loaded");
            assert_eq!(b.memory().tokens(seq), &ids[..n]);
            b.memory().check();
            assert_eq!(step(&mut b, seq, &ids[n..]), expected, "{name}, {n} tokens");
            b.close(seq);
            b.memory().check();
        }
    }
    assert!(folder.names().iter().all(|n| !n.ends_with(".tmp")), "{:?}", folder.names());
}

#[test]
fn a_sequence_is_saved_as_it_was_rolled_back() {
    let folder = Folder::new("rolled-back");
    let tiny = all_models().into_iter().map(|(name, file, mode)| (name.to_owned(), file, mode));
    let others = fixture::with_states().into_iter().map(|(name, file)| (name, file, SpecMode::Custom));
    for (name, file, mode) in tiny.chain(others) {
        let ids = ids(180, vocab(&file));
        let path = folder.file(&name);
        let mut a = engine(&file, &options(mode));
        let seq = sequence(&mut a, &ids, 150);
        // One of the two guesses that were right is taken back; the other still stands in the log.
        a.rollback(seq, 149).expect("the log reaches back");
        a.save(seq, &path).expect("the folder can be written");
        let plain = a.open(0).expect("a sequence is free");
        step(&mut a, plain, &ids[..149]);
        let expected = step(&mut a, plain, &ids[149..]);
        let mut b = engine(&file, &options(mode));
        let seq = b.load_state(0, &path).expect("what was saved can be loaded");
        assert_eq!(step(&mut b, seq, &ids[149..]), expected, "{name}");
    }
}

/// What is done to a whole file.
fn damage(bytes: &[u8], r: &mut Random, i: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    match i % 4 {
        // Half of the flips in what comes before the pages, where each byte has a meaning.
        0 => {
            let at = r.below(bytes.len());
            bytes[at] ^= 1 << r.below(8);
        }
        1 => {
            let at = r.below(400);
            bytes[at] ^= 1 << r.below(8);
        }
        2 => bytes.truncate(r.below(bytes.len())),
        _ => bytes.extend((0..1 + r.below(9)).map(|_| r.draw() as u8)),
    }
    bytes
}

#[test]
fn a_damaged_file_is_refused_and_nothing_changes() {
    let folder = Folder::new("damaged");
    let path = folder.file("damaged");
    for (name, file, mode) in all_models() {
        let ids = ids(110, vocab(&file));
        let whole = folder.file(name);
        let mut e = engine(&file, &EngineOptions { cache_bytes: 1 << 20, ..options(mode) });
        let seq = sequence(&mut e, &ids, 70);
        e.save(seq, &whole).expect("the folder can be written");
        e.memory().snapshot(seq);
        let (bytes, before) = (fs::read(&whole).expect("what was saved"), e.memory().stats());
        let mut r = Random(bytes.len() as u64);
        for i in 0..200 {
            fs::write(&path, damage(&bytes, &mut r, i)).expect("the folder can be written");
            let found = e.load_state(0, &path).expect_err("a damaged file");
            assert!(!matches!(found, StateFileError::Io { .. }), "{name}, {i}: {found}");
            assert_eq!(e.memory().stats(), before, "{name}, {i}");
        }
        e.memory().check();
        let restored = e.load_state(0, &whole).expect("the whole file is as it was");
        let expected = step(&mut e, seq, &ids[70..]);
        let mut fresh = engine(&file, &options(mode));
        let seq = sequence(&mut fresh, &ids, 70);
        assert_eq!(step(&mut fresh, seq, &ids[70..]), expected, "{name}");
        assert_eq!(step(&mut e, restored, &ids[70..]), expected, "{name}");
    }
}

#[track_caller]
fn refused(e: &mut Engine, path: &Path, part: &str) {
    let found = e.load_state(0, path).expect_err("another model or other settings").to_string();
    assert!(found.contains(part), "{found}");
}

#[test]
fn other_models_and_settings_are_named() {
    let all = all_models();
    if all.is_empty() {
        return;
    }
    let folder = Folder::new("other");
    let path = folder.file("qwen35");
    let (qwen3, file) = (&all[0].1, &all[1].1);
    let own = options(SpecMode::Mtp);
    let mut e = engine(file, &own);
    let seq = sequence(&mut e, &ids(40, vocab(file)), 30);
    e.save(seq, &path).expect("the folder can be written");

    refused(&mut engine(qwen3, &options(SpecMode::Custom)), &path, "another model");
    refused(&mut engine(file, &EngineOptions { kv: Dtype::F32, ..own.clone() }), &path, "another --kv");
    let spec = SpecOptions { max: 5, ..own.spec };
    let e = &mut engine(file, &EngineOptions { spec, ..own.clone() });
    refused(e, &path, "another --spec-max: found drafts of at most 4, expected drafts of at most 5");
    let spec = SpecOptions { mode: SpecMode::None, ..own.spec };
    refused(&mut engine(file, &EngineOptions { spec, ..own.clone() }), &path, "another --spec");
    refused(
        &mut engine(file, &EngineOptions { ctx: Some(20), ..own.clone() }),
        &path,
        "exceeds the context of 20",
    );
    let mut overridden = Gguf::open(file.path().expect("a file")).expect("a tiny model");
    firth::override_kv(&mut overridden, "qwen35.rope.freq_base=float:10000").expect("a key");
    refused(&mut engine(&Arc::new(overridden), &own), &path, "another model");

    refused(&mut engine(file, &own), &folder.file("absent"), "absent");
    fs::write(folder.file("text"), "not a state file, but long enough for one to begin").expect("a file");
    refused(&mut engine(file, &own), &folder.file("text"), "does not begin as one");
    // A full engine goes on.
    let mut e = engine(file, &EngineOptions { parallel: 1, ..own });
    let seq = e.load_state(0, &path).expect("room for one");
    refused(&mut e, &path, "in use");
    step(&mut e, seq, &[5]);
}
