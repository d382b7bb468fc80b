//! The machine's ceilings, measured: bytes read a second, and 8-bit operations a second.

use std::time::Instant;

use firth_simd::{Level, Simd, dispatch};

use crate::memory::Region;
use crate::pool::Pool;

/// Bytes of the read test: beyond any cache.
const READ_BYTES: usize = 512 << 20;
/// Bytes that a thread reads at a time.
const CHUNK: usize = 1 << 20;

/// The read ceiling: memory beyond any cache, read by all threads together.
pub struct ReadGauge(Option<Region>);

impl ReadGauge {
    /// Takes the memory, and touches it from all threads.
    pub fn new(pool: &Pool) -> Self {
        let region = Region::new(READ_BYTES);
        if let Some(region) = &region {
            pool.run(READ_BYTES / CHUNK, &|i, _| {
                // SAFETY: chunks are disjoint parts of the region.
                let part = unsafe { std::slice::from_raw_parts_mut(region.ptr().add(i * CHUNK), CHUNK) };
                part.fill(1);
            });
        }
        ReadGauge(region)
    }

    /// Bytes a second, the better of two passes; 0 where the memory could not be had.
    pub fn measure(&self, pool: &Pool) -> f64 {
        self.0.as_ref().map_or(0.0, |region| read_rate(pool, &[region.as_slice()]))
    }
}

/// Bytes a second that all threads read of `parts` together, the better of two passes.
pub(crate) fn read_rate(pool: &Pool, parts: &[&[u8]]) -> f64 {
    let chunks: Vec<&[u8]> = parts.iter().flat_map(|p| p.chunks(CHUNK)).collect();
    let bytes: usize = chunks.iter().map(|c| c.len()).sum();
    let level = Level::detect();
    let pass = || {
        let start = Instant::now();
        pool.run(chunks.len(), &|i, _| {
            std::hint::black_box(dispatch(level, Read(chunks[i])));
        });
        bytes as f64 / start.elapsed().as_secs_f64()
    };
    pass().max(pass())
}

struct Read<'a>(&'a [u8]);

impl firth_simd::Kernel for Read<'_> {
    type Out = i32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> i32 {
        let mut acc = [s.splat_i(0); 4];
        for line in self.0.as_chunks::<256>().0 {
            for (a, part) in acc.iter_mut().zip(line.as_chunks::<64>().0) {
                *a = s.xor(*a, s.load_bytes(part));
            }
        }
        let all = s.xor(s.xor(acc[0], acc[1]), s.xor(acc[2], acc[3]));
        s.to_array_i(all)[0]
    }
}

/// 8-bit operations (two a multiply-add) per second that all threads do together, at the device's level; the best of six
/// short stretches.
pub fn int8_ceiling(pool: &Pool, level: Level) -> f64 {
    const ROUNDS: usize = 200_000;
    let mut best = 0.0f64;
    for _ in 0..6 {
        let start = Instant::now();
        pool.run(pool.threads(), &|i, _| {
            std::hint::black_box(dispatch(level, Dots { rounds: ROUNDS, seed: i as i32 }));
        });
        let ops = (pool.threads() * ROUNDS * 12 * 64 * 2) as f64;
        best = best.max(ops / start.elapsed().as_secs_f64());
    }
    best
}

struct Dots {
    rounds: usize,
    seed: i32,
}

impl firth_simd::Kernel for Dots {
    type Out = i32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> i32 {
        // Each accumulator has other data: equal ones would be merged into one, and then time its latency.
        let of = |i: i32| s.splat_i(std::hint::black_box(0x0102_0304 + i * 0x0101 + self.seed));
        let (w, a) = ([of(0), of(1)], [of(2), of(3), of(4), of(5), of(6), of(7)]);
        let mut acc = [s.splat_i(0); 12];
        for _ in 0..self.rounds {
            for r in 0..6 {
                acc[2 * r] = s.dot_u7(acc[2 * r], w[0], a[r]);
                acc[2 * r + 1] = s.dot_u7(acc[2 * r + 1], w[1], a[r]);
            }
        }
        let mut total = 0i32;
        for acc in acc {
            total = total.wrapping_add(s.sum_i(acc));
        }
        total
    }
}
