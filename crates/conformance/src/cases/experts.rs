//! The router, products by expert, and their weighted sum.

use firth_graph::op::*;
use firth_graph::{Gating, Shape, Sym};
use firth_quant::Dtype;

use super::{ROWS, WIDTHS, floats, rows, shape, weight, wide};
use crate::harness::{Case, Values};

/// All of them.
pub fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    for (n, used) in [(1, 1), (8, 2), (31, 4), (33, 33), (128, 8)] {
        for normalise in [false, true] {
            out.push(router(n, used, normalise, false));
            out.push(router(n, used, normalise, true));
        }
    }
    for gating in [Gating::Softmax, Gating::Sigmoid, Gating::SoftmaxOfChosen, Gating::RootSoftplus] {
        for (groups, groups_used, n, used) in
            [(1, 1, 9, 3), (4, 2, 32, 8), (8, 1, 64, 3), (5, 3, 35, 21), (3, 2, 3, 2)]
        {
            out.push(choice(gating, n, used, groups, groups_used));
        }
    }
    for gating in [Gating::Softmax, Gating::Sigmoid, Gating::RootSoftplus] {
        for (n, used, keys) in [(9, 3, 1), (33, 1, 4), (128, 8, 2), (1, 1, 1)] {
            out.push(named(gating, n, used, keys));
        }
    }
    for n in WIDTHS {
        out.push(moe_sum(n));
    }
    for dtype in [
        Dtype::F32,
        Dtype::F16,
        Dtype::BF16,
        Dtype::Q4_0,
        Dtype::Q8_0,
        Dtype::Q4_K,
        Dtype::Q6_K,
        Dtype::MXFP4,
    ] {
        for (n, used, shared) in [(1, 1, true), (33, 3, true), (33, 3, false), (64, 2, false), (31, 1, false)]
        {
            out.push(product(dtype, n, used, shared));
        }
    }
    for dtype in [Dtype::F32, Dtype::Q8_0] {
        out.push(per_head(dtype));
    }
    out.push(biases());
    out.push(layer());
    out
}

fn all_rows(case: Case) -> Case {
    case.steps(&ROWS.map(rows))
}

fn router(n: usize, used: usize, normalise: bool, ties: bool) -> Case {
    let name = format!("router {used} of {n}, normalise {normalise}, ties {ties}");
    let case = Case::new(name, rows(40), |g| {
        let x = floats(g, "x", wide(n));
        let [ids, weights] = g.push_n(Router { n_used: used, normalise, ..Default::default() }, &[x]);
        g.output("ids", ids);
        g.output("weights", weights);
    });
    let steps: Vec<_> = [40, 0, 1, 17].map(rows).to_vec();
    case.steps(&steps).fill(move |ask, rng| {
        ties.then(|| Values::F((0..ask.n()).map(|_| rng.below(3) as f32 - 1.0).collect()))
    })
}

/// Every way to score, with a bias that only chooses, and with groups.
fn choice(gating: Gating, n: usize, n_used: usize, n_groups: usize, n_groups_used: usize) -> Case {
    let name = format!("router by {gating:?}, {n_used} of {n}, {n_groups_used} of {n_groups} groups");
    let op = Router { gating, n_used, normalise: n_groups != 8, n_groups, n_groups_used, scale: 2.446 };
    all_rows(Case::new(name, rows(13), move |g| {
        let x = floats(g, "x", wide(n));
        let bias = floats(g, "bias", Shape::fixed(&[n]));
        for (i, inputs) in [&[x][..], &[x, bias]].into_iter().enumerate() {
            let [ids, weights] = g.push_n(op, inputs);
            g.output(&format!("ids {i}"), ids);
            g.output(&format!("weights {i}"), weights);
        }
    }))
}

