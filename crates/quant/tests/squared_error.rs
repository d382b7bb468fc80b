//! Encoders that search, against the squared error of GGML's encoders (libggml-base 0.13.1, called as
//! `ggml_quantize_chunk`) on the same values: at most 1% more.

use firth_quant::{Dtype, decode, encode, encode_weighted};

/// Type, squared error without importance, and the importance-weighted one with it.
const REFERENCE: &[(Dtype, f64, f64)] = &[
    (Dtype::Q2_K, 1.83517, 6.88913),
    (Dtype::Q3_K, 0.472482, 2.16266),
    (Dtype::Q4_K, 0.105788, 0.515401),
    (Dtype::Q5_K, 0.0272051, 0.131317),
    (Dtype::Q6_K, 0.00651582, 0.0312873),
    (Dtype::IQ4_NL, 0.120911, 0.593667),
    (Dtype::IQ4_XS, 0.1228, 0.605695),
];

/// Types whose bytes are the reference's without importance or that need it, and their weighted error with it.
const REFERENCE_WEIGHTED: &[(Dtype, f64)] =
    &[(Dtype::Q4_0, 0.708172), (Dtype::Q4_1, 0.499256), (Dtype::Q5_0, 0.171758), (Dtype::Q5_1, 0.117427)];

const ROW: usize = 1024;

/// Bytes of a linear congruential generator of 64 bits, the highest of each state.
fn random_bytes(n: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    (0..n).map(|_| next()).collect()
}

/// 32 rows of bell-shaped values: sums of eight bytes.
fn values() -> Vec<f32> {
    let sum = |b: &[u8]| b.iter().map(|b| f32::from(*b as i8)).sum::<f32>() / 8192.0;
    random_bytes(8 * 32 * ROW, 11).chunks(8).map(sum).collect()
}

/// Squares of 1 to 16, over 16.
fn importance() -> Vec<f32> {
    random_bytes(ROW, 5).iter().map(|b| f32::from(b % 16 + 1).powi(2) / 16.0).collect()
}

fn squared_error(dtype: Dtype, bytes: &[u8], x: &[f32], weight: impl Fn(usize) -> f32) -> f64 {
    let mut y = vec![0.0; x.len()];
    decode(dtype, bytes, &mut y);
    x.iter().zip(&y).enumerate().map(|(i, (x, y))| f64::from(weight(i)) * f64::from(x - y).powi(2)).sum()
}

fn plain(dtype: Dtype, x: &[f32]) -> f64 {
    let mut bytes = vec![0; dtype.row_bytes(x.len()).unwrap()];
    encode(dtype, x, &mut bytes).unwrap();
    squared_error(dtype, &bytes, x, |_| 1.0)
}

fn weighted(dtype: Dtype, x: &[f32], importance: &[f32]) -> f64 {
    let mut bytes = vec![0; dtype.row_bytes(x.len()).unwrap()];
    encode_weighted(dtype, x, importance, &mut bytes).unwrap();
    squared_error(dtype, &bytes, x, |i| importance[i % ROW])
}

fn check(what: &str, dtype: Dtype, found: f64, reference: f64) {
    let ratio = found / reference;
    println!("{:7} {what}: {found:.6}, reference {reference:.6}, ratio {ratio:.4}", dtype.name());
    assert!(ratio <= 1.01, "{} {what}: {found} is {ratio} of the reference", dtype.name());
    // A tenth of the reference's error would mean that the sum is not what the reference summed.
    assert!(ratio > 0.1, "{} {what}: {found} against {reference}", dtype.name());
}

#[test]
fn plain_error_is_at_most_the_references() {
    let x = values();
    for &(dtype, reference, _) in REFERENCE {
        check("plain", dtype, plain(dtype, &x), reference);
    }
}

#[test]
fn weighted_error_is_at_most_the_references() {
    let (x, importance) = (values(), importance());
    let searched = REFERENCE.iter().map(|r| (r.0, r.2));
    for (dtype, reference) in searched.chain(REFERENCE_WEIGHTED.iter().copied()) {
        check("weighted", dtype, weighted(dtype, &x, &importance), reference);
    }
}

/// Importance that says nothing must not cost the values.
#[test]
fn importance_of_zero_is_no_importance() {
    let x = values();
    for &(dtype, reference, _) in REFERENCE {
        let mut bytes = vec![0; dtype.row_bytes(x.len()).unwrap()];
        encode_weighted(dtype, &x, &[0.0; ROW], &mut bytes).unwrap();
        check("zero importance", dtype, squared_error(dtype, &bytes, &x, |_| 1.0), reference);
    }
}
