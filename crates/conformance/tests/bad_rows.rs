//! A value that is not finite must show in its own row of a product, and in no other.

use firth_conformance::cases::products;
use firth_conformance::data;
use firth_conformance::harness::{Ask, Case, Values, cpu, load, run};
use firth_cpu::Level;
use firth_graph::op::{GatedAct, MatMul, MatMulExperts, RmsNormMul};
use firth_graph::{ActKind, Extents, Graph, Part, Policy, Shape, Sym, WeightSource};
use firth_quant::Dtype;

const BOUNDS: Extents = Extents { t: 13, o: 0, p: 0, s: 0 };
/// Rows with a bad value: in the first tile, at the end of one, alone in the last.
const BAD: [usize; 4] = [1, 5, 6, 12];

/// Values of a step; with `bad`, one of each bad row is NaN or an infinity.
fn values(ask: &Ask, rng: &mut data::Rng, bad: bool) -> Option<Values> {
    if ask.input == "ids" {
        return Some(Values::I((0..ask.n()).map(|i| (i % 3) as i32).collect()));
    }
    let width = ask.n() / ask.x.t;
    let mut all = rng.values(ask.n());
    for (i, row) in BAD.into_iter().enumerate().filter(|_| bad) {
        all[row * width + (row * 7 + 3) % width] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][i % 3];
    }
    Some(Values::F(all))
}

/// Rows of the output, as bits.
fn rows(case: &Case, level: Level) -> Vec<Vec<u8>> {
    let device = cpu("cpu", level, 2, Vec::new());
    let mut r = load(&case.graph, &case.weights(), 1, vec![device], &Policy::FIRST).expect("it loads");
    let y = run(case, &mut r, 0).expect("it runs").remove(0).remove(0);
    y.chunks(y.len() / BOUNDS.t).map(|c| c.to_vec()).collect()
}

fn check(name: &str, make: &dyn Fn(&str) -> Case) {
    let good = make(name).fill(|ask, rng| values(ask, rng, false));
    let bad = make(name).fill(|ask, rng| values(ask, rng, true));
    for level in Level::available() {
        for (r, (good, bad)) in rows(&good, level).iter().zip(rows(&bad, level)).enumerate() {
            let finite = data::decode(Dtype::F32, &bad).iter().filter(|v| v.is_finite()).count();
            match BAD.contains(&r) {
                true => assert_eq!(finite, 0, "{name} at {level}: row {r} hides a bad value"),
                false => assert!(*good == bad, "{name} at {level}: row {r} changed with a bad neighbour"),
            }
        }
    }
}

fn k_of(dtype: Dtype) -> usize {
    dtype.block_len().max(64)
}

#[test]
fn of_a_matrix() {
    for dtype in products::types() {
        check(&format!("mat_mul {}", dtype.name()), &|name| {
            Case::new(name, BOUNDS, |g| {
                let x = g.input("x", Dtype::F32, Shape::new([k_of(dtype).into(), Sym::T.into()]));
                let source = WeightSource::File("w".into());
                let w = g.weight(source, dtype, Shape::fixed(&[k_of(dtype), 37]), Part::Head);
                let y = g.push(MatMul, &[w, x]);
                g.output("y", y);
            })
        });
    }
}

#[test]
fn of_experts() {
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Q8_0, Dtype::Q4_K] {
        check(&format!("mat_mul_experts {}", dtype.name()), &|name| {
            Case::new(name, BOUNDS, |g| {
                let x = g.input("x", Dtype::F32, Shape::new([k_of(dtype).into(), 1.into(), Sym::T.into()]));
                let ids = g.input("ids", Dtype::I32, Shape::new([2.into(), Sym::T.into()]));
                let source = WeightSource::File("w".into());
                let w = g.weight(source, dtype, Shape::fixed(&[k_of(dtype), 37, 3]), Part::Head);
                let y = g.push(MatMulExperts, &[w, x, ids]);
                g.output("y", y);
            })
        });
    }
}

/// Rows that an op makes for products alone are packed where they are made: the same bits as of stored rows, and a bad value
/// shows, in whichever part of a lone row.
#[test]
fn of_rows_that_are_made_for_products() {
    const K: usize = 2048;
    let case = |stored: bool, dtype: Dtype, t: usize| {
        let name = format!("rows made for {}, {t} rows", dtype.name());
        Case::new(&name, Extents { t, ..BOUNDS }, |g| {
            let input =
                |g: &mut Graph, name| g.input(name, Dtype::F32, Shape::new([K.into(), Sym::T.into()]));
            let (a, b) = (input(g, "a"), input(g, "b"));
            let scale = g.weight(WeightSource::File("s".into()), Dtype::F32, Shape::fixed(&[K]), Part::Head);
            let w = |g: &mut Graph, name: &str, dtype| {
                g.weight(WeightSource::File(name.into()), dtype, Shape::fixed(&[K, 37]), Part::Head)
            };
            let (w, v) = (w(g, "w", dtype), w(g, "v", Dtype::F16));
            let each = g.push(GatedAct { kind: ActKind::Silu }, &[a, b]);
            let norm = g.push(RmsNormMul { eps: 1e-5 }, &[a, scale]);
            let products =
                [g.push(MatMul, &[w, each]), g.push(MatMul, &[w, norm]), g.push(MatMul, &[v, norm])];
            for (i, y) in products.into_iter().enumerate() {
                g.output(&format!("y{i}"), y);
            }
            if stored {
                g.output("each", each);
                g.output("norm", norm);
            }
        })
    };
    let outputs = |case: &Case, level| {
        let device = cpu("cpu", level, 2, Vec::new());
        let mut r = load(&case.graph, &case.weights(), 1, vec![device], &Policy::FIRST).expect("it loads");
        r.profile(true);
        let y = run(case, &mut r, 0).expect("it runs").remove(0);
        let packed_apart = r.profile(false).iter().any(|(name, ..)| name == "quantise");
        assert_eq!(packed_apart, y.len() > 3, "{}: packed where they are made, unless stored", case.name);
        y[..3].to_vec()
    };
    for dtype in [Dtype::F32, Dtype::Q8_0, Dtype::Q4_1, Dtype::Q4_K] {
        for t in [1, 2, 7] {
            let expected = outputs(&case(true, dtype, t), Level::Scalar);
            for level in Level::available() {
                assert!(
                    outputs(&case(false, dtype, t), level) == expected,
                    "{} at {level}, {t} rows",
                    dtype.name()
                );
                for at in [0, K / 2, K - 1].map(|at| (t - 1) * K + at) {
                    let bad = case(false, dtype, t).fill(move |ask, rng| {
                        let mut all = rng.values(ask.n());
                        all[at] = f32::NAN;
                        Some(Values::F(all))
                    });
                    for y in outputs(&bad, level) {
                        let y = data::decode(Dtype::F32, &y);
                        let (good, bad) = y.split_at((t - 1) * 37);
                        assert!(
                            good.iter().all(|v| v.is_finite()),
                            "{} at {level}: value {at}",
                            dtype.name()
                        );
                        assert!(bad.iter().all(|v| v.is_nan()), "{} at {level}: value {at}", dtype.name());
                    }
                }
            }
        }
    }
}
