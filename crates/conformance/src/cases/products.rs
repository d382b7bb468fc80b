//! Products with a weight of every type.

use firth_graph::ActKind;
use firth_graph::op::*;
use firth_quant::Dtype;

use super::{ROWS, floats, rows, weight, wide};
use crate::harness::Case;

/// Types that a matrix may have: all but integers.
pub fn types() -> impl Iterator<Item = Dtype> {
    let integer = |d: &Dtype| matches!(d, Dtype::I8 | Dtype::I16 | Dtype::I32 | Dtype::I64);
    Dtype::ALL.iter().copied().filter(move |d| !integer(d))
}

/// All of them.
pub fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    for dtype in types() {
        let ks: Vec<usize> = match dtype.block_len() {
            1 => vec![1, 17, 48, 257],
            n @ ..=64 => vec![n, 3 * n, 256 + n],
            n => vec![n, 3 * n],
        };
        for &k in &ks {
            for n in [1, 31, 33, 257] {
                // The longest row with every number of outputs, the others with one of them.
                if k == *ks.last().expect("a length") || n == 33 {
                    out.push(product(dtype, k, n));
                }
            }
        }
    }
    out.push(two_forms());
    out
}

/// Several products of one value, which may run at once: two whose results meet element for element, and another.
pub fn together(dtype: Dtype) -> Case {
    let case = Case::new(format!("products of one value with {}", dtype.name()), rows(13), |g| {
        let x = floats(g, "x", wide(256));
        let mut product = |name: &str| {
            let w = weight(g, name, dtype, &[256, 70]);
            g.push(MatMul, &[w, x])
        };
        let [gate, up, other] = ["gate", "up", "other"].map(&mut product);
        let y = g.push(GatedAct { kind: ActKind::Silu }, &[gate, up]);
        g.output("y", y);
        g.output("other", other);
    });
    case.steps(&[rows(13)])
}

pub(super) fn product(dtype: Dtype, k: usize, n: usize) -> Case {
    let case = Case::new(format!("mat_mul {} {k}x{n}", dtype.name()), rows(13), |g| {
        let (w, x) = (weight(g, "w", dtype, &[k, n]), floats(g, "x", wide(k)));
        let y = g.push(MatMul, &[w, x]);
        g.output("y", y);
    });
    case.steps(&ROWS.map(rows))
}

/// A product of so many rows.
pub fn tall(dtype: Dtype, k: usize, n: usize, t: usize) -> Case {
    let name = format!("mat_mul {} {k}x{n}, {t} rows", dtype.name());
    let case = Case::new(name, rows(t), |g| {
        let (w, x) = (weight(g, "w", dtype, &[k, n]), floats(g, "x", wide(k)));
        let y = g.push(MatMul, &[w, x]);
        g.output("y", y);
    });
    case.steps(&[rows(t), rows(t - 1)])
}

/// One value that meets weights of three forms, and a chain of products whose buffers take turns.
fn two_forms() -> Case {
    let case = Case::new("products of one value with several types", rows(13), |g| {
        let x = floats(g, "x", wide(256));
        for (i, dtype) in [Dtype::F32, Dtype::Q8_0, Dtype::Q4_K, Dtype::Q4_1, Dtype::F16, Dtype::Q6_K]
            .into_iter()
            .enumerate()
        {
            let w = weight(g, &format!("a{i}"), dtype, &[256, 32]);
            let y = g.push(MatMul, &[w, x]);
            let w = weight(g, &format!("b{i}"), Dtype::Q8_0, &[32, 40]);
            let y = g.push(MatMul, &[w, y]);
            g.output(&format!("y{i}"), y);
        }
    });
    case.steps(&ROWS.map(rows))
}
