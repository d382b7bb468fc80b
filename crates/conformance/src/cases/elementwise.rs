//! Sums, products, factors, caps, activations, norms, rope.

use firth_graph::op::*;
use firth_graph::{Extent, Op, Part, RopeSpec, Sym, WeightSource};
use firth_quant::Dtype;

use super::{ROWS, WIDTHS, floats, rows, shape, weight, wide};
use crate::harness::{Case, Values};

/// All of them.
pub fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    for n in WIDTHS {
        out.extend(unary(n));
        out.extend(binary(n));
        out.extend(norms(n));
    }
    out.extend(extremes());
    out.extend(broadcasts());
    out.extend(ropes());
    out.extend(streams());
    out
}

/// Products of rows, softmax, hyper-connections.
fn streams() -> Vec<Case> {
    let mut out = Vec::new();
    for n in WIDTHS {
        let heads = move |h: usize| shape(&[n.into(), h.into(), Sym::T.into()]);
        out.push(all_rows(Case::new(format!("row_dot of {n}"), rows(13), |g| {
            let (a, b) = (floats(g, "a", heads(3)), floats(g, "b", heads(3)));
            let (shared, w) = (floats(g, "c", heads(1)), weight(g, "w", Dtype::F32, &[n, 3]));
            for (i, b) in [b, shared, w].into_iter().enumerate() {
                let y = g.push(RowDot, &[a, b]);
                g.output(&format!("y{i}"), y);
            }
        })));
        out.push(all_rows(Case::new(format!("softmax of {n}"), rows(13), |g| {
            let x = floats(g, "x", heads(2));
            let y = g.push(Softmax, &[x]);
            g.output("y", y);
        })));
        for streams in [1, 3, 4] {
            out.push(all_rows(Case::new(format!("stream_mix of {streams} times {n}"), rows(13), |g| {
                let (r, x) = (floats(g, "r", heads(streams)), floats(g, "x", wide(n)));
                let comb = floats(g, "comb", shape(&[streams.into(), streams.into(), Sym::T.into()]));
                let post = floats(g, "post", wide(streams));
                let y = g.push(StreamMix, &[r, comb, x, post]);
                g.output("y", y);
            })));
        }
    }
    for (streams, iterations) in [(1, 1), (4, 20), (4, 1), (5, 3), (2, 2)] {
        let op = HyperWeights { streams, iterations, eps: 1e-6 };
        let name = format!("hyper_weights of {streams}, {iterations} iterations");
        out.push(all_rows(Case::new(name, rows(13), move |g| {
            let (m, scale) = (floats(g, "m", wide(op.width())), weight(g, "scale", Dtype::F32, &[3]));
            let base = weight(g, "base", Dtype::F32, &[op.width()]);
            let y = g.push(op, &[m, scale, base]);
            g.output("y", y);
        })));
    }
    out
}

/// Steps of every row count within one program.
fn all_rows(case: Case) -> Case {
    case.steps(&ROWS.map(rows))
}

fn unary(n: usize) -> Vec<Case> {
    let mut ops: Vec<(String, Op)> =
        ActKind::ALL.iter().map(|k| (format!("{k:?}"), Act { kind: *k }.into())).collect();
    ops.push(("scale".into(), Scale { by: -0.3712 }.into()));
    ops.push(("softcap".into(), Softcap { cap: 0.75 }.into()));
    ops.push(("clamp".into(), Clamp { low: -0.5, high: f32::INFINITY }.into()));
    ops.push(("copy".into(), Copy.into()));
    let case = |(name, op): (String, Op)| {
        let case = Case::new(format!("{name} of {n}"), rows(13), |g| {
            let x = floats(g, "x", wide(n));
            let y = g.push(op, &[x]);
            g.output("y", y);
        });
        all_rows(case)
    };
    ops.into_iter().map(case).collect()
}

fn binary(n: usize) -> Vec<Case> {
    let mut ops: Vec<(String, Op)> =
        ActKind::ALL.iter().map(|k| (format!("gated {k:?}"), GatedAct { kind: *k }.into())).collect();
    ops.extend([("add".into(), Add.into()), ("mul".into(), Mul.into())]);
    let case = |(name, op): (String, Op)| {
        let case = Case::new(format!("{name} of {n}"), rows(13), |g| {
            let (a, b) = (floats(g, "a", wide(n)), floats(g, "b", wide(n)));
            let y = g.push(op, &[a, b]);
            g.output("y", y);
        });
        all_rows(case)
    };
    ops.into_iter().map(case).collect()
}

