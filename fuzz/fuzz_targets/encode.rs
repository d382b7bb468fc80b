//! Any bits as values of each type that can be written, with and without importance: encoding ends in an error or
//! in blocks whose values are finite and no further from the input than its largest magnitude allows.
#![no_main]

use firth_quant::{Dtype, can_encode, decode, encode, encode_weighted};
use libfuzzer_sys::fuzz_target;

/// What underflows in a half scale is lost; 256 codes of the smallest subnormal cover it.
const UNDERFLOW: f32 = 256.0 * 5.960_464_5e-8;

fuzz_target!(|bytes: &[u8]| {
    let Some((first, bytes)) = bytes.split_first() else { return };
    let dtype = Dtype::ALL[usize::from(first >> 1) % Dtype::ALL.len()];
    if !can_encode(dtype) || !dtype.is_quantised() {
        return;
    }
    let len = dtype.block_len();
    let numbers: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    let (x, importance) = numbers.split_at(numbers.len() / 2);
    let x = &x[..x.len() / len * len];
    if x.is_empty() {
        return;
    }
    let mut blocks = vec![0; dtype.row_bytes(x.len()).expect("whole blocks")];
    let encoded = match first & 1 {
        0 => encode(dtype, x, &mut blocks),
        _ => {
            let finite = |w: &f32| if w.is_finite() { w.abs() } else { 0.0 };
            let importance: Vec<f32> = importance[..len].iter().map(finite).collect();
            encode_weighted(dtype, x, &importance, &mut blocks)
        }
    };
    if encoded.is_err() {
        return;
    }
    let mut y = vec![0.0; x.len()];
    decode(dtype, &blocks, &mut y);
    for (x, y) in x.chunks_exact(len).zip(y.chunks_exact(len)) {
        let amax = x.iter().fold(0.0f32, |a, v| a.max(v.abs()));
        for (x, y) in x.iter().zip(y) {
            assert!((x - y).abs() <= 2.0 * amax + UNDERFLOW, "{}: {x} became {y} under {amax}", dtype.name());
        }
    }
});
