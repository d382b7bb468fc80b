//! Test data from names: the same numbers on every machine.

use firth_quant::Dtype;

/// splitmix64, started from a name.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The stream of a name (FNV-1a).
    pub fn new(name: &str) -> Rng {
        Rng(name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n.max(1) as u64) as usize
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of `all`.
    pub fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// A value in -2 .. 2, steps of 2^-22.
    pub fn value(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 22) as f32 - 2.0
    }

    /// `n` values.
    pub fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.value()).collect()
    }

    /// Shuffles in place.
    pub fn shuffle<T>(&mut self, all: &mut [T]) {
        for i in (1..all.len()).rev() {
            all.swap(i, self.below(i + 1));
        }
    }
}

/// Blocks kept per type; weights are drawn from them.
const BLOCKS: usize = 61;

/// Bytes of `n` values of `dtype`: plain types encoded from values; block types from random blocks whose values
/// are finite and of ordinary size, so that every bit of a block occurs, not just what an encoder writes.
pub fn weight(dtype: Dtype, n: usize, rng: &mut Rng) -> Vec<u8> {
    let mut out = vec![0; dtype.row_bytes(n).expect("whole blocks")];
    if dtype == Dtype::I32 {
        out.chunks_exact_mut(4)
            .for_each(|c| c.copy_from_slice(&(rng.below(1000) as i32 - 500).to_le_bytes()));
        return out;
    }
    if dtype == Dtype::F64 {
        out.chunks_exact_mut(8)
            .for_each(|c| c.copy_from_slice(&(f64::from(rng.value()) * 1.1).to_le_bytes()));
        return out;
    }
    if dtype.block_len() == 1 {
        firth_quant::encode(dtype, &rng.values(n), &mut out).expect("a float type has an encoder");
        return out;
    }
    let blocks: Vec<Vec<u8>> = (0..BLOCKS.min(n / dtype.block_len())).map(|_| block(dtype, rng)).collect();
    for to in out.chunks_exact_mut(dtype.block_bytes()) {
        to.copy_from_slice(&blocks[rng.below(blocks.len())]);
    }
    out
}

/// Random bytes, drawn again until the block's largest value lies in 0.01 .. 4.
fn block(dtype: Dtype, rng: &mut Rng) -> Vec<u8> {
    let mut values = vec![0.0; dtype.block_len()];
    for _ in 0..100_000 {
        let bytes: Vec<u8> = (0..dtype.block_bytes()).map(|_| rng.bits() as u8).collect();
        firth_quant::decode(dtype, &bytes, &mut values);
        let max = values.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        if values.iter().all(|v| v.is_finite()) && (0.01..4.0).contains(&max) {
            return bytes;
        }
    }
    panic!("no block of {} of ordinary size", dtype.name())
}

/// The values of bytes of `dtype`.
pub fn decode(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; bytes.len() / dtype.block_bytes() * dtype.block_len()];
    firth_quant::decode(dtype, bytes, &mut out);
    out
}