fn norms(n: usize) -> Vec<Case> {
    let eps = 1e-6;
    let rms = Case::new(format!("rms_norm of {n}"), rows(13), |g| {
        let x = floats(g, "x", wide(n));
        let y = g.push(RmsNorm { eps }, &[x]);
        g.output("y", y);
    });
    let l2 = Case::new(format!("l2_norm of {n}"), rows(13), |g| {
        let x = floats(g, "x", shape(&[n.into(), 3.into(), Sym::T.into()]));
        let y = g.push(L2Norm { eps }, &[x]);
        g.output("y", y);
    });
    let layer = Case::new(format!("layer_norm of {n}"), rows(13), |g| {
        let x = floats(g, "x", wide(n));
        let y = g.push(LayerNorm { eps: 1e-2 }, &[x]);
        g.output("y", y);
    });
    let with_weight = Case::new(format!("rms_norm_mul of {n}"), rows(13), |g| {
        let (x, w) = (floats(g, "x", wide(n)), weight(g, "w", Dtype::F32, &[n]));
        let y = g.push(RmsNormMul { eps }, &[x, w]);
        g.output("y", y);
    });
    let by_head = Case::new(format!("rms_norm_mul by head of {n}"), rows(7), |g| {
        let x = floats(g, "x", shape(&[n.into(), 3.into(), Sym::T.into()]));
        let w = weight(g, "w", Dtype::F32, &[n, 3]);
        let y = g.push(RmsNormMul { eps }, &[x, w]);
        g.output("y", y);
    });
    let sum = Case::new(format!("add_rms_norm_mul of {n}"), rows(13), |g| {
        let (a, b, w) = (floats(g, "a", wide(n)), floats(g, "b", wide(n)), weight(g, "w", Dtype::F32, &[n]));
        let [sum, y] = g.push_n(AddRmsNormMul { eps }, &[a, b, w]);
        g.output("sum", sum);
        g.output("y", y);
    });
    vec![all_rows(rms), l2, all_rows(layer), all_rows(with_weight), by_head, all_rows(sum)]
}

/// Infinities, NaN, zeros of both signs, denormals and the largest values through every function.
fn extremes() -> Vec<Case> {
    const VALUES: [f32; 17] = [
        0.0,
        -0.0,
        1e-45,
        -1e-40,
        f32::MIN_POSITIVE,
        1e-8,
        -1e-4,
        0.5,
        -9.0,
        11.0,
        -30.0,
        88.8,
        -104.0,
        3e4,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    let fill = |n: usize| Values::F((0..n).map(|i| VALUES[i % 17]).collect());
    let kinds = ActKind::ALL.iter().map(|k| (format!("{k:?}"), Op::from(Act { kind: *k })));
    let ops = kinds.chain([
        ("softcap".into(), Softcap { cap: 30.0 }.into()),
        ("clamp".into(), Clamp { low: -7.0, high: 7.0 }.into()),
        ("scale".into(), Scale { by: -2.5 }.into()),
    ]);
    ops.map(|(name, op)| {
        let case = Case::new(format!("{name} of extremes"), rows(1), |g| {
            let x = floats(g, "x", wide(17));
            let y = g.push(op, &[x]);
            g.output("y", y);
        });
        case.fill(move |ask, _| Some(fill(ask.n())))
    })
    .collect()
}

fn broadcasts() -> Vec<Case> {
    let t: Extent = Sym::T.into();
    let a = [33.into(), 4.into(), t];
    let bs: [(&str, Vec<Extent>); 6] = [
        ("one", vec![]),
        ("a row", vec![33.into()]),
        ("a head", vec![1.into(), 4.into()]),
        ("a token", vec![1.into(), 1.into(), t]),
        ("a head and token", vec![1.into(), 4.into(), t]),
        ("a row and token", vec![33.into(), 1.into(), t]),
    ];
    let case = |op: Op, name: &str, b: &[Extent]| {
        let case = Case::new(format!("{} of {name}", op.name()), rows(13), |g| {
            let (a, b) = (floats(g, "a", shape(&a)), floats(g, "b", shape(b)));
            let y = g.push(op, &[a, b]);
            g.output("y", y);
        });
        all_rows(case)
    };
    bs.iter().flat_map(|(name, b)| [case(Add.into(), name, b), case(Mul.into(), name, b)]).collect()
}

fn ropes() -> Vec<Case> {
    let mut out = Vec::new();
    for pairs in [RopePairs::Adjacent, RopePairs::Half] {
        for (d, n_rot) in [(64, 64), (80, 80), (96, 32), (34, 30), (2, 2), (128, 0)] {
            let case = Case::new(format!("rope {pairs:?} {n_rot} of {d}"), rows(13), |g| {
                let x = floats(g, "x", shape(&[d.into(), 3.into(), Sym::T.into()]));
                let table = match n_rot {
                    0 => weight(g, "empty", Dtype::F32, &[0, 300]),
                    _ => {
                        let spec = WeightSource::Rope(RopeSpec::new(n_rot, 10000.0, 300));
                        g.weight(spec, Dtype::F32, shape(&[n_rot.into(), 300.into()]), Part::Tables)
                    }
                };
                let pos = g.input("pos", Dtype::I32, shape(&[Sym::T.into()]));
                let y = g.push(Rope { pairs, n_rot }, &[x, table, pos]);
                g.output("y", y);
            });
            let case = case.fill(|ask, rng| {
                (ask.input == "pos").then(|| Values::I((0..ask.n()).map(|_| rng.below(300) as i32).collect()))
            });
            out.push(all_rows(case));
        }
    }
    out
}
