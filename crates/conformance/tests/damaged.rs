//! A file whose weights are no numbers is refused when it is loaded, by tensor and place.

use std::ops::ControlFlow;
use std::sync::Arc;

use firth::{EngineOptions, Gguf};
use firth_conformance::models;
use firth_cpu::Level;
use firth_engine::Engine;

const ASSET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../firth/assets/qwen3-tiny-Q8_0.gguf");

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
    for (name, block, bad) in [
        ("token_embd.weight", 7, &[0x00, 0x7e][..]),
        ("blk.1.ffn_down.weight", 100, &[0x00, 0xfc]),
        ("output_norm.weight", 3, &[0, 0, 0x80, 0x7f]),
    ] {
        let t = file.tensor(name).expect("a tensor of the model");
        let at = t.offset as usize + block * t.dtype.block_bytes();
        let mut bytes = sound.clone();
        bytes[at..at + bad.len()].copy_from_slice(bad);
        let e = load(bytes).unwrap_or_else(|| panic!("{name} is taken"));
        let place = format!(
            "tensor `{name}` holds a value or scale that is not finite in block {block}, at byte {at}"
        );
        assert!(e.contains(&place), "{e}");
    }
}