/// Experts that the rows of a table name: `used` a row, `keys` rows a token, one of which may be of no token.
fn named(gating: Gating, n: usize, used: usize, keys: usize) -> Case {
    const KEYS: usize = 12;
    let name = format!("route_by_table by {gating:?}, {keys} rows of {used} of {n}");
    let op = RouteByTable { gating, normalise: keys != 2, scale: if used == 3 { 2.446 } else { 1.0 } };
    let case = Case::new(name, rows(40), move |g| {
        let x = floats(g, "x", wide(n));
        let listed = g.input("keys", Dtype::I32, wide(keys));
        let table = floats(g, "table", Shape::fixed(&[used, KEYS]));
        let [ids, weights] = g.push_n(op, &[x, listed, table]);
        g.output("ids", ids);
        g.output("weights", weights);
    });
    case.steps(&[40, 0, 1, 17].map(rows)).fill(move |ask, rng| match ask.input {
        "keys" => Some(Values::I((0..ask.n()).map(|_| rng.below(KEYS + 1) as i32 - 1).collect())),
        "table" => Some(Values::F((0..ask.n()).map(|_| rng.below(n) as f32).collect())),
        _ => None,
    })
}

fn moe_sum(n: usize) -> Case {
    all_rows(Case::new(format!("moe_sum of {n}"), rows(13), |g| {
        let x = floats(g, "x", shape(&[n.into(), 3.into(), Sym::T.into()]));
        let w = floats(g, "w", wide(3));
        let y = g.push(MoeSum, &[x, w]);
        g.output("y", y);
    }))
}

const EXPERTS: usize = 5;

fn product(dtype: Dtype, n: usize, used: usize, shared: bool) -> Case {
    let k = if dtype.block_len() == 1 { 48 } else { dtype.block_len().max(64) };
    let name = format!("mat_mul_experts {} {k}x{n}, {used} used, shared {shared}", dtype.name());
    let case = Case::new(name, rows(13), |g| {
        let w = weight(g, "w", dtype, &[k, n, EXPERTS]);
        let x = floats(g, "x", shape(&[k.into(), if shared { 1 } else { used }.into(), Sym::T.into()]));
        let ids = g.input("ids", Dtype::I32, wide(used));
        let y = g.push(MatMulExperts, &[w, x, ids]);
        g.output("y", y);
    });
    all_rows(case).fill(|ask, rng| {
        (ask.input == "ids").then(|| Values::I((0..ask.n()).map(|_| rng.below(EXPERTS) as i32).collect()))
    })
}

/// Without ids: a product per head.
fn per_head(dtype: Dtype) -> Case {
    all_rows(Case::new(format!("mat_mul_experts {} per head", dtype.name()), rows(13), move |g| {
        let w = weight(g, "w", dtype, &[64, 33, EXPERTS]);
        let x = floats(g, "x", shape(&[64.into(), EXPERTS.into(), Sym::T.into()]));
        let y = g.push(MatMulExperts, &[w, x]);
        g.output("y", y);
    }))
}

/// The rows of a table that each token's experts name: biases of experts.
fn biases() -> Case {
    let case = Case::new("row_select by expert", rows(13), |g| {
        let table = weight(g, "bias", Dtype::F32, &[33, EXPERTS]);
        let ids = g.input("ids", Dtype::I32, wide(3));
        let y = g.push(RowSelect, &[table, ids]);
        g.output("y", y);
    });
    all_rows(case).fill(|ask, rng| {
        (ask.input == "ids").then(|| Values::I((0..ask.n()).map(|_| rng.below(EXPERTS) as i32).collect()))
    })
}

/// A whole layer of experts: router, gate and up from a shared row, down from rows of their own.
fn layer() -> Case {
    all_rows(Case::new("a layer of experts", rows(13), |g| {
        let x = floats(g, "x", wide(64));
        let gate = weight(g, "router", Dtype::F32, &[64, EXPERTS]);
        let logits = g.push(MatMul, &[gate, x]);
        let [ids, weights] = g.push_n(Router { n_used: 2, normalise: true, ..Default::default() }, &[logits]);
        let (up, down) = (
            weight(g, "up", Dtype::Q8_0, &[64, 96, EXPERTS]),
            weight(g, "down", Dtype::Q4_0, &[96, 33, EXPERTS]),
        );
        let row = g.split_heads(x, 64);
        let h = g.push(MatMulExperts, &[up, row, ids]);
        let h = g.push(Act { kind: ActKind::Silu }, &[h]);
        let h = g.push(MatMulExperts, &[down, h, ids]);
        let y = g.push(MoeSum, &[h, weights]);
        let one = weight(g, "one", Dtype::F32, &[33]);
        assert_eq!(g.layout(one).shape, Shape::fixed(&[33]));
        let y = g.push(Mul, &[y, one]);
        g.output("y", y);
    }))
}
