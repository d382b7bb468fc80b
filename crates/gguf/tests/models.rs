//! Whole models: written and read again, in one file and in shards, and cut short.
#![allow(missing_docs)]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use firth_gguf::{Gguf, KeyError, Strings, Value, Writer};
use firth_quant::Dtype;

/// A folder of its own for each test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("firth-gguf-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn write(&self, name: &str, model: &Writer<'_>) -> PathBuf {
        let path = self.0.join(name);
        model.write_file(&path).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// `n` bytes that differ from tensor to tensor.
fn bytes(seed: usize, n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 31 + seed * 7) as u8).collect()
}

fn words(n: usize) -> Strings {
    (0..n).map(|i| format!("tok{i}")).collect()
}

/// A model with a value of every type and tensors of several.
fn sample() -> Writer<'static> {
    let mut model = Writer::new();
    let meta = model.metadata_mut();
    meta.insert("general.architecture", "llama");
    meta.insert("u8", 255_u8);
    meta.insert("i8", -128_i8);
    meta.insert("u16", u16::MAX);
    meta.insert("i16", i16::MIN);
    meta.insert("u32", u32::MAX);
    meta.insert("i32", i32::MIN);
    meta.insert("f32", f32::MIN_POSITIVE);
    meta.insert("bool", true);
    meta.insert("u64", u64::MAX);
    meta.insert("i64", i64::MIN);
    meta.insert("f64", std::f64::consts::PI);
    meta.insert("u8s", vec![1_u8, 2, 3]);
    meta.insert("i8s", vec![-1_i8]);
    meta.insert("u16s", vec![1_u16, 2]);
    meta.insert("i16s", vec![-1_i16, 2]);
    meta.insert("u32s", vec![1_u32, 2]);
    meta.insert("i32s", vec![-1_i32, 2]);
    meta.insert("f32s", vec![0.5_f32, -2.0]);
    meta.insert("bools", vec![true, false, true]);
    meta.insert("u64s", vec![1_u64 << 63]);
    meta.insert("i64s", vec![i64::MIN]);
    meta.insert("f64s", vec![1e300_f64]);
    meta.insert("empty", Vec::<u32>::new());
    meta.insert("tokenizer.ggml.tokens", words(100));
    model.add_tensor("embd", &[64, 100], Dtype::Q8_0, bytes(1, 68 * 100)).unwrap();
    model.add_tensor("norm", &[3], Dtype::F32, bytes(2, 12)).unwrap();
    model.add_tensor("blk.0.x", &[32, 3, 2, 5], Dtype::F16, bytes(3, 1920)).unwrap();
    model.add_tensor("none", &[32, 0], Dtype::Q4_0, Vec::new()).unwrap();
    model.add_tensor("last", &[1], Dtype::F16, bytes(4, 2)).unwrap();
    model
}

fn encoded(model: &Writer<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    model.write_to(&mut out).unwrap();
    out
}

#[test]
fn what_is_written_is_read() {
    let mut model = sample();
    let folder = Folder::new("round");
    let gguf = Gguf::open(&folder.write("m.gguf", &model)).unwrap();
    let written: Vec<(&str, &Value)> = model.metadata_mut().iter().collect();
    assert_eq!(gguf.metadata().iter().collect::<Vec<_>>(), written);
    let names: Vec<&str> = gguf.tensors().iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["embd", "norm", "blk.0.x", "none", "last"]);
    let x = gguf.tensor("blk.0.x").unwrap();
    assert_eq!((x.dims(), x.n_elements(), x.dtype), ([32, 3, 2, 5], 960, Dtype::F16));
    assert_eq!(x.offset % 32, 0);
    assert_eq!(gguf.data(x), bytes(3, 1920));
    assert_eq!(gguf.data(gguf.tensor("embd").unwrap()), bytes(1, 6800));
    assert_eq!(gguf.data(gguf.tensor("last").unwrap()), bytes(4, 2));
    assert!(gguf.data(gguf.tensor("none").unwrap()).is_empty());
    assert!(gguf.tensor("absent").is_none());
    assert_eq!(gguf.n_shards(), 1);
    assert_eq!(gguf.file_bytes(), encoded(&model).len() as u64);
}

#[test]
fn released_bytes_come_back() {
    let mut model = Writer::new();
    model.add_tensor("w", &[1 << 18], Dtype::F32, bytes(1, 1 << 20)).unwrap();
    let folder = Folder::new("release");
    let gguf = Gguf::open(&folder.write("m.gguf", &model)).unwrap();
    let w = gguf.tensor("w").unwrap();
    gguf.read_ahead(w, 0..usize::MAX, &mut [0; 4096]);
    for range in [0..1 << 20, 5..70_000, 90..90, (1 << 20)..usize::MAX] {
        assert_eq!(gguf.data(w), bytes(1, 1 << 20));
        gguf.release(w, range);
    }
    assert_eq!(gguf.data(w), bytes(1, 1 << 20));
}

