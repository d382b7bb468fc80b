//! Any bytes as a model file: an error or a model, all of whose data can be read.
#![no_main]

use firth_gguf::{Gguf, Metadata, Value, Writer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(model) = Gguf::from_bytes(bytes.to_vec(), "fuzzed") else { return };
    let (mut writer, mut kept) = (Writer::new(), Metadata::new());
    for (key, value) in model.metadata().iter() {
        read_all_ways(&model, key);
        // NaN is not equal to itself, so what is compared below has none.
        if !matches!(value, Value::F32(_) | Value::F64(_) | Value::Array(_)) {
            writer.metadata_mut().insert(key, value.clone());
            kept.insert(key, value.clone());
        }
    }
    for tensor in model.tensors() {
        let data = model.data(tensor);
        assert_eq!(data.len() as u64, tensor.len, "{}", tensor.name);
        assert_eq!(model.tensor(&tensor.name), Some(tensor));
        let _ = model.check_data(tensor);
        writer.add_tensor(tensor.name.as_str(), &tensor.shape, tensor.dtype, data).expect("what was read is whole");
    }
    let mut copy = Vec::new();
    writer.write_to(&mut copy).expect("memory takes all");
    let copy = Gguf::from_bytes(copy, "written").expect("what was written can be read");
    for ((key, value), (found, other)) in kept.iter().zip(copy.metadata().iter()) {
        assert_eq!((key, key == "general.alignment" || value == other), (found, true));
    }
    for (tensor, other) in model.tensors().iter().zip(copy.tensors()) {
        assert_eq!((&tensor.name, &tensor.shape, tensor.dtype), (&other.name, &other.shape, other.dtype));
        assert_eq!(model.data(tensor), copy.data(other));
    }
});

/// Every getter takes every type of value, and answers.
fn read_all_ways(model: &Gguf, key: &str) {
    let m = model.metadata();
    let _ = (m.u32(key), m.u64(key), m.i32(key), m.f32(key), m.bool(key), m.str(key), m.strings(key));
    let _ = (m.f32s(key), m.i32s(key), m.u32s(key), m.bools(key));
    for n in [0, 1, 1 << 31] {
        let _ = (m.u32_per_layer(key, n), m.f32_per_layer(key, n));
    }
}
