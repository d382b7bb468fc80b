//! Files made up for the purpose, without a model's meaning.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use firth_gguf::{Gguf, Value, Writer};
use firth_quant::Dtype;

use super::{FileType, QuantizeError, QuantizeOptions, QuantizePlan, TensorType};

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("firth-quantize-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn names(&self) -> Vec<String> {
        let name = |e: fs::DirEntry| e.file_name().into_string().unwrap();
        let mut names: Vec<String> = fs::read_dir(&self.0).unwrap().map(|e| name(e.unwrap())).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// f32 values of a wave.
fn wave(n: u64, phase: f32) -> Vec<u8> {
    (0..n).flat_map(|i| ((i as f32 * 0.7 + phase).sin() * (1.0 + phase)).to_le_bytes()).collect()
}

type Shapes<'a> = &'a [(&'a str, &'a [u64])];

/// A file of f32 tensors for an architecture that nobody has.
fn writer(keys: &[(&str, Value)], tensors: Shapes) -> Writer<'static> {
    let mut w = Writer::new();
    w.metadata_mut().insert("general.architecture", Value::Str("toy".into()));
    for (key, value) in keys {
        w.metadata_mut().insert(*key, value.clone());
    }
    for (i, (name, shape)) in tensors.iter().enumerate() {
        w.add_tensor(*name, shape, Dtype::F32, wave(shape.iter().product(), i as f32)).unwrap();
    }
    w
}

fn memory(w: &Writer) -> Gguf {
    let mut bytes = Vec::new();
    w.write_to(&mut bytes).unwrap();
    Gguf::from_bytes(bytes, "toy").unwrap()
}

const TOY: Shapes = &[
    ("token_embd.weight", &[256, 64]),
    ("output_norm.weight", &[256]),
    ("blk.0.attn_norm.weight", &[256]),
    ("blk.0.attn_q.weight", &[256, 256]),
    ("blk.0.attn_v.weight", &[256, 32]),
    ("blk.0.ffn_down.weight", &[512, 256]),
    ("blk.0.odd.weight", &[96, 4]),
    ("blk.0.odder.weight", &[33, 4]),
];

fn toy() -> Gguf {
    memory(&writer(&[("toy.block_count", Value::U32(1))], TOY))
}

fn types(file: &Gguf, options: &QuantizeOptions) -> Vec<(String, Dtype)> {
    let plan = QuantizePlan::new(file, options).unwrap();
    plan.tensors().iter().map(|p| (p.tensor.name.clone(), p.dtype)).collect()
}

fn type_of(file: &Gguf, options: &QuantizeOptions, name: &str) -> Dtype {
    types(file, options).into_iter().find(|t| t.0 == name).unwrap().1
}

fn write(file: &Gguf, options: &QuantizeOptions, out: &Path) -> Result<Vec<PathBuf>, QuantizeError> {
    QuantizePlan::new(file, options)?.write(out, &mut |_| ControlFlow::Continue(()))
}

