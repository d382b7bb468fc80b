//! A file whose weights are no numbers is refused when it is loaded, by tensor and place.

use std::ops::ControlFlow;
use std::sync::Arc;

use firth::{Dtype, EngineOptions, Gguf};
use firth_conformance::models;
use firth_cpu::Level;
use firth_engine::Engine;
use firth_gguf::TensorInfo;

const ASSET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../firth/assets/qwen35-tiny-mtp-Q4_K_M.gguf");

#[test]
fn a_scale_that_is_no_number_ends_the_load() {
    let sound = std::fs::read(ASSET).expect("the bundled model");
    let load = |bytes: Vec<u8>| {
        let file = Arc::new(Gguf::from_bytes(bytes, "damaged").expect("its structure is sound"));
        let devices = vec![models::cpu(Level::detect(), 1)];
        let options = EngineOptions { ctx: Some(64), cache_bytes: 0, ..EngineOptions::default() };
        let on = &mut |_| ControlFlow::Continue(());
        Engine::load(&file, devices, &options, on).err().map(|e| e.to_string())
    };
    assert_eq!(load(sound.clone()), None);
    let file = Gguf::from_bytes(sound.clone(), "sound").expect("the bundled model");
    // A type, where its scale lies in a block, and bytes of a scale that is no number.
    for (dtype, scale, bad) in [
        (Dtype::Q4_K, 0, &[0x00, 0x7e][..]),
        (Dtype::Q6_K, 208, &[0x00, 0xfc]),
        (Dtype::F32, 0, &[0, 0, 0x80, 0x7f]),
    ] {
        let in_layer = |t: &&TensorInfo| t.dtype == dtype && t.name.starts_with("blk.0.");
        let t = file.tensors().iter().find(in_layer).expect("a tensor of the type");
        let (name, block) = (&t.name, 1);
        let at = t.offset as usize + block * dtype.block_bytes();
        let mut bytes = sound.clone();
        bytes[at + scale..at + scale + bad.len()].copy_from_slice(bad);
        let e = load(bytes).unwrap_or_else(|| panic!("{name} is taken"));
        let place = format!(
            "tensor `{name}` holds a value or scale that is not finite in block {block}, at byte {at}"
        );
        assert!(e.contains(&place), "{e}");
    }
}
