//! Rates of the panel kernels on one thread, and on two with few rows, beside this machine's own ceilings.
//!
//! Every figure is the best of many stretches of under a millisecond, so that another process on the
//! same core does not show. Shares are of the int8 peak (products) or of the read ceiling (few rows).
//! `FIRTH_ISA` chooses the instruction set; an argument names one type, a second leaves out products of many rows.

use std::hint::black_box;
use std::time::Instant;

use firth_cpu::act::{Act, ActLayout, RowSource, fill_tile};
use firth_cpu::panel::{OutRows, PanelLayout, Product, matmul};
use firth_cpu::{Pool, Region, int8_ceiling};
use firth_quant::Dtype;
use firth_simd::{Kernel, Level, Simd, dispatch};

const ROWS: usize = 512;
/// Panels of one timed product.
const STEP: usize = 2;

/// Sums 64 MB blocks: the read ceiling.
struct Read<'a>(&'a [u8]);

impl Kernel for Read<'_> {
    type Out = i32;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> i32 {
        let mut acc = [s.splat_i(0); 4];
        for lines in self.0.as_chunks::<64>().0.as_chunks::<4>().0 {
            for i in 0..4 {
                acc[i] = s.xor(acc[i], s.load_bytes(&lines[i]));
            }
        }
        s.sum_i(s.xor(s.xor(acc[0], acc[1]), s.xor(acc[2], acc[3])))
    }
}

