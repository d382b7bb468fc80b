//! Every layout that is legal, through ops that read it as it is and ops that the planner serves with a copy.

use firth_graph::op::*;
use firth_graph::{Graph, Node, Op, Shape, Sym};
use firth_quant::Dtype;

use super::{floats, rows, shape, weight, wide};
use crate::harness::{Case, Values};

/// A way to look at a value.
struct View {
    name: &'static str,
    /// Shape of the source.
    source: fn() -> Shape,
    /// The view.
    make: fn(&mut Graph, Node) -> Node,
    /// Whether its rows are contiguous, which most kernels ask for.
    rows: bool,
    /// Whether its rows follow each other at one stride, which products ask for.
    even: bool,
}

fn heads(n: usize, heads: usize) -> Shape {
    shape(&[n.into(), heads.into(), Sym::T.into()])
}

const VIEWS: &[View] = &[
    View { name: "dense", source: || wide(64), make: |_, x| x, rows: true, even: true },
    View { name: "slice", source: || wide(96), make: |g, x| g.slice(x, 37, 32), rows: true, even: true },
    View {
        name: "slice of a slice",
        source: || wide(99),
        make: |g, x| {
            let x = g.slice(x, 3, 90);
            g.slice(x, 26, 64)
        },
        rows: true,
        even: true,
    },
    View { name: "heads", source: || wide(96), make: |g, x| g.split_heads(x, 32), rows: true, even: true },
    View {
        name: "merged heads",
        source: || heads(32, 3),
        make: |g, x| g.merge_heads(x),
        rows: true,
        even: true,
    },
    View {
        name: "half of each head",
        source: || wide(192),
        make: |g, x| {
            let x = g.split_heads(x, 64);
            g.slice(x, 32, 32)
        },
        rows: true,
        even: true,
    },
    View {
        name: "middle heads",
        source: || heads(32, 5),
        make: |g, x| {
            let s = g.layout(x).strides;
            g.view(x, heads(32, 3), s, 32 * 4)
        },
        rows: true,
        even: false,
    },
    View {
        name: "heads in other order",
        source: || Shape::fixed(&[32, 3, 5]),
        make: |g, x| g.view(x, Shape::fixed(&[32, 5, 3]), [4, 384, 128, 1920], 0),
        rows: true,
        even: false,
    },
    View {
        name: "transposed",
        source: || Shape::fixed(&[4, 32]),
        make: |g, x| g.view(x, Shape::fixed(&[32, 4]), [16, 4, 512, 512], 0),
        rows: false,
        even: false,
    },
    View {
        name: "every second",
        source: || wide(64),
        make: |g, x| g.view(x, wide(32), [8, 256, 0, 0], 4),
        rows: false,
        even: false,
    },
    View {
        name: "windows",
        source: || Shape::fixed(&[10, 5]),
        make: |g, x| g.view(x, Shape::fixed(&[3, 8, 5]), [4, 4, 40, 200], 0),
        rows: true,
        even: false,
    },
    View {
        name: "windows of a row",
        source: || Shape::fixed(&[70]),
        make: |g, x| g.view(x, Shape::fixed(&[32, 7]), [4, 4, 28, 28], 4),
        rows: true,
        even: true,
    },
    View {
        name: "a row again and again",
        source: || Shape::fixed(&[32]),
        make: |g, x| g.view(x, Shape::fixed(&[32, 9]), [4, 0, 0, 0], 0),
        rows: true,
        even: true,
    },
    View {
        name: "single elements",
        source: || wide(7),
        make: |g, x| g.view(x, wide(1), [8, 28, 0, 0], 16),
        rows: true,
        even: true,
    },
    View {
        name: "a shared row a token",
        source: || wide(96),
        make: |g, x| {
            let x = g.slice(x, 32, 64);
            g.view(x, heads(64, 1), [4, 256, 384, 0], 0)
        },
        rows: true,
        even: false,
    },
];

/// All of them.
pub fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    for v in VIEWS {
        let others: [(Op, bool); 6] = [
            (Copy.into(), true),
            (Scale { by: 1.5 }.into(), v.rows),
            (RmsNorm { eps: 1e-6 }.into(), v.rows),
            (LayerNorm { eps: 1e-2 }.into(), v.rows),
            (Act { kind: ActKind::Silu }.into(), v.rows),
            (Softcap { cap: 2.0 }.into(), v.rows),
        ];
        out.extend(others.map(|(op, ok)| one(v, op, usize::from(!ok))));
        out.push(both(v, Add.into()));
        out.push(both(v, GatedAct { kind: ActKind::GeluTanh }.into()));
        out.push(of_result(v));
        out.extend(
            [Dtype::F32, Dtype::F16, Dtype::Q8_0, Dtype::Q4_0].into_iter().filter_map(|d| product(v, d)),
        );
    }
    out.extend(other_types());
    out.push(rope_of_slices());
    out
}

fn steps(v: &View, case: Case) -> Case {
    match (v.source)().symbol() {
        Some(_) => case.steps(&[rows(13), rows(1), rows(0), rows(8)]),
        None => case,
    }
}

fn one(v: &View, op: Op, copies: usize) -> Case {
    let case = Case::new(format!("{} of view {}", op.name(), v.name), rows(13), |g| {
        let x = floats(g, "x", (v.source)());
        let x = (v.make)(g, x);
        let y = g.push(op, &[x]);
        g.output("y", y);
    });
    steps(v, case).copies(copies)
}

