//! Every panel kernel against its twin, bit for bit, at every level and for every shape of tile.

use firth_quant::Dtype;
use firth_simd::Level;

use super::{OutRows, PANEL, PanelLayout, Product, matmul, matmul_mapped, twin};
use crate::act::{Act, ActLayout, Form, RowSource, fill_tile};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    }
}

/// Where the f16 numbers of a block lie.
fn halves(dtype: Dtype) -> &'static [usize] {
    match dtype.name() {
        "Q8_0" | "Q4_0" | "Q5_0" | "IQ4_NL" | "IQ4_XS" => &[0],
        "Q4_1" | "Q5_1" | "Q4_K" | "Q5_K" => &[0, 2],
        "Q6_K" => &[208],
        "Q3_K" => &[108],
        "Q2_K" => &[80, 82],
        "IQ1_S" | "IQ2_XXS" | "IQ2_XS" | "IQ2_S" | "IQ3_XXS" | "IQ3_S" => &[0],
        "TQ1_0" => &[52],
        "TQ2_0" => &[64],
        _ => &[],
    }
}

/// File rows of random bytes: extreme quants among them, scales finite and sometimes denormal.
fn weights(random: &mut Random, dtype: Dtype, k: usize, n: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; dtype.row_bytes(k).unwrap() * n];
    match dtype {
        Dtype::F32 => {
            for w in bytes.chunks_exact_mut(4) {
                w.copy_from_slice(&((random.next() as i32 as f32) * 2.0f32.powi(-31)).to_le_bytes());
            }
            return bytes;
        }
        Dtype::F16 | Dtype::BF16 => {
            for w in bytes.chunks_exact_mut(2) {
                w.copy_from_slice(&((random.next() as u16) & 0xb7ff).to_le_bytes());
            }
            return bytes;
        }
        _ => {}
    }
    for (i, block) in bytes.chunks_exact_mut(dtype.block_bytes()).enumerate() {
        for b in block.iter_mut() {
            *b = match i % 7 {
                0 => 0xff,
                1 => 0,
                2 => 0x80,
                3 => 0x7f,
                _ => random.next() as u8,
            };
        }
        if dtype.name() == "MXFP4" {
            block[0] = [0, 1, 2, 120, 127, 130][i % 6];
            if i % 7 == 3 {
                // The greatest value.
                block[1..].fill(0x77);
            }
        }
        for &at in halves(dtype) {
            let scale = match i % 5 {
                0 => random.next() as u16 & 0x83ff,
                _ => random.next() as u16 & 0x8fff | 0x2000,
            };
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }
    bytes
}

fn activations(random: &mut Random, k: usize, rows: usize) -> Vec<f32> {
    let mut x: Vec<f32> = (0..k * rows).map(|_| (random.next() as i32 as f32) * 2.0f32.powi(-28)).collect();
    for (i, block) in x.chunks_mut(32).enumerate() {
        match i % 9 {
            3 => block.fill(0.0),
            4 => block.fill(-3.5),
            5 => block.fill(1e-37),
            6 => block[7] = 1e5,
            _ => {}
        }
    }
    // All 127, or all -127, for blocks of 256 too: what sums in 16 bits have to hold.
    for (i, block) in x.chunks_mut(256).enumerate() {
        match i % 11 {
            2 => block.fill(3.5),
            7 => block.fill(-3.5),
            _ => {}
        }
    }
    x
}

fn filled(level: Level, form: Form, k: usize, rows: usize, x: &[f32]) -> (ActLayout, Vec<u8>) {
    let layout = ActLayout { form, k, rows };
    let mut data = vec![0xaa; ActLayout::bytes(form, k, rows)];
    for tile in 0..layout.tiles() {
        let src = RowSource { data: x, stride: k, index: None };
        assert_eq!(fill_tile(level, &layout, tile, src, &mut data[layout.tile_range(tile)]), 0);
    }
    (layout, data)
}

fn packed(layout: &PanelLayout, file: &[u8]) -> Vec<u8> {
    let row_bytes = layout.dtype.row_bytes(layout.k).unwrap();
    let mut panels = vec![0xaa; layout.bytes()];
    for (p, dst) in panels.chunks_exact_mut(layout.panel_bytes()).enumerate() {
        let rows = layout.panel_rows(p);
        layout.pack_panel(&file[p * PANEL * row_bytes..][..rows * row_bytes], dst);
    }
    panels
}