#[test]
fn hashes_tell_models_apart() {
    let hash = |model: &Writer<'_>| Gguf::from_bytes(encoded(model), "m").unwrap().content_hash();
    let first = hash(&sample());
    assert_eq!(first, hash(&sample()));
    let mut other = sample();
    other.metadata_mut().insert("u8", 254_u8);
    assert_ne!(first, hash(&other));
    let mut other = sample();
    other.add_tensor("more", &[1], Dtype::F32, bytes(5, 4)).unwrap();
    assert_ne!(first, hash(&other));
    let mut trained = Vec::new();
    for seed in [1, 2] {
        let mut model = Writer::new();
        model.add_tensor("w", &[64], Dtype::F32, bytes(seed, 256)).unwrap();
        trained.push(hash(&model));
    }
    assert_ne!(trained[0], trained[1]);
}

#[test]
fn tensors_that_no_reader_takes_are_not_written() {
    let mut model = Writer::new();
    let mut refused = |name: &str, shape: &[u64], dtype, n, part: &str| {
        let message = model.add_tensor(name, shape, dtype, bytes(0, n)).unwrap_err().to_string();
        assert!(message.contains(part), "`{part}` is not in: {message}");
    };
    refused("", &[1], Dtype::F32, 4, "1 to 63 bytes");
    refused(&"n".repeat(64), &[1], Dtype::F32, 4, "1 to 63 bytes");
    refused("a\0", &[1], Dtype::F32, 4, "NUL");
    refused("a", &[], Dtype::F32, 0, "1 to 4 axes");
    refused("a", &[1; 5], Dtype::F32, 4, "1 to 4 axes");
    refused("a", &[33], Dtype::Q4_0, 18, "whole blocks");
    refused("a", &[u64::MAX, 2], Dtype::F32, 8, "shape");
    refused("a", &[2], Dtype::F32, 4, "4 bytes, expected 8");
    model.add_tensor("a", &[1], Dtype::F32, bytes(0, 4)).unwrap();
    let twice = model.add_tensor("a", &[1], Dtype::F32, bytes(0, 4)).unwrap_err();
    assert_eq!(twice.to_string(), "tensor `a` is added twice");
}

#[test]
fn every_cut_at_4_kib_is_an_error() {
    let mut model = sample();
    model.metadata_mut().insert("many", words(5000));
    model.add_tensor("large", &[256, 200], Dtype::Q6_K, bytes(6, 210 * 200)).unwrap();
    let whole = encoded(&model);
    assert!(whole.len() > 25 * 4096);
    for n in (0..whole.len()).step_by(4096) {
        let error = Gguf::from_bytes(whole[..n].to_vec(), "cut.gguf").unwrap_err().to_string();
        assert!(error.starts_with("cut.gguf: "), "{error}");
        assert!(n == 0 || error.contains("byte"), "{error}");
    }
}

#[test]
fn large_vocabulary_is_read_at_once() {
    let mut model = Writer::new();
    let meta = model.metadata_mut();
    meta.insert("tokenizer.ggml.tokens", words(150_000));
    meta.insert("tokenizer.ggml.merges", (0..150_000).map(|i| format!("a{i} b{i}")).collect::<Strings>());
    meta.insert("tokenizer.ggml.token_type", vec![1_i32; 150_000]);
    let whole = encoded(&model);
    let start = Instant::now();
    let gguf = Gguf::from_bytes(whole, "vocab.gguf").unwrap();
    let took = start.elapsed();
    assert_eq!(gguf.metadata().require_strings("tokenizer.ggml.tokens").unwrap().len(), 150_000);
    // Far above what it takes: a bound that only a hang or quadratic growth meets, on any machine.
    assert!(took < Duration::from_secs(10), "took {took:?}");
}

#[test]
fn arrays_of_another_type_are_errors_that_name_the_key() {
    let mut model = Writer::new();
    let meta = model.metadata_mut();
    meta.insert("tokenizer.ggml.scores", vec![1_u8, 2]);
    meta.insert("tokenizer.ggml.tokens", vec![1_i32, 2]);
    meta.insert("tokenizer.ggml.token_type", vec![1.0_f32, 2.0]);
    meta.insert("tokenizer.ggml.merges", "a b");
    let gguf = Gguf::from_bytes(encoded(&model), "m").unwrap();
    let meta = gguf.metadata();
    let check = |error: KeyError, key: &str, found: &str| {
        let message = error.to_string();
        assert!(message.contains(key) && message.contains(found), "{message}");
    };
    check(meta.f32s("tokenizer.ggml.scores").unwrap_err(), "ggml.scores", "array of u8");
    check(meta.strings("tokenizer.ggml.tokens").unwrap_err(), "ggml.tokens", "array of i32");
    check(meta.i32s("tokenizer.ggml.token_type").unwrap_err(), "ggml.token_type", "array of f32");
    check(meta.strings("tokenizer.ggml.merges").unwrap_err(), "ggml.merges", "string");
}

