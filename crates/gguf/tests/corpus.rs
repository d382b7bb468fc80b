//! The fuzzer's smallest inputs for every path it found: each is read again, without a panic and at once.
#![allow(missing_docs)]

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use firth_gguf::Gguf;

/// The inputs lie in this one file, each after its length as u32, so that the repository holds one file.
const CORPUS: &str = "tests/corpus/gguf.bin";

fn inputs() -> Vec<Vec<u8>> {
    let packed = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(CORPUS)).expect("the corpus is there");
    let mut rest = packed.as_slice();
    let mut inputs = Vec::new();
    while let Some((n, after)) = rest.split_first_chunk::<4>() {
        let (input, after) = after.split_at(u32::from_le_bytes(*n) as usize);
        inputs.push(input.to_vec());
        rest = after;
    }
    inputs
}

#[test]
fn every_input_is_a_model_or_an_error() {
    let inputs = inputs();
    assert!(inputs.len() > 100, "{} inputs", inputs.len());
    let mut n_models = 0;
    for (i, input) in inputs.into_iter().enumerate() {
        let start = Instant::now();
        match Gguf::from_bytes(input, "corpus") {
            Ok(model) => {
                n_models += 1;
                for tensor in model.tensors() {
                    assert_eq!(model.data(tensor).len() as u64, tensor.len, "input {i}: {}", tensor.name);
                }
            }
            Err(error) => assert!(error.to_string().starts_with("corpus: "), "input {i}: {error}"),
        }
        let took = start.elapsed();
        assert!(took < Duration::from_millis(100), "input {i} took {took:?}");
    }
    assert!(n_models > 20, "only {n_models} inputs are models");
}
