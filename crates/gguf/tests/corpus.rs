//! The files that the fuzz target `gguf` found to take different ways through the reader, and those it started from.
//!
//! Each is read whole, cut at every byte, and with each byte turned. What it makes of the reader is an error or a
//! model all of whose data can be read; nothing else.
#![allow(missing_docs)]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use firth_gguf::Gguf;

/// What the seeds, written by hand, are read as: a number of keys and tensors, or parts of an error.
const SEEDS: &[(&str, Result<(usize, usize), &[&str]>)] = &[
    ("arrays", Ok((12, 0))),
    ("axes", Ok((0, 2))),
    ("length-2-63", Err(&["length-2-63", "`k`", "9223372036854775808", "exceeds file size"])),
    ("retired", Err(&["retired", "`x`", "Q4_0_4_4"])),
    ("scalars", Ok((12, 0))),
    ("shard", Err(&["shard", "3 shards", "-00001-of-00003.gguf"])),
    ("types", Ok((0, 33))),
    ("v2", Ok((1, 1))),
];

/// What the fuzzer found lies in one file, each input after its length as u32.
const FUZZED: &str = "fuzzed.bin";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")
}

/// All inputs and what to call them.
fn inputs() -> Vec<(String, Vec<u8>)> {
    let read = |name: &str| (name.to_owned(), fs::read(folder().join(name)).unwrap());
    let mut inputs: Vec<_> = SEEDS.iter().map(|(name, _)| read(name)).collect();
    let packed = read(FUZZED).1;
    let mut rest = packed.as_slice();
    while let Some((len, after)) = rest.split_first_chunk::<4>() {
        let (input, after) = after.split_at(u32::from_le_bytes(*len) as usize);
        inputs.push((format!("{FUZZED} at {}", packed.len() - rest.len()), input.to_vec()));
        rest = after;
    }
    inputs
}

/// Reads bytes as a model, and all its data.
fn read(bytes: Vec<u8>) -> Result<(usize, usize), String> {
    let model = Gguf::from_bytes(bytes, "m.gguf").map_err(|e| e.to_string())?;
    for tensor in model.tensors() {
        assert_eq!(model.data(tensor).len() as u64, tensor.len);
        let _ = model.check_data(tensor);
    }
    Ok((model.metadata().len(), model.tensors().len()))
}

#[test]
fn seeds_are_read_as_they_were_written() {
    for (name, expected) in SEEDS {
        let found = Gguf::open(&folder().join(name));
        match (found, expected) {
            (Ok(model), Ok(counts)) => {
                assert_eq!((model.metadata().len(), model.tensors().len()), *counts, "{name}");
            }
            (Err(error), Err(parts)) => {
                let error = error.to_string();
                assert!(parts.iter().all(|p| error.contains(p)), "{name}: {error}, expected {parts:?}");
            }
            (found, _) => panic!("{name}: {found:?}, expected {expected:?}"),
        }
    }
}

#[test]
fn each_input_is_read_at_once_and_the_same_twice() {
    for (name, bytes) in inputs() {
        let start = Instant::now();
        let first = read(bytes.clone());
        // Far above what it takes: a bound that only a hang or quadratic growth meets, on any machine.
        assert!(start.elapsed() < Duration::from_secs(5), "{name}: {:?}", start.elapsed());
        assert_eq!(first, read(bytes), "{name}");
    }
}

#[test]
fn every_cut_and_every_turned_byte_is_survived() {
    let (mut errors, mut models) = (0, 0);
    let mut count = |found: Result<(usize, usize), String>| match found {
        Ok(_) => models += 1,
        Err(message) => {
            assert!(message.starts_with("m.gguf: "), "{message}");
            errors += 1;
        }
    };
    for (_, bytes) in inputs() {
        for i in 0..bytes.len() {
            count(read(bytes[..i].to_vec()));
            for turn in [0x01, 0x80, 0xff] {
                let mut turned = bytes.clone();
                turned[i] ^= turn;
                count(read(turned));
            }
        }
    }
    assert!(errors > 1000 && models > 100, "{errors} errors and {models} models");
}