/// The view as both operands.
fn both(v: &View, op: Op) -> Case {
    let case = Case::new(format!("{} of two views {}", op.name(), v.name), rows(13), |g| {
        let (a, b) = (floats(g, "a", (v.source)()), floats(g, "b", (v.source)()));
        let (a, b) = ((v.make)(g, a), (v.make)(g, b));
        let y = g.push(op, &[a, b]);
        g.output("y", y);
    });
    steps(v, case).copies(if v.rows { 0 } else { 2 })
}

/// The view of a value in the arena, with other values made around it; and named as an output.
fn of_result(v: &View) -> Case {
    let case = Case::new(format!("result through view {}", v.name), rows(13), |g| {
        let x = floats(g, "x", (v.source)());
        let a = g.push(Scale { by: 0.5 }, &[x]);
        let b = g.push(Act { kind: ActKind::Tanh }, &[a]);
        let va = (v.make)(g, a);
        let c = g.push(Scale { by: 3.0 }, &[b]);
        let vc = (v.make)(g, c);
        let y = g.push(Mul, &[va, vc]);
        g.output("y", y);
        g.output("view", vc);
    });
    steps(v, case).copies(if v.rows { 0 } else { 2 })
}

fn product(v: &View, dtype: Dtype) -> Option<Case> {
    let width = {
        let mut g = Graph::new(rows(13));
        let x = floats(&mut g, "x", (v.source)());
        let x = (v.make)(&mut g, x);
        g.layout(x).shape.constant(0)?
    };
    if !width.is_multiple_of(dtype.block_len()) {
        return None;
    }
    let case = Case::new(format!("mat_mul {} of view {}", dtype.name(), v.name), rows(13), |g| {
        let x = floats(g, "x", (v.source)());
        let x = (v.make)(g, x);
        let w = weight(g, "w", dtype, &[width, 35]);
        let y = g.push(MatMul, &[w, x]);
        g.output("y", y);
    });
    Some(steps(v, case).copies(usize::from(!v.even)))
}

/// Copies of views of integers, halves and blocks.
fn other_types() -> Vec<Case> {
    let ints = Case::new("copy of integers", rows(13), |g| {
        let x = g.input("x", Dtype::I32, wide(9));
        let x = g.view(x, wide(3), [8, 36, 0, 0], 4);
        let y = g.push(Copy, &[x]);
        g.output("y", y);
    });
    let ints = ints.fill(|ask, rng| Some(Values::I((0..ask.n()).map(|_| rng.bits() as i32).collect())));
    let every_second = Case::new(
        "row_select by every second integer",
        firth_graph::Extents { t: 13, o: 4, p: 0, s: 0 },
        |g| {
            let (x, idx) =
                (floats(g, "x", wide(33)), g.input("idx", Dtype::I32, shape(&[2.into(), Sym::O.into()])));
            let idx = g.view(idx, shape(&[Sym::O.into()]), [8, 8, 8, 8], 4);
            let y = g.push(RowSelect, &[x, idx]);
            g.output("y", y);
        },
    );
    let every_second = every_second.copies(1).fill(|ask, rng| {
        (ask.input == "idx").then(|| Values::I((0..ask.n()).map(|_| rng.below(ask.x.t) as i32).collect()))
    });
    let mut out = vec![ints, every_second];
    for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::Q8_0, Dtype::Q4_K] {
        let (block, unit) = (dtype.block_len(), dtype.block_bytes());
        let n = 4 * block;
        out.push(Case::new(format!("copy of a view of {}", dtype.name()), rows(1), |g| {
            let w = weight(g, "w", dtype, &[n, 6]);
            // Columns of the middle, rows in other order: [2 blocks, 3, 2].
            let view = Shape::fixed(&[2 * block, 3, 2]);
            let y = g.view(w, view, [unit, 8 * unit, 4 * unit, 24 * unit], unit);
            let y = g.push(Copy, &[y]);
            g.output("y", y);
        }));
    }
    out
}

/// Query, key and gate as slices of one wide product, as a model cuts them.
fn rope_of_slices() -> Case {
    let case = Case::new("rope of slices", rows(13), |g| {
        let x = floats(g, "x", wide(64));
        let w = weight(g, "w", Dtype::Q8_0, &[64, 224]);
        let qkv = g.push(MatMul, &[w, x]);
        let (q, k, gate) = (g.slice(qkv, 0, 96), g.slice(qkv, 96, 32), g.slice(qkv, 128, 96));
        let (q, k) = (g.split_heads(q, 32), g.split_heads(k, 32));
        let table = weight(g, "table", Dtype::F32, &[32, 50]);
        let pos = g.input("pos", Dtype::I32, shape(&[Sym::T.into()]));
        let rope = Rope { pairs: RopePairs::Half, n_rot: 32 };
        let (q, k) = (g.push(rope, &[q, table, pos]), g.push(rope, &[k, table, pos]));
        let (q, k) = (g.merge_heads(q), g.merge_heads(k));
        let y = g.push(GatedAct { kind: ActKind::Silu }, &[gate, q]);
        g.output("y", y);
        g.output("k", k);
    });
    case.steps(&[rows(13), rows(1), rows(0), rows(4)]).fill(|ask, rng| {
        (ask.input == "pos").then(|| Values::I((0..ask.n()).map(|_| rng.below(50) as i32).collect()))
    })
}