#[test]
fn values_that_are_not_finite_are_found() {
    let mut model = Writer::new();
    let values: Vec<u8> = [1.0_f32, 2.0, f32::NAN, 4.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    model.add_tensor("good", &[2], Dtype::F32, values[..8].to_vec()).unwrap();
    model.add_tensor("bad", &[4], Dtype::F32, values).unwrap();
    let gguf = Gguf::from_bytes(encoded(&model), "m").unwrap();
    assert!(gguf.check_data(gguf.tensor("good").unwrap()).is_ok());
    let message = gguf.check_data(gguf.tensor("bad").unwrap()).unwrap_err().to_string();
    assert!(message.contains("`bad`") && message.contains("block 2"), "{message}");
}

/// Writes `n` shards with one tensor each; `change` may spoil the `i`-th.
fn shards(folder: &Folder, n: u16, change: impl Fn(u16, &mut Writer<'_>)) -> PathBuf {
    for i in 0..n {
        let mut shard = Writer::new();
        let meta = shard.metadata_mut();
        meta.insert("split.no", i);
        meta.insert("split.count", n);
        meta.insert("split.tensors.count", i32::from(n));
        meta.insert("own", u32::from(i));
        let name = format!("t{i}");
        shard.add_tensor(&name, &[8], Dtype::F32, bytes(i.into(), 32)).unwrap();
        change(i, &mut shard);
        folder.write(&shard_name(i, n), &shard);
    }
    folder.0.join(shard_name(0, n))
}

fn shard_name(i: u16, n: u16) -> String {
    format!("a-model-{:05}-of-{n:05}.gguf", i + 1)
}

#[track_caller]
fn refused(path: &Path, parts: &[&str]) {
    let message = Gguf::open(path).unwrap_err().to_string();
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
}

#[test]
fn shards_are_found_from_any_of_them() {
    let folder = Folder::new("shards");
    shards(&folder, 3, |_, _| {});
    for opened in 0..3 {
        let gguf = Gguf::open(&folder.0.join(shard_name(opened, 3))).unwrap();
        assert_eq!((gguf.n_shards(), gguf.metadata().u32("own")), (3, Ok(Some(0))));
        for i in 0..3 {
            let t = gguf.tensor(&format!("t{i}")).unwrap();
            assert_eq!(t.shard, i);
            assert_eq!(gguf.data(t), bytes(i, 32));
        }
        assert!(gguf.tensors().iter().all(|t| gguf.check_data(t).is_ok()));
        assert_eq!(gguf.path(), Some(folder.0.join(shard_name(0, 3)).as_path()));
    }
}

#[test]
fn shards_that_do_not_fit_are_refused() {
    let folder = Folder::new("bad-shards");
    let spoil = |key: &'static str, value: Value| {
        shards(&folder, 2, move |i, shard| {
            if i == 1 {
                shard.metadata_mut().insert(key, value.clone());
            }
        })
    };
    let second = shard_name(1, 2);
    refused(&spoil("split.no", Value::U16(0)), &[&second, "split.no", "0", "expected 1"]);
    refused(&spoil("split.no", Value::Str("1".into())), &[&second, "split.no", "string"]);
    refused(&spoil("split.count", Value::U16(3)), &[&second, "split.count", "3", "expected 2"]);
    let first = shards(&folder, 2, |_, shard| {
        shard.metadata_mut().insert("split.tensors.count", 9_i32);
    });
    refused(&first, &["split.tensors.count", "9", "expected 2"]);
    let first = shards(&folder, 2, |i, shard| {
        if i == 1 {
            shard.add_tensor("t0", &[8], Dtype::F32, bytes(0, 32)).unwrap();
        }
    });
    refused(&first, &[&second, "`t0`", "twice"]);
    let first = shards(&folder, 2, |_, _| {});
    fs::remove_file(folder.0.join(&second)).unwrap();
    refused(&first, &[&second, "shard 2 of 2 is missing"]);
    let renamed = folder.0.join("renamed.gguf");
    fs::rename(&first, &renamed).unwrap();
    refused(&renamed, &["renamed.gguf", "-00001-of-00002.gguf"]);
    let bytes = fs::read(&renamed).unwrap();
    assert!(Gguf::from_bytes(bytes, "m").unwrap_err().to_string().contains("split.count"));
}

#[test]
fn paths_that_are_no_files_are_refused() {
    let folder = Folder::new("paths");
    refused(&folder.0.join("absent.gguf"), &["absent.gguf"]);
    refused(&folder.0, &["no regular file"]);
    fs::write(folder.0.join("empty.gguf"), b"").unwrap();
    refused(&folder.0.join("empty.gguf"), &["empty.gguf"]);
}