/// `n` outputs of `k` values: decoded rows, and products of 1..=13 rows at every level.
#[track_caller]
fn check(dtype: Dtype, k: usize, n: usize) {
    let mut random = Random(0x9e37_79b9 + (k * 31 + n) as u64);
    let layout = PanelLayout::new(dtype, k, n).unwrap();
    let row_bytes = dtype.row_bytes(k).unwrap();
    let file = weights(&mut random, dtype, k, n);
    let panels = packed(&layout, &file);
    let (mut found, mut expected) = (vec![0.0; k], vec![0.0; k]);
    for (j, row) in file.chunks_exact(row_bytes).enumerate() {
        layout.row(&panels, j, &mut found);
        firth_quant::decode(dtype, row, &mut expected);
        assert!(
            found.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits()),
            "{} row {j} decodes differently",
            dtype.name()
        );
    }
    let max_rows = 13;
    let x = activations(&mut random, k, max_rows);
    let expected: Vec<f32> = x
        .chunks_exact(k)
        .flat_map(|x| file.chunks_exact(row_bytes).map(|row| twin::dot(dtype, row, x)).collect::<Vec<_>>())
        .collect();
    assert!(expected.iter().any(|y| *y != 0.0));
    let mut scratch = vec![0.0; layout.mapped_scratch_floats()];
    for level in Level::available() {
        for rows in 0..=max_rows {
            let (a, data) = filled(level, layout.form(), k, rows, &x);
            let stride = n + 5;
            let mut out = vec![f32::NAN; stride * rows];
            let middle = layout.panels() / 2;
            let act = Act { layout: a, data: &data };
            for range in [middle..layout.panels(), 0..middle] {
                let product = Product { level, range, act, out: OutRows::new(&mut out, stride) };
                // The file's rows as they are give the same.
                match rows % 4 {
                    1 => matmul_mapped(&layout, &file, product, &mut scratch),
                    _ => matmul(&layout, &panels, product, &mut scratch),
                }
            }
            for (r, row) in out.chunks(stride).enumerate() {
                for (j, y) in row[..n].iter().enumerate() {
                    let want = expected[r * n + j];
                    assert!(
                        y.to_bits() == want.to_bits(),
                        "{} {level} k {k} n {n}, row {r} of {rows}, output {j}: {y} instead of {want}",
                        dtype.name()
                    );
                }
                assert!(row[n..].iter().all(|y| y.is_nan()), "wrote beyond output {n}");
            }
        }
    }
}

#[test]
fn every_type_equals_its_twin() {
    for &dtype in Dtype::ALL {
        if matches!(dtype.name(), "I8" | "I16" | "I32" | "I64" | "F64") {
            continue;
        }
        let block = dtype.block_len();
        for n in [1, 31, 33, 65] {
            check(dtype, if block == 1 { 40 } else { 3 * block }, n);
        }
    }
}

#[test]
fn wide_and_deep_shapes_equal_their_twins() {
    for dtype in [Dtype::F16, Dtype::Q8_0, Dtype::Q4_1, Dtype::Q4_K, Dtype::Q6_K] {
        check(dtype, 1024, 33);
        check(dtype, dtype.block_len().max(32), 257);
    }
}

#[test]
fn sizes_stay_near_the_file() {
    for &dtype in Dtype::ALL {
        let layout = PanelLayout::new(dtype, 1024, 64).unwrap();
        let file = dtype.row_bytes(1024).unwrap() * 64;
        assert!(layout.bytes() * 100 <= file * 103, "{}: {} of {file}", dtype.name(), layout.bytes());
    }
    assert_eq!(PanelLayout::new(Dtype::Q8_0, 33, 1), None);
}

#[test]
fn rows_that_are_not_finite_are_flagged() {
    for form in [Form::F32, Form::Q32, Form::Q256] {
        for level in Level::available() {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let k = 512;
                let mut x = vec![1.0; k * 5];
                x[2 * k + 300] = bad;
                x[4 * k] = bad;
                let layout = ActLayout { form, k, rows: 5 };
                let mut data = vec![0; ActLayout::bytes(form, k, 5)];
                let src = RowSource { data: &x, stride: k, index: None };
                assert_eq!(fill_tile(level, &layout, 0, src, &mut data), 0b10100);
                let order = [0, 1, 3, 1, 0];
                let src = RowSource { data: &x, stride: k, index: Some(&order) };
                assert_eq!(fill_tile(level, &layout, 0, src, &mut data), 0);
            }
        }
    }
}

#[test]
fn activation_bytes_are_equal_at_every_level() {
    let mut random = Random(5);
    let x = activations(&mut random, 1024, 8);
    for form in [Form::F32, Form::Q32, Form::Q256] {
        let (_, expected) = filled(Level::Scalar, form, 1024, 8, &x);
        for level in Level::available() {
            assert!(filled(level, form, 1024, 8, &x).1 == expected, "{form:?} {level}");
        }
    }
}