/// A model of 32 layers with a column of the table of each role, and what llama.cpp's table says.
#[test]
fn mixes_follow_the_table() {
    let names: Vec<String> = (0..32)
        .flat_map(|i| ["attn_k", "attn_v", "attn_output", "ffn_down"].map(|r| format!("blk.{i}.{r}.weight")))
        .collect();
    let mut shapes: Vec<(&str, &[u64])> = names.iter().map(|n| (n.as_str(), &[256u64, 8][..])).collect();
    shapes.push(("token_embd.weight", &[256, 8]));
    shapes.push(("output.weight", &[256, 8]));
    let kv = |n: u32| {
        [
            ("toy.block_count", Value::U32(32)),
            ("toy.attention.head_count", Value::U32(8)),
            ("toy.attention.head_count_kv", Value::U32(n)),
        ]
    };
    let (many, few) = (memory(&writer(&kv(8), &shapes)), memory(&writer(&kv(2), &shapes)));
    let layers = |file: &Gguf, t: FileType, role: &str, dtype: Dtype| -> Vec<usize> {
        let options = QuantizeOptions::new(t);
        let is = |i: &usize| type_of(file, &options, &format!("blk.{i}.{role}.weight")) == dtype;
        (0..32).filter(is).collect()
    };
    let more = vec![0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31];
    assert_eq!(layers(&many, FileType::Q4_K_M, "ffn_down", Dtype::Q6_K), more);
    assert_eq!(layers(&many, FileType::Q5_K_M, "attn_v", Dtype::Q6_K), more);
    assert_eq!(layers(&many, FileType::Q4_K_S, "ffn_down", Dtype::Q5_K), [0, 1, 2, 3]);
    assert_eq!(layers(&many, FileType::Q3_K_M, "ffn_down", Dtype::Q5_K), [0, 1]);
    assert_eq!(layers(&many, FileType::Q3_K_M, "attn_v", Dtype::Q5_K), [0, 1]);
    assert_eq!(layers(&many, FileType::Q3_K_M, "attn_output", Dtype::Q4_K).len(), 32);
    assert_eq!(layers(&many, FileType::Q2_K, "attn_v", Dtype::Q3_K).len(), 32);
    assert_eq!(layers(&few, FileType::Q2_K, "attn_v", Dtype::Q4_K).len(), 32);
    assert_eq!(layers(&few, FileType::IQ4_XS, "attn_v", Dtype::Q5_K).len(), 32);
    assert_eq!(layers(&few, FileType::Q4_K_M, "attn_k", Dtype::Q4_K).len(), 32);
    let options = QuantizeOptions::new(FileType::Q4_K_M);
    assert_eq!(type_of(&many, &options, "output.weight"), Dtype::Q6_K);
    assert_eq!(type_of(&many, &options, "token_embd.weight"), Dtype::Q4_K);
}

#[test]
fn eight_experts_have_rules_of_their_own() {
    let keys = [("toy.block_count", Value::U32(1)), ("toy.expert_count", Value::U32(8))];
    let shapes: Shapes = &[
        ("blk.0.attn_k.weight", &[256, 8]),
        ("blk.0.attn_output.weight", &[256, 8]),
        ("blk.0.attn_v.weight", &[256, 8]),
        ("blk.0.ffn_up_exps.weight", &[256, 8, 8]),
    ];
    let expected = [Dtype::Q8_0, Dtype::Q5_K, Dtype::Q8_0, Dtype::Q4_K];
    let found = types(&memory(&writer(&keys, shapes)), &QuantizeOptions::new(FileType::Q4_K_M));
    assert_eq!(found.iter().map(|t| t.1).collect::<Vec<_>>(), expected);
    let found = types(&memory(&writer(&keys, shapes)), &QuantizeOptions::new(FileType::MXFP4_MOE));
    assert_eq!(found[3].1, Dtype::MXFP4);
    assert_eq!(found[0].1, Dtype::Q8_0);
}

#[test]
fn rows_that_no_blocks_fill_fall_back() {
    let (file, options) = (toy(), QuantizeOptions::new(FileType::Q4_K_M));
    assert_eq!(type_of(&file, &options, "blk.0.odd.weight"), Dtype::Q5_0);
    assert_eq!(type_of(&file, &options, "blk.0.odder.weight"), Dtype::F16);
    assert_eq!(type_of(&file, &options, "blk.0.attn_norm.weight"), Dtype::F32);
    assert_eq!(type_of(&file, &options, "token_embd.weight"), Dtype::Q6_K, "tied");
    let plan = QuantizePlan::new(&file, &options).unwrap();
    let fallbacks: Vec<_> = plan.tensors().iter().filter_map(|p| p.wanted).collect();
    assert_eq!(fallbacks, [Dtype::Q4_K, Dtype::Q4_K]);
}

