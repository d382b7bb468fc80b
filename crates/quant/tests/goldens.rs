//! Every type against values computed by another implementation: the Python package `gguf` 0.19 (and numpy from
//! the formats' definition for Q1_0, Q2_0 and the plain types), on bytes of a generator that covers every codebook.

use firth_quant::{Dtype, can_encode, decode, encode};

const BLOCKS: usize = 1024;

/// FNV-1a over the bits of the decoded values, every NaN as the quiet one.
const GOLDENS: &[(Dtype, u64)] = &[
    (Dtype::F32, 0x07ac078e76fda836),
    (Dtype::F16, 0xe1857a852d7dd325),
    (Dtype::BF16, 0x20d3b54777377325),
    (Dtype::F64, 0x6c915aaecbd8d6d1),
    (Dtype::I8, 0x894e651086147325),
    (Dtype::I16, 0x2f1f1f6bdb0c1925),
    (Dtype::I32, 0x75a134e64c68b613),
    (Dtype::I64, 0x5a1feff7c36929c0),
    (Dtype::Q4_0, 0x4236d263bf2d9b25),
    (Dtype::Q4_1, 0xbbcf989f94d8a034),
    (Dtype::Q5_0, 0xf56101dddd680f25),
    (Dtype::Q5_1, 0xb8b794aeffe34594),
    (Dtype::Q8_0, 0xc6f55b83aa8dcba5),
    (Dtype::Q2_K, 0xbc77f55e4c15bd7b),
    (Dtype::Q3_K, 0x4659971eedc102a5),
    (Dtype::Q4_K, 0x59aae4f059b9707a),
    (Dtype::Q5_K, 0xd67dc1ce938148d9),
    (Dtype::Q6_K, 0xdb4074f13ba4a1f7),
    (Dtype::IQ1_S, 0xcab17f3642884785),
    (Dtype::IQ1_M, 0x65e840c66b63f0a5),
    (Dtype::IQ2_XXS, 0x7ee51dfacfc04171),
    (Dtype::IQ2_XS, 0xe19a72484a854ef9),
    (Dtype::IQ2_S, 0xca1d11a5ee90160d),
    (Dtype::IQ3_XXS, 0xa581ca7987e62f25),
    (Dtype::IQ3_S, 0x262a4d98dd4bc2d5),
    (Dtype::IQ4_NL, 0x6c36baaee0af1025),
    (Dtype::IQ4_XS, 0x4d43d59b5fcfd1a5),
    (Dtype::TQ1_0, 0x7011cb52b9e6a325),
    (Dtype::TQ2_0, 0xde2065e141fe4325),
    (Dtype::MXFP4, 0x9ce4dcca78cc2325),
    (Dtype::NVFP4, 0xefddde3871422325),
    (Dtype::Q1_0, 0x95ee8907dc30e325),
    (Dtype::Q2_0, 0x175c1eadc1132325),
];

/// Bytes of a linear congruential generator of 64 bits, the highest of each state.
fn random_bytes(n: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    (0..n).map(|_| next()).collect()
}

fn hash(values: &[f32]) -> u64 {
    values.iter().fold(0xcbf2_9ce4_8422_2325, |h, v| {
        let bits = if v.is_nan() { 0x7fc0_0000 } else { v.to_bits() };
        (h ^ u64::from(bits)).wrapping_mul(0x100_0000_01b3)
    })
}

#[test]
fn every_type_decodes_to_the_reference() {
    let types: Vec<Dtype> = GOLDENS.iter().map(|g| g.0).collect();
    assert_eq!(types, Dtype::ALL, "a golden for each type");
    let mut wrong = Vec::new();
    for &(dtype, expected) in GOLDENS {
        let src = random_bytes(BLOCKS * dtype.block_bytes(), 1);
        let mut dst = vec![0.0; BLOCKS * dtype.block_len()];
        decode(dtype, &src, &mut dst);
        let found = hash(&dst);
        if found != expected {
            wrong.push(format!("{}: {found:#018x}, expected {expected:#018x}", dtype.name()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn all_ones_and_all_zeros_decode() {
    for &dtype in Dtype::ALL {
        for byte in [0, 0xff] {
            let src = vec![byte; dtype.block_bytes()];
            decode(dtype, &src, &mut vec![0.0; dtype.block_len()]);
        }
    }
}

/// FNV-1a over the encoded bytes, from the same package (numpy for F16), which for the block types writes what
/// `ggml_quantize_chunk` of libggml-base 0.13.1 writes.
const ENCODED: &[(Dtype, u64)] = &[
    (Dtype::F16, 0x1b9e_ae49_6a24_9eca),
    (Dtype::BF16, 0x0c72_720b_8fcf_dfd4),
    (Dtype::Q8_0, 0xedac_44e2_4fc7_740c),
    (Dtype::Q4_0, 0x9a40_d33c_7b9a_368d),
    (Dtype::Q4_1, 0x1ebf_1c4d_2584_cf69),
    (Dtype::Q5_0, 0x8e57_4d50_d739_45aa),
    (Dtype::Q5_1, 0xe942_b620_a3ef_38ca),
    (Dtype::MXFP4, 0xed69_803f_d688_55fc),
    (Dtype::TQ1_0, 0xbf2e_2cca_e2d6_1209),
    (Dtype::TQ2_0, 0x0cf6_fb99_9b17_ad6b),
    (Dtype::Q1_0, 0x2343_f7b8_c292_9698),
];

/// Rows of 32 small whole numbers under powers of two, so that ties and extremes of both signs occur.
fn random_values() -> Vec<f32> {
    let scales = random_bytes(4096, 9).into_iter().map(|s| 2f32.powi(i32::from(s % 24) - 18));
    let values = random_bytes(4096 * 32, 7);
    values.chunks(32).zip(scales).flat_map(|(x, s)| x.iter().map(move |x| f32::from(*x as i8) * s)).collect()
}

#[test]
fn encoders_write_the_reference_bytes() {
    let x = random_values();
    for &(dtype, expected) in ENCODED {
        let mut bytes = vec![0; dtype.row_bytes(x.len()).unwrap()];
        encode(dtype, &x, &mut bytes).unwrap();
        let found = bytes
            .iter()
            .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
        assert_eq!(found, expected, "{}: {found:#x}", dtype.name());
    }
}

#[test]
fn what_a_block_cannot_hold_is_an_error() {
    for &dtype in Dtype::ALL.iter().filter(|d| d.is_quantised() && can_encode(**d)) {
        let mut bytes = vec![0; dtype.block_bytes()];
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN] {
            let mut x = vec![0.0; dtype.block_len()];
            x[5] = bad;
            // A power of two reaches further than a half.
            let held = dtype == Dtype::MXFP4 && bad.is_finite();
            assert_eq!(encode(dtype, &x, &mut bytes).is_ok(), held, "{} of {bad}", dtype.name());
        }
        // A subnormal scale has an infinite inverse.
        let mut x = vec![0.0; dtype.block_len()];
        (x[0], x[1]) = (f32::from_bits(1), -f32::from_bits(9));
        encode(dtype, &x, &mut bytes).unwrap();
    }
}
