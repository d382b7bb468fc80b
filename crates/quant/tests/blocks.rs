//! One block of each block type, readable: the first two and the last two values, so that a failure says where a
//! decoder went wrong. Expected values as in `goldens.rs`.

use firth_quant::{Dtype, decode};

/// Type, seed of the block's bytes, and its values 0, 1, n - 2 and n - 1.
const BLOCKS: &[(Dtype, u64, [f32; 4])] = &[
    (Dtype::Q4_0, 4, [0.9321289, 4.6606445, 5.5927734, 2.7963867]),
    (Dtype::Q4_1, 4, [55.693848, 61.28662, 50.101074, 53.82959]),
    (Dtype::Q5_0, 3, [-910.0, -284.375, 170.625, -511.875]),
    (Dtype::Q5_1, 4, [38.915527, 43.57617, 53.82959, 49.168945]),
    (Dtype::Q8_0, 4, [53.131348, -77.3667, -71.773926, 83.8916]),
    (Dtype::Q2_K, 6, [-26.637207, -26.637207, -64.79492, -66.28613]),
    (Dtype::Q3_K, 4, [0.003232956, 0.006465912, 0.012931824, 0.051727295]),
    (Dtype::Q4_K, 6, [-425.5958, -425.6221, -329.4719, -329.5665]),
    (Dtype::Q5_K, 6, [-425.70102, -425.6418, -329.5149, -329.6783]),
    (Dtype::Q6_K, 2, [13.201172, -11.000977, -148.87988, -47.854248]),
    (Dtype::IQ1_S, 3, [575.8594, 63.984375, -703.8281, -78.203125]),
    (Dtype::IQ1_M, 2, [-0.010025024, 0.007797241, -0.007797241, -0.07017517]),
    (Dtype::IQ2_XXS, 4, [-13.981934, 75.15289, 21.438965, 21.438965]),
    (Dtype::IQ2_XS, 4, [13.981934, -43.693542, 72.82257, 23.303223]),
    (Dtype::IQ2_S, 4, [-2.9129028, 0.9321289, -8.7387085, 15.030579]),
    (Dtype::IQ3_XXS, 4, [75.50244, 226.50732, -6.5249023, 8.38916]),
    (Dtype::IQ3_S, 4, [-243.28564, -351.4126, -230.23584, 194.81494]),
    (Dtype::IQ4_NL, 4, [9.321289, 60.58838, 77.3667, 32.62451]),
    (Dtype::IQ4_XS, 5, [-0.74655914, -0.74655914, 2.5291595, 0.30471802]),
    (Dtype::TQ1_0, 9, [-16.015625, 16.015625, 16.015625, 16.015625]),
    (Dtype::TQ2_0, 12, [-11.1328125, -5.5664062, 5.5664062, -11.1328125]),
    (Dtype::MXFP4, 36, [6.0, 6.0, 0.5, 3.0]),
    (Dtype::NVFP4, 3, [-0.375, 0.046875, 32.0, 32.0]),
    (Dtype::Q1_0, 3, [-56.875, -56.875, 56.875, 56.875]),
    (Dtype::Q2_0, 3, [-56.875, 113.75, -56.875, 113.75]),
];

/// Bytes of a linear congruential generator of 64 bits, the highest of each state.
fn block(dtype: Dtype, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    (0..dtype.block_bytes()).map(next).collect()
}

fn check(dtype: Dtype, seed: u64, expected: [f32; 4]) {
    let n = dtype.block_len();
    let mut x = vec![0.0; n];
    decode(dtype, &block(dtype, seed), &mut x);
    assert_eq!([x[0], x[1], x[n - 2], x[n - 1]], expected, "{}", dtype.name());
}

#[test]
fn the_ends_of_a_block_decode_to_the_reference() {
    let quantised: Vec<Dtype> = Dtype::ALL.iter().copied().filter(|d| d.is_quantised()).collect();
    assert_eq!(BLOCKS.iter().map(|b| b.0).collect::<Vec<_>>(), quantised, "a block of each type");
    for &(dtype, seed, expected) in BLOCKS {
        check(dtype, seed, expected);
    }
}

#[test]
fn a_row_is_its_blocks_in_order() {
    for &(dtype, seed, expected) in BLOCKS {
        let (n, one) = (dtype.block_len(), block(dtype, seed));
        let mut x = vec![0.0; 3 * n];
        decode(dtype, &[vec![0; one.len()], one.clone(), one].concat(), &mut x);
        assert_eq!([x[n], x[n + 1], x[3 * n - 2], x[3 * n - 1]], expected, "{}", dtype.name());
    }
}