/// Seconds of the fastest of `n` runs.
fn best(n: usize, mut f: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..n {
        let start = Instant::now();
        f();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

fn peak(level: Level) -> f64 {
    let pool = Pool::new(1);
    (0..20).map(|_| int8_ceiling(&pool, level)).fold(0.0, f64::max)
}

/// Bytes that pass for file rows: small positive f16 numbers are in every type's scales.
fn file(dtype: Dtype, k: usize, n: usize) -> Vec<u8> {
    (0..dtype.row_bytes(k).unwrap() * n).map(|i| ((i * 31) % 53) as u8).collect()
}

/// The panels, in huge pages, where the device keeps them.
fn pack(layout: &PanelLayout, file: &[u8]) -> Region {
    let row_bytes = file.len() / layout.n;
    let region = Region::new(layout.bytes()).expect("memory for panels");
    // SAFETY: the region is this function's alone.
    let panels = unsafe { std::slice::from_raw_parts_mut(region.ptr(), region.len()) };
    for (p, dst) in panels.chunks_exact_mut(layout.panel_bytes()).enumerate() {
        layout.pack_panel(&file[p * 32 * row_bytes..][..layout.panel_rows(p) * row_bytes], dst);
    }
    region
}

fn activations(level: Level, layout: &PanelLayout, rows: usize) -> (ActLayout, Vec<u8>) {
    let x: Vec<f32> = (0..layout.k * rows).map(|i| ((i * 37) % 101) as f32 - 50.0).collect();
    let a = ActLayout { form: layout.form(), k: layout.k, rows };
    let mut data = vec![0; ActLayout::bytes(a.form, a.k, rows)];
    fill(level, &a, &x, &mut data);
    (a, data)
}

fn fill(level: Level, a: &ActLayout, x: &[f32], data: &mut [u8]) {
    for tile in 0..a.tiles() {
        let src = RowSource { data: x, stride: a.k, index: None };
        let _ = fill_tile(level, a, tile, src, &mut data[a.tile_range(tile)]);
    }
}

fn gemm(level: Level, peak: f64, dtype: Dtype, k: usize, n: usize) {
    let layout = PanelLayout::new(dtype, k, n).unwrap();
    let region = pack(&layout, &file(dtype, k, n));
    let panels = region.as_slice();
    let (a, data) = activations(level, &layout, ROWS);
    let (mut out, mut scratch) = (vec![0.0; n * ROWS], vec![0.0; layout.scratch_floats()]);
    let act = Act { layout: a, data: &data };
    let mut all = Vec::new();
    for first in (0..layout.panels() / STEP * STEP).step_by(STEP).cycle().take(400) {
        all.push(best(1, || {
            let out = OutRows::new(&mut out, n);
            matmul(&layout, panels, Product { level, range: first..first + STEP, act, out }, &mut scratch);
        }));
    }
    all.sort_by(f64::total_cmp);
    let (t, median) = (all[0], all[all.len() / 2]);
    let x = vec![1.5; k * ROWS];
    let mut again = data.clone();
    let fill = best(9, || fill(level, &a, black_box(&x), &mut again)) / ROWS as f64;
    let rate = (2 * k * STEP * 32 * ROWS) as f64 / t;
    println!(
        "{:5} {level} {ROWS} rows {k}x{n}: {:.3} TOP/s, {:.1}% of peak, median {:.1}% ({:.2} us to fill one row)",
        dtype.name(),
        rate / 1e12,
        100.0 * rate / peak,
        100.0 * rate / peak * t / median,
        fill * 1e6
    );
}

/// Bytes of a chunk that a thread claims.
const CHUNK: usize = 64 << 10;

/// Products of few rows with cold weights: `bytes` of panels at a time, shared out to a pool as the device does.
fn gemv(level: Level, ceiling: f64, pool: &Pool, dtype: Dtype, rows: usize, bytes: usize) {
    let k = 2048;
    let n = 200_000_000 / dtype.row_bytes(k).unwrap() / 32 * 32;
    let layout = PanelLayout::new(dtype, k, n).unwrap();
    let region = pack(&layout, &file(dtype, k, n));
    let panels = region.as_slice();
    let (a, data) = activations(level, &layout, rows);
    let out = Region::new(n * rows * 4).expect("memory for results");
    let act = Act { layout: a, data: &data };
    let (step, per) = (bytes / layout.panel_bytes(), (CHUNK / layout.panel_bytes()).max(1));
    let mut all = Vec::new();
    for first in (0..layout.panels() / step * step).step_by(step).cycle().take(100 * 8_000_000 / bytes) {
        all.push(best(1, || {
            pool.run(step.div_ceil(per), &|chunk, _| {
                let range = first + chunk * per..first + ((chunk + 1) * per).min(step);
                // SAFETY: chunks are disjoint panels, and the region is this function's alone.
                let out = unsafe { OutRows::from_raw(out.ptr().cast(), n * rows, n) };
                let mut scratch = vec![0.0; layout.scratch_floats()];
                matmul(&layout, panels, Product { level, range, act, out }, &mut scratch);
            });
        }));
    }
    all.sort_by(f64::total_cmp);
    let rate = |t: f64| (step * layout.panel_bytes()) as f64 / t / 1e9;
    println!(
        "{:5} {level} {rows} rows, cold, {} threads, {} MB at a time: {:.1} GB/s, {:.0}% of the ceiling, median {:.1}",
        dtype.name(),
        pool.threads(),
        bytes / 1_000_000,
        rate(all[0]),
        100.0 * rate(all[0]) * 1e9 / ceiling,
        rate(all[all.len() / 2]),
    );
}

/// Bytes a second that the pool reads of memory, the best of many stretches of 8 MB.
fn read(level: Level, pool: &Pool, memory: &Region) -> f64 {
    let mut read = f64::INFINITY;
    for part in memory.as_slice().chunks_exact(8_000_000).cycle().take(300) {
        read = read.min(best(1, || {
            pool.run(8, &|i, _| {
                black_box(dispatch(level, Read(black_box(&part[i * 1_000_000..][..1_000_000]))));
            });
        }));
    }
    8e6 / read
}

fn main() {
    let level = Level::from_env().unwrap_or_else(|e| panic!("{e}"));
    let memory = Region::new(200_000_000).expect("memory");
    // SAFETY: the region is this function's alone. Touched, it is no longer the one page of zeros.
    unsafe { memory.ptr().write_bytes(1, memory.len()) };
    let pools = [Pool::new(1), Pool::new(2)];
    let ceilings = pools.each_ref().map(|pool| read(level, pool, &memory));
    let peak = peak(level);
    println!(
        "{level}: int8 peak {:.3} TOP/s of one thread, read {:.1} GB/s, of two {:.1}",
        peak / 1e12,
        ceilings[0] / 1e9,
        ceilings[1] / 1e9
    );
    let only = std::env::args().nth(1);
    let types = [
        Dtype::Q8_0,
        Dtype::Q4_0,
        Dtype::Q4_1,
        Dtype::Q5_0,
        Dtype::Q4_K,
        Dtype::Q5_K,
        Dtype::Q6_K,
        Dtype::F16,
        Dtype::BF16,
        Dtype::F32,
    ];
    let few = std::env::args().nth(2).is_some();
    for (k, n) in [(1024, 3584), (3584, 1024), (576, 1536)] {
        if few {
            break;
        }
        for dtype in types {
            if k % dtype.block_len() == 0 && only.as_ref().is_none_or(|o| o == dtype.name()) {
                gemm(level, peak, dtype, k, n);
            }
        }
    }
    for dtype in types {
        if only.as_ref().is_some_and(|o| o != dtype.name()) {
            continue;
        }
        for (pool, ceiling) in pools.iter().zip(ceilings) {
            for rows in [1, 2, 4, 6, 8, 16] {
                gemv(level, ceiling, pool, dtype, rows, 8_000_000);
            }
            gemv(level, ceiling, pool, dtype, 1, 1_000_000);
        }
    }
}