#[test]
fn the_users_rules_come_first() {
    let (file, mut options) = (toy(), QuantizeOptions::new(FileType::Q4_K_M));
    options.tensor_types =
        [r"blk\.\d+\.attn_Q=q8_0", "attn=q5_k"].map(|t| TensorType::parse(t).unwrap()).into();
    assert_eq!(type_of(&file, &options, "blk.0.attn_q.weight"), Dtype::Q8_0);
    assert_eq!(type_of(&file, &options, "blk.0.attn_v.weight"), Dtype::Q5_K);
    assert_eq!(type_of(&file, &options, "blk.0.attn_norm.weight"), Dtype::F32, "never quantised");
    options.embedding_type = Some(Dtype::F16);
    assert_eq!(type_of(&file, &options, "token_embd.weight"), Dtype::F16);
    options.pure = true;
    assert_eq!(type_of(&file, &options, "blk.0.ffn_down.weight"), Dtype::Q4_K);
    for (bad, part) in [("x", "NAME=TYPE"), ("x=q9", "q9"), ("(=q8_0", "group")] {
        let message = TensorType::parse(bad).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn a_written_file_reads_back_and_threads_do_not_matter() {
    let (file, folder) = (toy(), Folder::new("threads"));
    let mut options = QuantizeOptions::new(FileType::Q4_K_M);
    let (one, three) = (folder.join("one.gguf"), folder.join("three.gguf"));
    write(&file, &options, &one).unwrap();
    options.threads = 3;
    write(&file, &options, &three).unwrap();
    assert_eq!(fs::read(&one).unwrap(), fs::read(&three).unwrap());
    assert_eq!(folder.names(), ["one.gguf", "three.gguf"]);
    let found = Gguf::open(&one).unwrap();
    assert_eq!(found.metadata().u32("general.file_type").unwrap(), Some(15));
    assert_eq!(found.metadata().u32("general.quantization_version").unwrap(), Some(2));
    assert_eq!(found.metadata().u32("toy.block_count").unwrap(), Some(1));
    let norm = found.tensor("blk.0.attn_norm.weight").unwrap();
    assert_eq!(found.data(norm), file.data(file.tensor("blk.0.attn_norm.weight").unwrap()));
    // A second pass would lose again.
    let message = QuantizePlan::new(&found, &QuantizeOptions::new(FileType::Q8_0)).err().unwrap().to_string();
    assert!(message.contains("--allow-requantize"), "{message}");
    // To the same mix there is nothing to do.
    let again = folder.join("again.gguf");
    write(&found, &options, &again).unwrap();
    assert_eq!(fs::read(&one).unwrap(), fs::read(&again).unwrap());
}

#[test]
fn shards_are_joined_or_kept() {
    let folder = Folder::new("shards");
    for (i, part) in [&TOY[..4], &TOY[4..]].into_iter().enumerate() {
        let mut w = writer(&[("toy.block_count", Value::U32(1))], part);
        for (key, value) in [("split.no", i), ("split.count", 2), ("split.tensors.count", TOY.len())] {
            w.metadata_mut().insert(key, Value::U32(value as u32));
        }
        w.write_file(&folder.join(&format!("in-{:05}-of-00002.gguf", i + 1))).unwrap();
    }
    let input = folder.join("in-00002-of-00002.gguf");
    let file = Gguf::open(&input).unwrap();
    let mut options = QuantizeOptions::new(FileType::Q8_0);
    write(&file, &options, &folder.join("joined.gguf")).unwrap();
    let joined = Gguf::open(&folder.join("joined.gguf")).unwrap();
    assert_eq!((joined.n_shards(), joined.tensors().len()), (1, TOY.len()));
    assert!(!joined.metadata().contains("split.count"));
    options.keep_split = true;
    let paths = write(&file, &options, &folder.join("kept.gguf")).unwrap();
    assert_eq!(paths[0], folder.join("kept-00001-of-00002.gguf"));
    let kept = Gguf::open(&paths[1]).unwrap();
    assert_eq!((kept.n_shards(), kept.tensors().len()), (2, TOY.len()));
    for t in kept.tensors() {
        assert_eq!(kept.data(t), joined.data(joined.tensor(&t.name).unwrap()), "{}", t.name);
        assert_eq!(t.shard, file.tensor(&t.name).unwrap().shard, "{}", t.name);
    }
    // The input's own names are refused, and the input is whole.
    let message = write(&file, &options, &folder.join("in.gguf")).unwrap_err().to_string();
    assert!(message.contains("is the input itself"), "{message}");
    assert!(Gguf::open(&input).is_ok());
}

#[test]
fn what_fails_leaves_nothing_behind() {
    let folder = Folder::new("fails");
    let input = folder.join("in.gguf");
    writer(&[("toy.block_count", Value::U32(1))], TOY).write_file(&input).unwrap();
    let (file, options) = (Gguf::open(&input).unwrap(), QuantizeOptions::new(FileType::Q8_0));
    let plan = QuantizePlan::new(&file, &options).unwrap();
    let out = folder.join("out.gguf");
    let stopped = plan.write(&out, &mut |_| ControlFlow::Break(()));
    assert!(matches!(stopped, Err(QuantizeError::Interrupted)));
    assert!(matches!(write(&file, &options, &input), Err(QuantizeError::SameFile { .. })));
    let nowhere = write(&file, &options, &folder.join("no/such/folder.gguf")).unwrap_err().to_string();
    assert!(nowhere.starts_with("cannot write"), "{nowhere}");
    let mut w = Writer::new();
    let mut values = wave(512, 0.0);
    values[4 * 300..4 * 301].copy_from_slice(&f32::NAN.to_le_bytes());
    w.add_tensor("a.weight", &[256, 2], Dtype::F32, values).unwrap();
    let message = write(&memory(&w), &options, &out).unwrap_err().to_string();
    assert!(message.contains("`a.weight`, row 1: value 44 is NaN"), "{message}");
    assert_eq!(folder.names(), ["in.gguf"]);
}

/// Stopped after `n` pieces of work.
fn stop_after(plan: &QuantizePlan, out: &Path, mut n: usize) -> usize {
    let whole = n;
    let stopped = plan.write(out, &mut |_| {
        n -= 1;
        if n == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(stopped, Err(QuantizeError::Interrupted)), "{stopped:?}");
    whole - n
}

#[test]
fn what_was_stopped_goes_on() {
    let folder = Folder::new("resume");
    let input = folder.join("in.gguf");
    writer(&[("toy.block_count", Value::U32(1))], TOY).write_file(&input).unwrap();
    let (file, options) = (Gguf::open(&input).unwrap(), QuantizeOptions::new(FileType::Q8_0));
    let (whole, out) = (folder.join("whole.gguf"), folder.join("out.gguf"));
    write(&file, &options, &whole).unwrap();
    let whole = fs::read(whole).unwrap();
    let plan = QuantizePlan::new(&file, &options).unwrap();
    let part = folder.join("out.gguf.part");
    // Further at each try, whole tensors kept.
    let noted = || -> usize {
        let note = fs::read_to_string(folder.join("out.gguf.part.note")).unwrap();
        note.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let mut kept = 0;
    for n in 2..TOY.len() {
        stop_after(&plan, &out, n);
        assert!(noted() > kept && !out.exists(), "{} after {kept}", noted());
        kept = noted();
    }
    // What was kept is taken as it is: a byte that was changed there shows in the end.
    let mut bytes = fs::read(&part).unwrap();
    let data = kept - 1;
    bytes[data] ^= 1;
    fs::write(&part, &bytes).unwrap();
    plan.write(&out, &mut |_| ControlFlow::Continue(())).unwrap();
    let found = fs::read(&out).unwrap();
    assert_eq!(found[data] ^ 1, whole[data]);
    assert_eq!(found.iter().zip(&whole).filter(|(a, b)| a != b).count(), 1);
    assert_eq!(folder.names(), ["in.gguf", "out.gguf", "whole.gguf"]);
    // A part of other types, cut off or without its note is begun again.
    fs::remove_file(&out).unwrap();
    let other = QuantizeOptions::new(FileType::Q4_0);
    for spoil in 0..3 {
        let first = QuantizePlan::new(&file, if spoil == 0 { &other } else { &options }).unwrap();
        stop_after(&first, &out, 4);
        match spoil {
            1 => fs::write(&part, b"GGUF").unwrap(),
            2 => fs::remove_file(folder.join("out.gguf.part.note")).unwrap(),
            _ => {}
        }
        plan.write(&out, &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(fs::read(&out).unwrap(), whole, "{spoil}");
        fs::remove_file(&out).unwrap();
    }
}

#[test]
fn few_bits_ask_for_an_importance_matrix() {
    let file = toy();
    let message =
        QuantizePlan::new(&file, &QuantizeOptions::new(FileType::Q2_K_S)).err().unwrap().to_string();
    assert!(message.contains("importance matrix"), "{message}");
    let message = QuantizePlan::new(&file, &QuantizeOptions::new(FileType::IQ1_S)).err().unwrap().to_string();
    assert!(message.contains("IQ1_S"), "{message}");
}
