//! A file whose weights are no numbers is refused when it is loaded, by tensor and place.

use std::ops::ControlFlow;
use std::sync::Arc;

use firth::{Dtype, EngineOptions, Gguf};
use firth_conformance::{gpu, models};
use firth_cpu::{CpuDevice, CpuOptions, Level};
use firth_engine::Engine;
use firth_gguf::TensorInfo;
use firth_graph::Device;

const ASSET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../firth/assets/qwen35-tiny-mtp-Q4_K_M.gguf");

/// Each looks by itself, where it reads the bytes.
fn devices() -> Vec<Arc<dyn Device>> {
    let map = CpuOptions { map: true, ..CpuOptions::new(2).expect("an instruction set") };
    let cpus: [Arc<dyn Device>; 2] = [models::cpu(Level::detect(), 2), Arc::new(CpuDevice::new(map))];
    cpus.into_iter().chain(gpu::device()).collect()
}

#[test]
fn a_scale_that_is_no_number_ends_the_load() {
    let sound = std::fs::read(ASSET).expect("the bundled model");
    let load = |bytes: Vec<u8>, device: Arc<dyn Device>| {
        let file = Arc::new(Gguf::from_bytes(bytes, "damaged").expect("its structure is sound"));
        let options = EngineOptions { ctx: Some(64), cache_bytes: 0, ..EngineOptions::default() };
        let on = &mut |_| ControlFlow::Continue(());
        Engine::load(&file, vec![device], &options, on).err().map(|e| e.to_string())
    };
    assert_eq!(load(sound.clone(), models::cpu(Level::detect(), 1)), None);
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
        let place = format!(
            "tensor `{name}` holds a value or scale that is not finite in block {block}, at byte {at}"
        );
        for device in devices() {
            let by = device.info().name.clone();
            let e = load(bytes.clone(), device).unwrap_or_else(|| panic!("{name} is taken by {by}"));
            assert!(e.contains(&place), "{by}: {e}");
        }
    }
}
