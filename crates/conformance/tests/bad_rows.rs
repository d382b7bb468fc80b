//! A value that is not finite must show in its own row of a product, and in no other.

use firth_conformance::cases::products;
use firth_conformance::data;
use firth_conformance::harness::{Ask, Case, Values, cpu, load, run};
use firth_cpu::Level;
use firth_graph::op::{MatMul, MatMulExperts};
use firth_graph::{Extents, Part, Policy, Shape, Sym, WeightSource};
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
